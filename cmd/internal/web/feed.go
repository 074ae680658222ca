package web

import (
	"sync"

	"github.com/spillway-ml/spillway/predictor"
)

// feedDecisions is how many decisions wait for one reader at most; a reader that is further behind misses the oldest and finds them in
// GET /api/v1/decisions.
const feedDecisions = 1000

// Feed tells the readers of GET /api/v1/stream what changed. The engine calls its methods as it folds events; they never block, and
// cost a map entry per reader. A Feed is safe for concurrent use; the zero value is ready.
type Feed struct {
	mutex   sync.Mutex
	readers map[*reader]struct{} // guarded by mutex
}

// RunChanged says that the view of run is another.
func (f *Feed) RunChanged(run string) {
	f.each(func(r *reader) {
		if r.run == "" || r.run == run {
			r.runs[run] = struct{}{}
			r.wake()
		}
	})
}

// Decided says that a decision was stored.
func (f *Feed) Decided(decision predictor.Decision) {
	f.each(func(r *reader) {
		if r.run != "" && decision.Run != "" && r.run != decision.Run {
			return
		}
		if len(r.decisions) == feedDecisions {
			r.decisions = r.decisions[1:]
		}
		r.decisions = append(r.decisions, decision)
		r.wake()
	})
}

// Planned says that plan is in force. Plans without a decision changed nothing and are not told.
func (f *Feed) Planned(plan predictor.Plan) {
	if len(plan.Decisions) == 0 {
		return
	}
	f.each(func(r *reader) {
		r.plan = &plan
		r.wake()
	})
}

func (f *Feed) each(tell func(*reader)) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for r := range f.readers {
		tell(r)
	}
}

// reader is one open stream: what it has to be told next.
type reader struct {
	feed *Feed
	run  string        // "" follows all runs
	news chan struct{} // of length 1: something waits

	// The fields below are guarded by feed.mutex.
	runs      map[string]struct{}
	decisions []predictor.Decision
	plan      *predictor.Plan
}

func (f *Feed) join(run string) *reader {
	r := &reader{feed: f, run: run, news: make(chan struct{}, 1), runs: map[string]struct{}{}}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.readers == nil {
		f.readers = map[*reader]struct{}{}
	}
	f.readers[r] = struct{}{}
	return r
}

func (r *reader) leave() {
	r.feed.mutex.Lock()
	defer r.feed.mutex.Unlock()
	delete(r.feed.readers, r)
}

// wake is called with the mutex held.
func (r *reader) wake() {
	select {
	case r.news <- struct{}{}:
	default: // it is awake already
	}
}

// take returns all that waits and forgets it.
func (r *reader) take() (runs []string, decisions []predictor.Decision, plan *predictor.Plan) {
	r.feed.mutex.Lock()
	defer r.feed.mutex.Unlock()
	for run := range r.runs {
		runs = append(runs, run)
	}
	clear(r.runs)
	decisions, plan = r.decisions, r.plan
	r.decisions, r.plan = nil, nil
	return runs, decisions, plan
}
