package training

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spillway-ml/spillway/workers/exec"
)

// mostRepeated bounds how long a training that is lost already is repeated to find out why.
const mostRepeated = 10 * time.Minute

// diverged says which tensor made an earlier step leave a parameter that is not finite: gradients are not looked at
// before they are applied, as nothing is clipped, so the steps since the newest checkpoint are repeated in a pipeline
// of their own, which looks at them. Every other error is returned as it is.
func (t *trainer) diverged(ctx context.Context, cause error) error {
	var loss *exec.LossError
	if !errors.Is(cause, exec.ErrLossBefore) || !errors.As(cause, &loss) {
		return cause
	}
	t.keeper.drain(ctx)
	until, ended := unlessStopped(ctx, t.job.Stop)
	defer ended()
	within, cancel := context.WithTimeout(until, mostRepeated)
	defer cancel()
	for {
		from, err := t.newest()
		if err != nil {
			return fmt.Errorf("%w; the steps before were not repeated to find it: %w", cause, err)
		}
		t.job.Logger.InfoContext(ctx, "steps are repeated to find the first tensor that is not finite", "from_step",
			from.Meta.Step, "to_step", loss.Step)
		again, err := t.repeated(within, from, loss.Step)
		switch {
		case errors.Is(context.Cause(until), ErrStopped): // it is lost all the same
			return fmt.Errorf("%w; the steps before were not repeated to the end to find it, as that was stopped", cause)
		case err != nil:
			return fmt.Errorf("%w; the steps before were repeated to find it, which failed: %w", cause, err)
		case again == nil:
			return cause // a GPU does not always do the same again
		case !errors.Is(again, exec.ErrLossBefore):
			return fmt.Errorf("step %d: %w", again.Step, again)
		case from.Directory == "" || !t.keeper.drop(from):
			return cause
		}
		t.job.Logger.WarnContext(ctx, "a checkpoint holds a parameter that is not finite", "checkpoint", from.Directory)
	}
}

// newest is the newest checkpoint that is good, as far as is known; one without a directory is the start.
func (t *trainer) newest() (exec.Checkpoint, error) {
	if good := t.keeper.newest(); good != "" {
		return openAbsolute(good)
	}
	return exec.Checkpoint{}, nil
}

// repeated trains from a checkpoint until a step's gradients are not finite, and no further than to the step last. It
// returns how that failed; nil where it did not.
func (t *trainer) repeated(ctx context.Context, from exec.Checkpoint, last int64) (_ *exec.LossError, err error) {
	// The pipeline that failed is done with, and the devices may have no room for two.
	if err := t.close(); err != nil {
		return nil, err
	}
	pipeline, err := t.job.Executor.Load(ctx, t.planned.layout)
	if err != nil {
		return nil, err
	}
	t.pipeline = pipeline
	if from.Directory != "" {
		if err := exec.Restore(ctx, pipeline, from); err != nil {
			return nil, err
		}
	}
	looking := t.job
	looking.ClipNorm = math.MaxFloat64 // multiplies gradients by 1, and looks at them
	engine, err := newEngine(looking, pipeline, t.planned.layout)
	if err != nil {
		return nil, err
	}
	for step := from.Meta.Step; step <= last; step++ {
		var loss *exec.LossError
		if _, err := engine.Step(ctx, step); errors.As(err, &loss) {
			return loss, nil
		} else if err != nil {
			return nil, err
		}
	}
	return nil, nil
}
