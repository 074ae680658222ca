package autoscaler

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// errNoTerm says that a leader has not decided anything yet.
var errNoTerm = errors.New("it waits for the lease, or for what happened before to be taken in")

// pulse is what others may know of a leader while it leads. Its methods are safe for concurrent use.
type pulse struct {
	mu     sync.Mutex
	last   time.Time // guarded by mu: when a decision was last in force; zero before the first
	reason error     // guarded by mu: what went wrong since; nil for nothing
}

// beat says that what was decided now is in force.
func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.reason = time.Now(), nil
}

// stumble says what keeps decisions from being in force.
func (p *pulse) stumble(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reason = err
}

// Health is nil while this process leads the loop: its lease is renewed, and what it decides is in force, also where that does not change. Else it
// says why not. What passes within the time of a lease is no illness.
func (l *Leader) Health() error {
	l.pulse.mu.Lock()
	defer l.pulse.mu.Unlock()
	silent := time.Since(l.pulse.last)
	switch {
	case silent <= l.lasts:
		return nil
	case l.pulse.reason != nil:
		return fmt.Errorf("nobody leads the loop, so nothing new is granted: %w", l.pulse.reason)
	case l.pulse.last.IsZero():
		return fmt.Errorf("nobody leads the loop yet: %w", errNoTerm)
	default:
		return fmt.Errorf("nobody leads the loop, so nothing new is granted: nothing was decided for %v", silent.Round(time.Second))
	}
}
