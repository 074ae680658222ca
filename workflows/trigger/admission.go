package trigger

import (
	"context"
	"slices"
	"sync"
	"time"
)

// admission lets starts of runs begin: no more at a time than its limiter says, and from the bindings that wait in
// turn, so that one that is flooded with events does not hold up another's. Its methods may be called concurrently.
type admission struct {
	born time.Time

	mu       sync.Mutex
	limiter  aimd
	underWay int
	turns    []string                   // bindings that wait, the next one first
	waiting  map[string][]chan struct{} // by binding, who came first is first
}

func newAdmission() *admission {
	return &admission{born: time.Now(), limiter: newAIMD(), waiting: map[string][]chan struct{}{}}
}

// start is one start that was let begin.
type start struct {
	admission *admission
	began     time.Duration
}

// enter waits for the turn of a start of this binding. Each start that it returns is to be ended with leave.
func (a *admission) enter(ctx context.Context, binding string) (*start, error) {
	turn := make(chan struct{})
	a.mu.Lock()
	if len(a.waiting[binding]) == 0 {
		a.turns = append(a.turns, binding)
	}
	a.waiting[binding] = append(a.waiting[binding], turn)
	a.admit()
	a.mu.Unlock()
	select {
	case <-turn:
	case <-ctx.Done():
		if !a.withdraw(binding, turn) {
			break // its turn came at the same moment
		}
		return nil, ctx.Err()
	}
	return &start{admission: a, began: time.Since(a.born)}, nil
}

// withdraw takes back a wait; it reports false when its turn has come.
func (a *admission) withdraw(binding string, turn chan struct{}) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.Index(a.waiting[binding], turn)
	if i < 0 {
		return false
	}
	a.waiting[binding] = slices.Delete(a.waiting[binding], i, i+1)
	if len(a.waiting[binding]) == 0 {
		delete(a.waiting, binding)
		a.turns = slices.DeleteFunc(a.turns, func(other string) bool { return other == binding })
	}
	return true
}

// leave says that the start is over, and whether it failed for a reason that may pass.
func (s *start) leave(failed bool) {
	a := s.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	full := a.underWay >= a.limiter.starts()
	a.underWay--
	a.limiter = a.limiter.after(sample{began: s.began, ended: time.Since(a.born), failed: failed, full: full})
	a.admit()
}

// admit lets as many begin as may, one of each binding in turn. The caller holds a.mu.
func (a *admission) admit() {
	for a.underWay < a.limiter.starts() && len(a.turns) > 0 {
		binding := a.turns[0]
		a.turns = a.turns[1:]
		queue := a.waiting[binding]
		if len(queue) > 1 {
			a.waiting[binding] = queue[1:]
			a.turns = append(a.turns, binding)
		} else {
			delete(a.waiting, binding)
		}
		a.underWay++
		close(queue[0])
	}
}

// limit is how many starts may be under way at a time now.
func (a *admission) limit() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.limiter.starts()
}
