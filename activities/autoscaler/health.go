package autoscaler

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// errNoTerm says that a leader has not decided anything yet.
var errNoTerm = errors.New("it waits for the lease, or for what happened before to be taken in")

// health is what others may know of a leader while it leads. Its methods are safe for concurrent use.
type health struct {
	mu     sync.Mutex
	last   time.Time // guarded by mu: when a decision was last in force; zero before the first
	reason error     // guarded by mu: what went wrong since; nil for nothing
}

// decided says that what was decided now is in force.
func (h *health) decided() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last, h.reason = time.Now(), nil
}

// failed says what keeps decisions from being in force.
func (h *health) failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reason = err
}

// Health is nil while this process leads the loop: its lease is renewed, and what it decides is in force, also where
// that does not change. Else it says why not. What passes within the time of a lease is no illness.
func (l *Leader) Health() error {
	l.health.mu.Lock()
	defer l.health.mu.Unlock()
	silent := time.Since(l.health.last)
	switch {
	case silent <= l.lasts:
		return nil
	case l.health.reason != nil:
		return fmt.Errorf("nobody leads the loop, so nothing new is granted: %w", l.health.reason)
	case l.health.last.IsZero():
		return fmt.Errorf("nobody leads the loop yet: %w", errNoTerm)
	default:
		return fmt.Errorf("nobody leads the loop, so nothing new is granted: nothing was decided for %v",
			silent.Round(time.Second))
	}
}
