package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
)

// ErrLeaseExpired says that the lease could not be renewed for half of the time that it lasts, so that another process
// may take it soon.
var ErrLeaseExpired = errors.New("the lease could not be renewed in time")

// renewal renews the lease and knows when it was last renewed.
type renewal struct {
	lasts time.Duration
	born  time.Time
	last  atomic.Int64 // since born
}

// newRenewal returns a renewal of a lease that was taken after taken.
func newRenewal(lasts time.Duration, taken time.Time) *renewal {
	return &renewal{lasts: lasts, born: taken}
}

// left is how long the leader may go on without another renewal; it is not positive once the lease has expired for it.
// A leader whose process was suspended finds out here, before it acts.
func (r *renewal) left() time.Duration {
	return r.lasts/2 - (time.Since(r.born) - time.Duration(r.last.Load()))
}

// run renews until ctx ends, and returns nil then; else it returns why the leader must stop.
func (r *renewal) run(ctx context.Context, renew func(ctx context.Context) error) error {
	for ctx.Err() == nil {
		if err := r.once(ctx, r.lasts/4, renew); err != nil { // two tries of a NATS that is slow
			return err
		}
		wait.For(ctx, min(r.lasts/renewalsPerLease, r.left()))
	}
	return nil
}

// once tries one renewal, for as long as there is time for it. One that failed is no error while the next may succeed
// in time.
func (r *renewal) once(ctx context.Context, limit time.Duration, renew func(ctx context.Context) error) error {
	began := time.Since(r.born)
	ctx, cancel := context.WithTimeout(ctx, min(limit, r.left()))
	defer cancel()
	err := renew(ctx)
	switch {
	case err == nil:
		r.last.Store(int64(began)) // others see it later, and count from then
		return nil
	case errors.Is(err, ErrLeaseLost):
		return err
	case r.left() <= 0:
		return fmt.Errorf("%w: %w", ErrLeaseExpired, err)
	default:
		return nil
	}
}
