package policy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/sim"
)

// TaskMemory is what a task asks for; it takes half of it.
const TaskMemory = quantity.GiB

// gap is the least time between two plans of an engine (activities/autoscaler).
const gap = 50 * time.Millisecond

// Ours lets the arrivals, which are in the order of their times, be served as an engine does on a pool of so many
// hosts, which it holds all the time: Fold is told what happens, and Decide says every second, and where something has
// happened 50 ms after the last plan, how many slots there are and what functions are asked for. Each arrival is a run
// of one task whose deadline is the limit, more than 0. It begins with nothing known. The error is that of ctx.
func Ours(ctx context.Context, setting Setting, arrivals []Arrival, hosts int, limit time.Duration) (Outcome, error) {
	room := quantity.Size{
		CPU: quantity.Milli(hosts*setting.Cores) * quantity.Core, Memory: quantity.Bytes(hosts) * setting.Memory,
	}
	pool := predictor.Host{ // as one: a task takes a core, so that it fits on all of them where it fits on one
		ID: "pool", Capacity: room, Free: room, PricePerHour: setting.HostPrice * quantity.Money(hosts),
	}
	o := &ours{
		limit: limit, start: setting.Start,
		agenda: sim.NewAgenda(sim.Options{
			Start: setting.Start, Hosts: []predictor.Host{pool}, Functions: setting.Functions, Tick: time.Second, Gap: gap,
			KeepWarm: setting.KeepWarm,
		}),
		out: Outcome{Latencies: make([]time.Duration, len(arrivals)), MostHosts: hosts},
	}
	if len(arrivals) > 0 {
		o.arriveFrom(arrivals, 0)
	}
	if err := o.agenda.Run(ctx); err != nil {
		return Outcome{}, fmt.Errorf("replay a trace: %w", err)
	}
	held := max(setting.Span, o.agenda.Now().Sub(setting.Start))
	o.out.MostOnHosts = mostAtOnce(o.onHosts)
	o.out.HostCost = pool.PricePerHour.Times(held.Hours())
	return o.out, nil
}

type ours struct {
	agenda *sim.Agenda
	start  time.Time
	limit  time.Duration
	out    Outcome
	// onHosts are when attempts at the pool began and ended.
	onHosts []change
}

// change is one attempt more, or one less.
type change struct {
	at time.Time
	by int
}

// mostAtOnce is how many attempts there were at most; one that ends when another begins makes room for it.
func mostAtOnce(changes []change) int {
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.by, b.by)) })
	now, most := 0, 0
	for _, c := range changes {
		now += c.by
		most = max(most, now)
	}
	return most
}

// arriveFrom lets the arrival of that number come, and then those after it.
func (o *ours) arriveFrom(arrivals []Arrival, number int) {
	o.agenda.At(o.start.Add(arrivals[number].At), func(ctx context.Context) error {
		if number+1 < len(arrivals) {
			o.arriveFrom(arrivals, number+1)
		}
		return o.arrive(ctx, number, arrivals[number].Work)
	})
}

func (o *ours) arrive(ctx context.Context, number int, work time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	run, came := strconv.Itoa(number), o.agenda.Now()
	if err := o.agenda.Tell(ctx, predictor.RunStarted{
		Run: run, Pipeline: "trace", App: "trace", Build: "b", Goal: predictor.Goal{Deadline: o.limit}, At: came,
	}); err != nil {
		return fmt.Errorf("start run %s: %w", run, err)
	}
	return o.agenda.Arrive(ctx, sim.Task{
		Run: run, Pipeline: "trace", Stage: predictor.StageID{App: "trace", Build: "b", Name: "task"}, Name: "task",
		Declared: quantity.Size{CPU: quantity.Core, Memory: TaskMemory},
		Usage:    quantity.Usage{CPU: work, Wall: work, PeakMemory: TaskMemory / 2},
		Ended: func(record predictor.Record) error {
			o.out.Latencies[number] = o.agenda.Now().Sub(came)
			if record.Venue == predictor.Pool {
				o.onHosts = append(o.onHosts, change{o.agenda.Now().Add(-work), 1}, change{o.agenda.Now(), -1})
			} else {
				o.out.Spilled++
				o.out.FunctionCost = o.out.FunctionCost.Plus(record.Cost)
				if record.Cold {
					o.out.Cold++
				}
			}
			o.agenda.At(o.agenda.Now(), func(ctx context.Context) error {
				return o.agenda.Tell(ctx, predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: o.agenda.Now()})
			})
			return nil
		},
	})
}
