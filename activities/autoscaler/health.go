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
	server string    // guarded by mu: the name of the server that was seen to lead last, where that is another
	seen   time.Time // guarded by mu: when its lease was last seen renewed; zero before the first
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

// follows says that another process was seen to renew its lease.
func (h *health) follows(server string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.server, h.seen, h.reason = server, time.Now(), nil
}

// Standing is who leads the loop, as one process sees it.
type Standing struct {
	// Own says that this process does: what it decides has come into force within the time of a lease.
	Own bool
	// Other says that another process does: its lease was seen renewed within the time that it lasts.
	Other bool
	// Server is the name of the other's server; empty where it does not say.
	Server string
}

// Standing says who leads. Where neither does, nobody is known to.
func (l *Leader) Standing() Standing {
	l.health.mu.Lock()
	defer l.health.mu.Unlock()
	decided, seen := l.health.last, l.health.seen
	switch {
	case !decided.IsZero() && decided.After(seen) && time.Since(decided) <= l.lasts:
		return Standing{Own: true}
	case !seen.IsZero() && time.Since(seen) <= l.lasts:
		return Standing{Other: true, Server: l.health.server}
	default:
		return Standing{}
	}
}

// Health is nil while somebody leads the loop: this process, whose lease is renewed, and what it decides is in force,
// also where that does not change; or another, whose lease is seen renewed. Else it says why not. What passes within
// the time of a lease is no illness.
func (l *Leader) Health() error {
	l.health.mu.Lock()
	defer l.health.mu.Unlock()
	silent := time.Since(l.health.last)
	switch {
	case silent <= l.lasts, time.Since(l.health.seen) <= l.lasts:
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
