package traces

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Bounds of what is remembered: together about 30 MB when all are reached.
const (
	// mostRuns is how many runs may go on; the one that began first is exported as it stands when there are more.
	mostRuns = 8192
	// mostEnded is how many runs are remembered after their end, for Records that come late.
	mostEnded = 256
	// mostTasks is how many tasks are remembered. A task that is forgotten is exported as it stands; a Record of it that
	// is there twice, with so many others in between, is exported twice, under the same IDs.
	mostTasks = 65_536
	// mostSeen is how many attempts of a task are told from those that are there twice.
	mostSeen = 32
	// mostNotes is how many events a run's span keeps.
	mostNotes = 32
)

// run is what is remembered of a run.
type run struct {
	id, pipeline string
	begun        predictor.RunStarted // the zero value where only Records tell of the run
	trace        [16]byte
	sampled      bool
	parent       [8]byte // of the run's span
	remote       bool    // the parent is the event's publisher
	start, last  time.Time
	goal         predictor.Goal
	cost         quantity.Money
	attempts     int
	failed       int // attempts
	notes        []note
	tasks        map[string]*task
	over         bool
}

// task is what is remembered of a task.
type task struct {
	name, stage string
	start, end  time.Time
	attempts    int
	seen        []attemptKey // the newest of them
	last        ending       // of the attempt that ended last
	cost        quantity.Money
	exported    bool
}

// ending is how an attempt ended.
type ending struct {
	outcome predictor.Outcome
	cause   predictor.Cause
	message string
}

// attemptKey tells the attempts of a task apart.
type attemptKey struct {
	number   int
	poolOnly bool
}

// runs makes spans of events. What it returns depends on nothing but the events that it was given.
type runs struct {
	mostRuns, mostTasks int
	since               time.Time // what happened before makes no spans

	loud  bool // the event that is applied makes spans
	all   map[string]*run
	going int      // of all, those that are not over
	order []string // of those that go on, and of some that are over
	ended []string
	tasks []taskKey // in the order in which they were first seen, with some that are forgotten
	freed int       // of tasks, how many at the front are no more
}

type taskKey struct{ run, task string }

func newRuns(atMostRuns, atMostTasks int, since time.Time) *runs {
	return &runs{mostRuns: atMostRuns, mostTasks: atMostTasks, since: since, all: map[string]*run{}}
}

// apply returns the spans that are complete with event.
func (r *runs) apply(event predictor.Event) []span {
	r.loud = !event.When().Before(r.since)
	switch e := event.(type) {
	case predictor.RunStarted:
		return r.started(e)
	case predictor.GoalChanged:
		if known := r.all[e.Run]; known != nil && !known.over {
			known.goal = e.Goal
			known.note(goalNote(e))
		}
	case predictor.Reused:
		if known := r.all[e.Run]; known != nil && !known.over {
			known.note(reusedNote(e))
		}
	case predictor.Record:
		return r.recorded(e)
	case predictor.RunEnded:
		return r.finished(e)
	}
	return nil
}

func (r *runs) started(event predictor.RunStarted) []span {
	known, spans := r.run(event.Run, event.At)
	if known.begun.Run != "" {
		return spans // told before: a start is told at once, and durably with the end
	}
	known.begun, known.pipeline, known.goal = event, event.Pipeline, event.Goal
	known.begun.Input = nil
	known.start = event.At
	if known.attempts > 0 {
		return spans // the start was lost and is told with the end: what is exported is in a trace already
	}
	known.trace, known.sampled = wire.RunTrace(event.Run, event.Traceparent)
	place, brought := wire.ParseTraceparent(event.Traceparent)
	known.parent, known.remote = place.Span, brought
	if !event.EventAt.IsZero() {
		if r.keeps(known) {
			spans = append(spans, eventSpan(known))
		}
		known.parent, known.remote = eventSpanID(event.Run), false
	}
	return spans
}

func (r *runs) recorded(record predictor.Record) []span {
	known, spans := r.run(record.Run, record.ScheduledAt)
	of, more := r.task(known, record)
	spans = append(spans, more...)
	key := attemptKey{record.Attempt, record.PoolOnly}
	if slices.Contains(of.seen, key) {
		return spans
	}
	if of.seen = append(of.seen, key); len(of.seen) > mostSeen {
		of.seen = of.seen[1:]
	}
	of.attempts++
	start, parts := layout(record)
	if of.start.IsZero() || start.Before(of.start) {
		of.start = start
	}
	of.cost = of.cost.Plus(record.Cost)
	if !record.At.Before(of.end) {
		of.end, of.last = record.At, endingOf(record)
	}
	known.heard(record.At)
	known.cost = known.cost.Plus(record.Cost)
	known.attempts++
	if failure(record.Outcome) {
		known.failed++
	}
	if r.keeps(known) {
		spans = append(spans, attemptSpans(known, record, start, parts)...)
	}
	if record.Outcome == predictor.Succeeded || known.over {
		spans = append(spans, of.export(known, r.keeps(known))...)
	}
	return spans
}

func (r *runs) finished(event predictor.RunEnded) []span {
	known := r.all[event.Run]
	if known == nil || known.over {
		return nil
	}
	known.heard(event.At)
	spans := known.export(event.State, event.Error, false, r.keeps(known))
	known.over = true
	r.going--
	r.ended = append(r.ended, event.Run)
	if len(r.ended) > mostEnded {
		delete(r.all, r.ended[0])
		r.ended = r.ended[1:]
	}
	return spans
}

// run returns what is remembered of a run, from now on, and the spans of what had to be forgotten for it.
func (r *runs) run(id string, at time.Time) (*run, []span) {
	if known := r.all[id]; known != nil {
		return known, nil
	}
	known := &run{id: id, start: at, last: at, tasks: map[string]*task{}}
	known.trace, known.sampled = wire.RunTrace(id, "")
	r.all[id] = known
	r.going++
	r.order = append(r.order, id)
	if len(r.order) > 2*r.mostRuns { // half of them at least are over
		r.order = slices.DeleteFunc(r.order, func(id string) bool { return r.all[id] == nil || r.all[id].over })
	}
	var spans []span
	for r.going > r.mostRuns {
		oldest := r.all[r.order[0]]
		r.order = r.order[1:]
		if oldest == nil || oldest.over {
			continue
		}
		spans = append(spans, oldest.export(predictor.RunRunning, "", true, r.keeps(oldest))...)
		delete(r.all, oldest.id)
		r.going--
	}
	return known, spans
}

// task returns what is remembered of a record's task, from now on, and the spans of what had to be forgotten for it.
func (r *runs) task(of *run, record predictor.Record) (*task, []span) {
	if known := of.tasks[record.Task]; known != nil {
		return known, nil
	}
	known := &task{name: record.Task, stage: record.Stage.Name}
	of.tasks[record.Task] = known
	r.tasks = append(r.tasks, taskKey{of.id, record.Task})
	var spans []span
	for len(r.tasks)-r.freed > r.mostTasks {
		oldest := r.tasks[r.freed]
		r.tasks[r.freed] = taskKey{}
		r.freed++
		if owner := r.all[oldest.run]; owner != nil && owner.tasks[oldest.task] != nil {
			spans = append(spans, owner.tasks[oldest.task].export(owner, r.keeps(owner))...)
			delete(owner.tasks, oldest.task)
		}
	}
	if r.freed > len(r.tasks)/2 {
		r.tasks = append(r.tasks[:0], r.tasks[r.freed:]...)
		r.freed = 0
	}
	return known, spans
}

// keeps says whether the spans of a run that are complete now are wanted.
func (r *runs) keeps(of *run) bool { return r.loud && of.sampled }

// export returns the spans of the run and of its tasks that were not exported; none unless they are to be kept.
func (k *run) export(state predictor.RunState, message string, cut, keep bool) []span {
	open := make([]*task, 0, len(k.tasks))
	for _, one := range k.tasks {
		if !one.exported {
			open = append(open, one)
		}
	}
	slices.SortFunc(open, func(a, b *task) int {
		return cmp.Or(a.start.Compare(b.start), strings.Compare(a.name, b.name))
	})
	var spans []span
	for _, one := range open {
		spans = append(spans, one.export(k, keep)...)
	}
	if keep {
		spans = append(spans, runSpan(k, state, message, cut))
	}
	return spans
}

// export returns the span of the task unless it was exported; none unless it is to be kept.
func (t *task) export(of *run, keep bool) []span {
	if t.exported || t.attempts == 0 {
		return nil
	}
	t.exported = true
	if !keep {
		return nil
	}
	return []span{taskSpan(of, t)}
}

// heard notes that something of the run was heard at a time.
func (k *run) heard(at time.Time) {
	if at.After(k.last) {
		k.last = at
	}
}

func (k *run) note(n note) {
	k.heard(n.at)
	if len(k.notes) < mostNotes {
		k.notes = append(k.notes, n)
	}
}
