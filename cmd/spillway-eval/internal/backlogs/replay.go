package backlogs

import (
	"context"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/sim"
)

// Case is one backlog and what became of it.
type Case struct {
	// Family is how its run times differ.
	Family string
	// Ours is what Fold and Decide made of it, Fluid what the former rule did, and Hindsight the least number of
	// functions that meets the deadline.
	Ours, Fluid, Hindsight Outcome
}

var begin = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// Replay draws the case of that number and lets it be done.
func (w World) Replay(ctx context.Context, number int) (Case, error) {
	b := w.draw(number)
	ours, err := b.ours(ctx, w.Confidence)
	if err != nil {
		return Case{}, fmt.Errorf("case %d, %s: %w", number, b, err)
	}
	hindsight, _ := b.cheapest()
	return Case{Family: b.family, Ours: ours, Fluid: b.serve(fluid), Hindsight: hindsight}, nil
}

// ours runs the earlier tasks at the pool, and then the backlog.
func (b backlog) ours(ctx context.Context, confidence float64) (out Outcome, err error) {
	room := quantity.Size{CPU: quantity.Milli(b.cores) * quantity.Core, Memory: quantity.Bytes(b.cores) * 2 * quantity.GiB}
	agenda := sim.NewAgenda(sim.Options{
		Start: begin, Hosts: []predictor.Host{{ID: "host", Capacity: room, Free: room}}, Functions: b.venue(), Tick: tick,
	})
	left, started := len(b.tasks), begin
	last := func(ctx context.Context) error {
		started = agenda.Now()
		goal := predictor.Goal{Deadline: b.deadline, Confidence: confidence}
		if err := b.start(ctx, agenda, "backlog", goal, b.tasks, func(record predictor.Record) error {
			if record.Venue == predictor.Function {
				out.Cost += record.Cost
			}
			if left--; left == 0 {
				out.took = agenda.Now().Sub(started)
			}
			return nil
		}); err != nil {
			return err
		}
		return nil
	}
	before := len(b.earlier)
	agenda.At(begin, func(ctx context.Context) error {
		return b.start(ctx, agenda, "earlier", predictor.Goal{Minimise: predictor.Cost}, b.earlier,
			func(predictor.Record) error {
				if before--; before == 0 {
					ended := predictor.RunEnded{Run: "earlier", State: predictor.RunSucceeded, At: agenda.Now()}
					agenda.At(agenda.Now(), func(ctx context.Context) error { return agenda.Tell(ctx, ended) })
					agenda.At(agenda.Now().Add(time.Minute), last)
				}
				return nil
			})
	})
	if err := agenda.Run(ctx); err != nil {
		return Outcome{}, err
	}
	out.Met = out.took <= b.deadline
	return out, nil
}

func (b backlog) start(
	ctx context.Context, agenda *sim.Agenda, run string, goal predictor.Goal, tasks []task,
	ended func(predictor.Record) error,
) error {
	if err := agenda.Tell(ctx, predictor.RunStarted{
		Run: run, Pipeline: "p", App: "p", Build: "b", Goal: goal, At: agenda.Now(),
	}); err != nil {
		return fmt.Errorf("start %s: %w", run, err)
	}
	all := make([]sim.Task, len(tasks))
	for i, t := range tasks {
		all[i] = sim.Task{
			Run: run, Pipeline: "p", Stage: predictor.StageID{App: "p", Build: "b", Name: "score"},
			Name: fmt.Sprintf("score-%d", i), Declared: quantity.Size{CPU: quantity.Core, Memory: quantity.GiB},
			Usage: quantity.Usage{
				CPU: t.wall, Wall: t.wall, PeakMemory: quantity.GiB / 2, Input: quantity.Bytes(t.input),
			},
			Slower: b.slower, Ended: ended,
		}
	}
	return agenda.Arrive(ctx, all...)
}
