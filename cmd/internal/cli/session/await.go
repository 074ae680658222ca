package session

import (
	"context"
	"errors"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

const (
	// startLimit bounds how long a run is waited for whose event was taken: in a burst, starts are admitted one after the
	// other. startPoll is the time between two looks.
	startLimit = time.Minute
	startPoll  = 100 * time.Millisecond
	// beganLimit bounds how long a run is waited for that nobody waits for, to say what is expected of it.
	beganLimit = 2 * time.Second
)

// Began returns a run whose event was just taken once it has begun, with what is expected of it; false where it has not
// within moments, or that cannot be told: it goes on all the same.
func (s *Session) Began(ctx context.Context, run string) (view ledger.RunView, began bool) {
	limited, cancel := context.WithTimeout(ctx, beganLimit)
	defer cancel()
	for {
		view, err := s.Client.Run(limited, run)
		if err == nil {
			return view, true
		}
		refused, isRefusal := errors.AsType[*web.Error](err)
		if !isRefusal || !refused.OnItsWay() || !wait.For(limited, startPoll) {
			return ledger.RunView{}, false
		}
	}
}

// AwaitRun returns once there is the run, or an error. One that is on its way is waited for: `spillway trigger` returns
// when the event is durable, which is before its run begins.
func (s *Session) AwaitRun(ctx context.Context, t *tool.Tool, run string) error {
	limit := time.Now().Add(startLimit)
	for isTold := false; ; {
		_, err := s.Client.Run(ctx, run)
		refused, isRefusal := errors.AsType[*web.Error](err)
		if !isRefusal || !refused.OnItsWay() || time.Now().After(limit) {
			return err
		}
		if !isTold && !t.Quiet {
			t.Complain("%s; waiting for the run\n", refused.Message)
			isTold = true
		}
		if !wait.For(ctx, startPoll) {
			return context.Cause(ctx)
		}
	}
}
