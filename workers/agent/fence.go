package agent

import (
	"context"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/workers/slot"
)

const (
	// fencedAfter is the part of a lease after which an agent that could not renew it stops what it runs: of the fifteen
	// seconds of loop.Lease three are left to kill it all, before the engine counts the host as lost.
	fencedAfter = 0.8
	// leaseTries is how many tries to renew a lease fit into it: one that is lost on the way must not keep the next back.
	leaseTries = 6
	// fenceLooks is how often the fence looks at the clock within a lease: what runs on after a machine has slept ends
	// within that part of it.
	fenceLooks = 50
)

// fence knows until when the engine is sure to take the host to be there, by the clock of this machine alone: a lease
// lasts from when the engine took it, which is after it was sent. A nil fence is always open, for an agent that has no
// lease to lose.
type fence struct {
	lease time.Duration
	now   func() time.Duration // since any moment; it goes on while the machine sleeps

	mu      sync.Mutex
	sent    time.Duration // when the renewal was sent that was taken last; guarded by mu
	held    bool          // a renewal was taken since the fence was shut; guarded by mu
	gaps    int           // how often the lease had ended, or may have, when it was renewed; guarded by mu
	renewed chan struct{} // closed and replaced at each renewal; guarded by mu
}

// newFence returns one that is shut until the first renewal; nil where there is no lease.
func newFence(lease time.Duration, now func() time.Duration) *fence {
	if lease <= 0 {
		return nil
	}
	return &fence{lease: lease, now: now, renewed: make(chan struct{})}
}

// left is for how long attempts may go on without another renewal; 0 or less when they may not.
func (f *fence) left() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.held {
		return 0
	}
	return f.until() - f.now()
}

// until is when the fence shuts without another renewal. The caller holds mu.
func (f *fence) until() time.Duration { return f.sent + time.Duration(fencedAfter*float64(f.lease)) }

// leftOf is left for who has seen so many gaps, with what tells of the next renewal.
func (f *fence) leftOf(gaps int) (left time.Duration, renewed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.held || f.gaps != gaps {
		return 0, f.renewed
	}
	return f.until() - f.now(), f.renewed
}

// renew notes that a renewal was taken that was sent then.
func (f *fence) renew(sent time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held && f.now() >= f.until() {
		f.gaps++ // who held it until then must not take it for the same: this process may have slept
	}
	f.sent, f.held = max(f.sent, sent), true
	close(f.renewed)
	f.renewed = make(chan struct{})
}

// try bounds one try to renew the lease, and returns what notes that it was taken.
func (f *fence) try(ctx context.Context) (trying context.Context, taken, done func()) {
	if f == nil {
		return ctx, func() {}, func() {}
	}
	sent := f.now()
	trying, cancel := context.WithTimeout(ctx, f.lease/leaseTries)
	return trying, func() { f.renew(sent) }, cancel
}

// await returns once the lease is held, or ctx has ended, and reports whether it is.
func (f *fence) await(ctx context.Context) bool {
	for f != nil && ctx.Err() == nil {
		f.mu.Lock()
		renewed := f.renewed
		f.mu.Unlock()
		if f.left() > 0 {
			break
		}
		select {
		case <-renewed:
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// guard returns a context that ends with ctx, or with the cause slot.ErrFenced once the lease could not be renewed for
// too long: then the fence is shut until the next renewal. Release ends it and waits for what watches.
func (f *fence) guard(ctx context.Context) (guarded context.Context, release func()) {
	guarded, cancel := context.WithCancelCause(ctx)
	if f == nil {
		return guarded, func() { cancel(nil) }
	}
	f.mu.Lock()
	gaps := f.gaps
	f.mu.Unlock()
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			left, renewed := f.leftOf(gaps)
			if left <= 0 {
				f.mu.Lock()
				f.held = false
				f.mu.Unlock()
				cancel(slot.ErrFenced)
				return
			}
			// A timer stands still while the machine sleeps, so it is looked more often than must be.
			timer := time.NewTimer(min(left, f.lease/fenceLooks))
			select {
			case <-timer.C:
			case <-renewed:
				timer.Stop()
			case <-guarded.Done():
				timer.Stop()
				return
			}
		}
	})
	return guarded, func() { cancel(nil); watching.Wait() }
}

// began is when this process was, by the clock that package time goes by.
var began = time.Now()
