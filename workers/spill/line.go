package spill

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/workers/slot"
)

// line is where the tasks of a stage wait that were taken from its queue and are not invoked yet. The Worker's mutex
// guards it.
type line struct {
	waiting []*member
	flying  int // invokes that go on
	timer   *time.Timer
}

// member is an attempt on its way to an invoke, of which it is the only one or one of several.
type member struct {
	try      *slot.Attempt
	call     *call // that of its handler, which waits until it has landed
	start    wire.StartAttempt
	payload  []byte // of an invoke for itself
	alone    bool
	expected float64 // seconds
	since    time.Time
	// risk notes what it costs if it is lost: most, or soFar where the function ends with this process.
	risk func(most quantity.Money, soFar func(time.Duration) quantity.Money)
	// rest takes that back: its invoke has ended before it.
	rest   func()
	landed chan landing

	flight *flight // nil while it waits
	again  bool    // it was with an invoke and not begun
	left   bool    // nobody needs it any more
}

// landing is how an attempt came back.
type landing struct {
	ending slot.Ending
	answer wire.Answer
}

// flight is an invoke.
type flight struct {
	members []*member
	cancel  context.CancelCauseFunc
}

// ride sends m with an invoke and returns how it came back, with the rest in its call. When ctx ends before its invoke
// has begun it has none; later the invoke is abandoned once nobody needs any of its tasks.
func (w *Worker) ride(ctx context.Context, m *member) landing {
	if ctx.Err() != nil {
		return landing{}
	}
	w.mu.Lock()
	at := w.lines[m.start.Task.Stage]
	if at == nil {
		at = &line{}
		w.lines[m.start.Task.Stage] = at
	}
	m.since = w.now()
	at.waiting = append(at.waiting, m)
	w.turn(m.start.Task.Stage, at) //nolint:contextcheck // an invoke ends when nobody needs any of its tasks
	w.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		w.leave(m, context.Cause(ctx)) //nolint:contextcheck // as above
	})
	defer stop()
	return <-m.landed
}

// leave takes note that nobody needs a member any more.
func (w *Worker) leave(m *member, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m.left = true
	w.closing = w.closing || errors.Is(cause, slot.ErrInterrupted) // so all of them leave
	if m.flight == nil {
		stage := m.start.Task.Stage
		at := w.lines[stage]
		if at == nil {
			return // it has landed
		}
		if i := slices.Index(at.waiting, m); i >= 0 {
			at.waiting = slices.Delete(at.waiting, i, i+1)
			m.landed <- landing{}
			w.turn(stage, at)
		}
		return
	}
	if !slices.ContainsFunc(m.flight.members, func(other *member) bool { return !other.left }) {
		m.flight.cancel(cause)
	}
}

// turn begins the invokes of a line whose time has come; the caller holds mu.
func (w *Worker) turn(stage predictor.StageID, at *line) {
	for {
		var take []*member
		var again time.Duration
		if !w.closing {
			take, again = ready(at.waiting, at.flying, w.granted[stage], w.now())
		}
		if len(take) > 0 {
			take = slices.Clone(take)
			at.waiting = slices.DeleteFunc(at.waiting, func(m *member) bool { return slices.Contains(take, m) })
			at.flying++
			ctx, cancel := context.WithCancelCause(context.Background())
			f := &flight{members: take, cancel: cancel}
			for _, m := range take {
				m.flight = f
			}
			w.flights.Go(func() {
				defer cancel(nil)
				w.fly(ctx, stage, at, f)
			})
			continue
		}
		if at.timer != nil {
			at.timer.Stop()
			at.timer = nil
		}
		switch {
		case again > 0:
			at.timer = time.AfterFunc(again, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				if w.lines[stage] == at {
					w.turn(stage, at)
				}
			})
		case len(at.waiting) == 0 && at.flying == 0 && w.lines[stage] == at:
			delete(w.lines, stage)
		}
		return
	}
}

// fly is one invoke, from what it may cost to the landing of all its members.
func (w *Worker) fly(ctx context.Context, stage predictor.StageID, at *line, f *flight) {
	c := w.depart(f.members)
	invoke := wire.Invoke{Version: wire.Version, Start: f.members[0].start}
	payload, err := f.members[0].payload, error(nil)
	if len(f.members) > 1 {
		for _, m := range f.members[1:] {
			invoke.More = append(invoke.More, m.start)
		}
		payload, err = json.Marshal(invoke)
	}
	invoking, cancel := context.WithTimeout(ctx, c.limit+initAllowance)
	defer cancel()
	if c.err = err; err == nil {
		c.answer, c.err = w.invoke(invoking, c.function, payload)
	}
	c.ended = w.now()
	c.abandoned = invoking.Err() != nil && c.err != nil
	if w.local && c.err != nil && errors.Is(context.Cause(ctx), slot.ErrInterrupted) {
		c.abandoned, c.outlives = false, w.drain // it ends with this process, which is about to
	}
	w.land(stage, at, f, c) //nolint:contextcheck // the next invokes are others
}

// depart notes what the members of an invoke cost if they are lost from now on, tells that they begin, and returns what
// they have in common.
func (w *Worker) depart(members []*member) call {
	c := *members[0].call
	c.limit, c.highest = 0, 0
	for _, m := range members {
		c.limit = min(c.limit+limitOf(w.venue, m.call.timeout), w.venue.MaxDuration)
	}
	c.highest = most(w.venue, c.class, c.limit, c.within)
	equal := make([]time.Duration, len(members))
	shares, _ := split(c.highest, 0, equal)
	var noting sync.WaitGroup
	for i, m := range members {
		noting.Go(func() {
			m.risk(shares[i], func(lasted time.Duration) quantity.Money {
				parts, _ := split(min(w.venue.Price(c.class, lasted), c.highest), 0, equal)
				return parts[i]
			})
		})
	}
	noting.Wait()
	c.invoked = w.now()
	for _, m := range members {
		m.try.Began(c.invoked)
		known, task := m.try.Need(), m.start.Task
		w.recorder.Tell(predictor.AttemptStarted{
			Run: task.Run, Stage: task.Stage, Task: task.ID, Attempt: m.try.Number, Venue: predictor.Function,
			Host: c.function, Supervisor: w.host, Instance: w.instance, PoolOnly: m.try.PoolOnly,
			Queue: m.try.Queue(c.invoked), Grant: size.OfClass(c.class), Input: known.Input,
			Features: m.call.lasts.RestsOn(known.Features), At: c.invoked,
		})
	}
	return c
}

// land tells the members of an invoke what became of them, and divides its bill. Those that were not begun go first in
// the line again, unless nobody needs them any more.
func (w *Worker) land(stage predictor.StageID, at *line, f *flight, c call) {
	c.part.tasks = len(f.members)
	var found []fate
	if c.err == nil {
		for _, m := range f.members {
			m.call.part.tasks = c.part.tasks
		}
		found = fates(w.venue, f.members, c.answer)
	} else {
		found = make([]fate, len(f.members))
	}
	ran := make([]time.Duration, len(f.members))
	for i, m := range f.members {
		if ran[i] = found[i].ran; found[i].again {
			m.rest()
		}
	}
	costs, bills := split(cost(w.venue, c), c.answer.Billed, ran)
	_, took := split(0, c.answer.Duration, ran)
	w.mu.Lock()
	defer w.mu.Unlock()
	var again []*member
	for i, m := range f.members {
		m.flight = nil
		if found[i].again && !m.left {
			m.again, m.call.part = true, part{}
			again = append(again, m)
			continue
		}
		mine := c
		mine.queue, mine.begun, mine.within, mine.lasts = m.call.queue, m.call.begun, m.call.within, m.call.lasts
		mine.mask = m.call.mask
		mine.answer.Log = printedBy(c.answer.Log, i, f.members)
		if i > 0 {
			mine.answer.Init = 0
		}
		mine.part = part{
			tasks: len(f.members), number: i, waited: c.invoked.Sub(m.since), cost: costs[i], billed: bills[i],
			ran: took[i],
		}
		if first := found[0].answer.BeganAt; !first.IsZero() && !found[i].answer.BeganAt.IsZero() {
			mine.part.turn = max(found[i].answer.BeganAt.Sub(first), 0)
		}
		if found[i].again { // it was stopped before it was begun
			mine.invoked, mine.answer, mine.part = time.Time{}, activities.FunctionAnswer{}, part{waited: c.ended.Sub(m.since)}
		}
		*m.call = mine
		m.landed <- found[i].landing
	}
	at.flying--
	at.waiting = append(again, at.waiting...)
	w.turn(stage, at)
}
