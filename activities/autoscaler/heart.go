package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
)

// beatsPerTimeout is how many heartbeats fit into the timeout: with five, two may be lost in a row before a leader falls silent.
const beatsPerTimeout = 5

// heart sends heartbeats and knows when the last one was acknowledged.
type heart struct {
	timeout time.Duration
	born    time.Time
	last    atomic.Int64 // since born
}

// newHeart returns a heart that counts its birth as the first beat: Temporal has just handed out the task.
func newHeart(timeout time.Duration) *heart {
	return &heart{timeout: timeout, born: time.Now()}
}

// left is how long the leader may go on without another beat; it is not positive once it has fallen silent. A leader whose process was
// suspended finds out here, before it acts.
func (h *heart) left() time.Duration {
	return h.timeout/2 - (time.Since(h.born) - time.Duration(h.last.Load()))
}

// run beats until ctx ends, and returns nil then; else it returns why the leader must stop.
func (h *heart) run(ctx context.Context, beat func(ctx context.Context) error) error {
	every := h.timeout / beatsPerTimeout
	for ctx.Err() == nil {
		if err := h.once(ctx, every, beat); err != nil {
			return err
		}
		timer := time.NewTimer(min(every, h.left()))
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
	return nil
}

// once tries one heartbeat, for as long as there is time for it. A beat that was lost is no error while the next one may arrive in time.
func (h *heart) once(ctx context.Context, limit time.Duration, beat func(ctx context.Context) error) error {
	began := time.Since(h.born)
	ctx, cancel := context.WithTimeout(ctx, min(limit, h.left()))
	defer cancel()
	err := beat(ctx)
	switch {
	case err == nil:
		h.last.Store(int64(began)) // Temporal counts from when it got the beat, which is later
	case final(err):
		err = fmt.Errorf("heartbeat: %w", err)
	case h.left() <= 0:
		err = errors.Join(ErrSilent, err)
	default:
		err = nil
	}
	return err
}

// final reports whether Temporal has answered that this attempt no longer leads.
func final(err error) bool {
	var gone *serviceerror.NotFound
	return errors.As(err, &gone) || temporal.IsCanceledError(err) ||
		errors.Is(err, activity.ErrActivityPaused) || errors.Is(err, activity.ErrActivityReset)
}
