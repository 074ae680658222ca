package pipelines

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/sim"
)

// Moments are the parts of a run at which is asked how it goes on.
var Moments = []float64{0, 0.25, 0.5}

// Answer is what was expected at one moment of a run.
type Answer struct {
	// Known is false where nothing was expected.
	Known bool
	// Left is in how many seconds the run ends, Cost what it costs altogether, in US dollars.
	Left, Cost predictor.Interval
}

// Question is one moment of a run, what was answered, and what came.
type Question struct {
	// Run counts from 1, Moment is a part of Moments.
	Run    int
	Moment float64
	// Ours is the answer of the predictor; Earlier that of EarlierRuns.
	Ours, Earlier Answer
	// Left is in how many seconds the run ended, Cost what it came to, in US dollars.
	Left, Cost float64
}

var begin = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// span is from when to when a run went.
type span struct{ start, end time.Time }

// Replay simulates one of the pools and returns the questions of its runs but for the first of each pipeline. A run is
// asked at parts of the time that it takes, which is known only at its end: so everything happens twice, and nobody is
// asked the first time.
func (w World) Replay(ctx context.Context, pool int) ([]Question, error) {
	spans := map[string]span{}
	if err := w.simulate(ctx, pool, spans, nil); err != nil {
		return nil, err
	}
	var asked []Question
	again := map[string]span{}
	return asked, w.simulate(ctx, pool, again, func(a *sim.Agenda, p pipeline) {
		var earlier EarlierRuns
		for number, r := range p.runs {
			was := spans[r.id]
			if number == 0 {
				a.At(was.end, func(context.Context) error {
					earlier.ended(p, r, was)
					return nil
				})
				continue
			}
			for _, moment := range Moments {
				when := was.start.Add(time.Duration(moment * float64(was.end.Sub(was.start))))
				ask := func() {
					cost := 0.0
					for _, task := range slices.Concat(r.stages...) {
						cost += task.Cost.USD()
					}
					q := Question{
						Run: number + 1, Moment: moment, Left: was.end.Sub(when).Seconds(), Cost: cost,
						Earlier: earlier.answer(when.Sub(was.start).Seconds()),
					}
					if forecast, known := a.State().Forecast(r.id, when); known {
						q.Ours = Answer{Known: true, Left: forecast.Finish, Cost: forecast.Cost}
					}
					asked = append(asked, q)
				}
				a.At(when, func(context.Context) error {
					a.At(when, func(context.Context) error { // after what else happens then: the run starts
						ask()
						return nil
					})
					return nil
				})
			}
			a.At(was.end, func(context.Context) error {
				earlier.ended(p, r, was)
				return nil
			})
		}
	})
}

// simulate runs everything once and notes when each run went; prepare, if it is not nil, is called before.
func (w World) simulate(
	ctx context.Context, pool int, spans map[string]span, prepare func(*sim.Agenda, pipeline),
) error {
	room := quantity.Size{CPU: quantity.Milli(w.Cores) * quantity.Core, Memory: quantity.Bytes(w.Cores) * 8 * quantity.GiB}
	agenda := sim.NewAgenda(sim.Options{
		Start: begin, Hosts: []predictor.Host{{ID: "host", Capacity: room, Free: room}},
	})
	for _, p := range w.draw(pool) {
		next := &course{agenda: agenda, pipeline: p, spans: spans}
		agenda.At(begin.Add(p.runs[0].idle), next.start)
		if prepare != nil {
			prepare(agenda, p)
		}
	}
	if err := agenda.Run(ctx); err != nil {
		return fmt.Errorf("simulate pool %d: %w", pool, err)
	}
	return nil
}

// course is a pipeline while its runs go on.
type course struct {
	agenda   *sim.Agenda
	pipeline pipeline
	spans    map[string]span
	run      int // index of the run that goes on
	stage    int // of its stage
	left     int // tasks of the stage
}

func (c *course) start(ctx context.Context) error {
	r, now := c.pipeline.runs[c.run], c.agenda.Now()
	c.spans[r.id] = span{start: now}
	if err := c.agenda.Tell(ctx, predictor.RunStarted{
		Run: r.id, Pipeline: c.pipeline.name, App: c.pipeline.name, Build: "b", At: now,
		InputBytes: quantity.Bytes(r.input), Features: c.pipeline.features(r),
	}); err != nil {
		return fmt.Errorf("start %s: %w", r.id, err)
	}
	c.stage = 0
	return c.call(ctx)
}

// call schedules the tasks of the stage.
func (c *course) call(ctx context.Context) error {
	tasks := slices.Clone(c.pipeline.runs[c.run].stages[c.stage])
	c.left = len(tasks)
	for i := range tasks {
		tasks[i].Ended = func(predictor.Record) error {
			if c.left--; c.left == 0 {
				c.agenda.At(c.agenda.Now(), c.next)
			}
			return nil
		}
	}
	return c.agenda.Arrive(ctx, tasks...)
}

// next goes on with the stage after this one, or ends the run.
func (c *course) next(ctx context.Context) error {
	r, now := c.pipeline.runs[c.run], c.agenda.Now()
	if c.stage++; c.stage < len(r.stages) {
		return c.call(ctx)
	}
	c.spans[r.id] = span{c.spans[r.id].start, now}
	if err := c.agenda.Tell(ctx, predictor.RunEnded{Run: r.id, State: predictor.RunSucceeded, At: now}); err != nil {
		return fmt.Errorf("end %s: %w", r.id, err)
	}
	if c.run++; c.run < len(c.pipeline.runs) {
		c.agenda.At(now.Add(c.pipeline.runs[c.run].idle), c.start)
	}
	return nil
}
