package sim

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Agenda is a pool with functions beside it in virtual time, a discrete-event loop around a Simulation: tasks arrive,
// start on the slots that the plan gives their stage, first come first served and at the pool where both have one, and
// end. What it tells the predictor is what an engine would.
//
//	agenda := sim.NewAgenda(sim.Options{Start: start, Hosts: hosts})
//	agenda.At(start, func() error { return agenda.Arrive(tasks...) })
//	err := agenda.Run(ctx)
//
// Attempts hold what they are admitted with; a host is never asked whether it has the room that the plan counts on.
// Environments of functions start cold, and stay warm for Options.KeepWarm. Nothing fails and nothing runs out of
// memory. An Agenda must not be used concurrently, but by what it calls.
type Agenda struct {
	stack   *Simulation
	keep    time.Duration
	host    string
	room    quantity.Size
	due     entries
	entered uint64
	waiting map[predictor.StageID][]waiting
	running map[slotsOf]int
	warm    map[predictor.StageID][]time.Time // since when environments have nothing to do, rising
}

// slotsOf are those of a stage at a venue.
type slotsOf struct {
	stage predictor.StageID
	venue predictor.Venue
}

// Task is one task of a stage.
type Task struct {
	Run, Pipeline string
	Stage         predictor.StageID
	// Name is unique in the run.
	Name string
	// Declared is the size that its stage hints at; the zero Size is none.
	Declared quantity.Size
	// Usage is what its attempt will come to, and Features what besides Usage.Input is known before.
	Usage    quantity.Usage
	Features map[string]float64
	// Cost is what the attempt will cost at the pool.
	Cost quantity.Money
	// Slower is by what factor it takes longer at functions; 0 is 1.
	Slower float64
	// Ended is called once the end of the task was told, with what was told of it; nil calls nothing.
	Ended func(predictor.Record) error
}

type waiting struct {
	Task
	since time.Time
}

// NewAgenda returns a pool with nothing to do. Attempts run on the first of the hosts.
func NewAgenda(options Options) *Agenda {
	a := &Agenda{
		stack: New(options), keep: options.KeepWarm, waiting: map[predictor.StageID][]waiting{},
		running: map[slotsOf]int{}, warm: map[predictor.StageID][]time.Time{},
	}
	if len(options.Hosts) > 0 {
		a.host, a.room = options.Hosts[0].ID, options.Hosts[0].Capacity
	}
	return a
}

// Now is the virtual time.
func (a *Agenda) Now() time.Time { return a.stack.Now() }

// State is what the predictor knows now. It is only for questions, not to be folded into or decided on.
func (a *Agenda) State() predictor.State { return a.stack.state }

// Tell folds an event of now.
func (a *Agenda) Tell(ctx context.Context, e predictor.Event) error { return a.stack.Tell(ctx, e) }

// At calls do at a time, or at once where that has passed; of those of one time the first that was given.
func (a *Agenda) At(when time.Time, do func(ctx context.Context) error) {
	a.entered++
	heap.Push(&a.due, entry{at: when, number: a.entered, do: do})
}

// Arrive lets tasks wait from now on.
func (a *Agenda) Arrive(ctx context.Context, tasks ...Task) error {
	for _, task := range tasks {
		if err := a.stack.Tell(ctx, predictor.Scheduled{
			Run: task.Run, Stage: task.Stage, Tasks: 1, Input: task.Usage.Input, Declared: task.Declared, At: a.Now(),
		}); err != nil {
			return fmt.Errorf("schedule %s of %s: %w", task.Name, task.Run, err)
		}
		a.waiting[task.Stage] = append(a.waiting[task.Stage], waiting{task, a.Now()})
	}
	return nil
}

// Run lets happen what is due, in the order of its time, until nothing is. The error is that of what was called, or of
// ctx.
func (a *Agenda) Run(ctx context.Context) error {
	for len(a.due) > 0 {
		next := a.due[0].at
		if a.waits() && a.stack.due.Before(next) { // the plan may change
			next = a.stack.due
		}
		if next.After(a.Now()) {
			if err := a.stack.Advance(ctx, next); err != nil {
				return err
			}
		}
		for len(a.due) > 0 && !a.due[0].at.After(a.Now()) {
			if err := heap.Pop(&a.due).(entry).do(ctx); err != nil {
				return err
			}
		}
		if err := a.serve(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (a *Agenda) waits() bool {
	for _, tasks := range a.waiting {
		if len(tasks) > 0 {
			return true
		}
	}
	return false
}

// serve starts tasks on the slots of the plan of now.
func (a *Agenda) serve(ctx context.Context) error {
	if !a.waits() {
		return nil
	}
	grants := slices.Clone(a.stack.Plan().Grants)
	slices.SortStableFunc(grants, func(x, y predictor.Grant) int { // the pool first
		return cmp.Compare(ordinal(x.Venue), ordinal(y.Venue))
	})
	for _, grant := range grants {
		queue, slots := a.waiting[grant.Stage], slotsOf{grant.Stage, grant.Venue}
		for len(queue) > 0 && a.running[slots] < grant.Slots {
			next := queue[0]
			queue = queue[1:]
			a.running[slots]++
			if err := a.start(ctx, next, grant); err != nil {
				return fmt.Errorf("start %s of %s: %w", next.Name, next.Run, err)
			}
		}
		a.waiting[grant.Stage] = queue
	}
	a.stack.news = false // that a task has taken its slot is no reason for another plan
	return nil
}

func ordinal(venue predictor.Venue) int {
	if venue == predictor.Pool {
		return 0
	}
	return 1
}

// start begins the only attempt of a task, and lets it end when its time has passed.
func (a *Agenda) start(ctx context.Context, task waiting, slot predictor.Grant) error {
	record := predictor.Record{
		Run: task.Run, Pipeline: task.Pipeline, Stage: task.Stage, Task: task.Name, Attempt: 1, Venue: slot.Venue,
		Outcome: predictor.Succeeded, ScheduledAt: task.since, Queue: a.Now().Sub(task.since), Usage: task.Usage,
		Features: task.Features,
	}
	if slot.Venue == predictor.Pool {
		a.admit(task, &record)
	} else {
		a.invoke(task, slot, &record)
	}
	a.At(a.Now().Add(record.Start+record.Usage.Wall), func(ctx context.Context) error {
		a.running[slotsOf{task.Stage, slot.Venue}]--
		if slot.Venue == predictor.Function {
			a.warm[task.Stage] = append(a.warm[task.Stage], a.Now())
		}
		record.At = a.Now()
		if err := a.stack.Tell(ctx, record); err != nil || task.Ended == nil {
			return err
		}
		return task.Ended(record)
	})
	return a.stack.Tell(ctx, predictor.AttemptStarted{
		Run: task.Run, Stage: task.Stage, Task: task.Name, Attempt: 1, Venue: slot.Venue, Host: record.Host,
		Queue: record.Queue, Grant: record.Grant, Input: task.Usage.Input, Features: task.Features, At: a.Now(),
	})
}

// admit gives an attempt the size that its host would give it.
func (a *Agenda) admit(task waiting, record *predictor.Record) {
	record.Host, record.Cost = a.host, task.Cost
	if sizing, known := a.stack.sizings[task.Stage]; known {
		need := predictor.Need{Input: task.Usage.Input, Features: task.Features}
		record.Grant, record.Predicted, _ = sizing.For(need, a.room)
	}
}

// invoke gives an attempt the class of its function, a start where no environment is warm, and its bill.
func (a *Agenda) invoke(task waiting, slot predictor.Grant, record *predictor.Record) {
	venue := a.stack.snapshot.Functions
	record.Grant = slot.Size
	record.Usage.Wall = time.Duration(float64(task.Usage.Wall) * cmp.Or(task.Slower, 1))
	if idle := a.warm[task.Stage]; len(idle) > 0 && (a.keep == 0 || a.Now().Sub(idle[len(idle)-1]) <= a.keep) {
		a.warm[task.Stage] = idle[:len(idle)-1] // the one that was used last
	} else {
		record.Cold, record.Start = true, venue.ColdStart
	}
	record.Cost = venue.Price(slot.Size.Memory, record.Start+record.Usage.Wall)
}

// entry is what is due at a time.
type entry struct {
	at     time.Time
	number uint64
	do     func(ctx context.Context) error
}

// entries are a heap by time.
type entries []entry

func (e entries) Len() int      { return len(e) }
func (e entries) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push implements heap.Interface.
func (e *entries) Push(next any) { *e = append(*e, next.(entry)) }

func (e entries) Less(i, j int) bool {
	if !e[i].at.Equal(e[j].at) {
		return e[i].at.Before(e[j].at)
	}
	return e[i].number < e[j].number
}

// Pop implements heap.Interface.
func (e *entries) Pop() any {
	last := len(*e) - 1
	next := (*e)[last]
	(*e)[last] = entry{} // its closure is not kept
	*e = (*e)[:last]
	return next
}
