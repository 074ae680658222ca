package agent

import (
	"context"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/workers/slot"
)

const (
	// fencedAfter is the part of a lease after which an agent that could not renew it stops what it runs: of the five
	// seconds of loop.Lease one is left to kill it all, before the engine counts the host as lost.
	fencedAfter = 0.8
	// leaseTries is how many tries to renew a lease fit into it: one that is lost on the way must not keep the next back.
	leaseTries = 4
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
	return f.sent + time.Duration(fencedAfter*float64(f.lease)) - f.now()
}

// renew notes that a renewal was taken that was sent then.
func (f *fence) renew(sent time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
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
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			left := f.left()
			if left <= 0 {
				f.mu.Lock()
				f.held = false
				f.mu.Unlock()
				cancel(slot.ErrFenced)
				return
			}
			timer := time.NewTimer(left)
			select {
			case <-timer.C:
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
