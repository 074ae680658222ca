package agent

import (
	"context"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

const (
	// heldEvery is how often it is told that the host is there: what it costs is owed by somebody, also while it is idle.
	heldEvery = time.Minute
	// heldGrace is how long the last such word may take when the agent ends.
	heldGrace = 2 * time.Second
)

// tellHeld tells at once, every minute, and when ctx has ended, for how long the host has been held since the last
// time. What could not be told is told before what comes next.
func (a *Agent) tellHeld(ctx context.Context) {
	if a.held == nil {
		return
	}
	untold := []predictor.HostHeld{}
	from := a.now()
	tell := func(ctx context.Context) {
		held := predictor.HostHeld{Host: a.id, Capacity: a.capacity(), PricePerHour: a.perHour(), From: from, At: a.now()}
		from = held.At
		for untold = append(untold, held); len(untold) > 0; untold = untold[1:] {
			// The same line is told again until it is taken: one that was stored although its acknowledgement was lost counts
			// once.
			if err := a.held(ctx, untold[0]); err != nil {
				a.logger.WarnContext(ctx, "the time for which the host is held was not taken; it is told later", "error", err)
				return
			}
		}
	}
	tell(ctx) // for no time yet: what the host costs is known from now on
	ticker := time.NewTicker(heldEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			tell(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), heldGrace)
			defer cancel()
			tell(last)
			return
		}
	}
}
