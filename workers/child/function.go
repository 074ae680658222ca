package child

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// ServeFunction runs attempts as a Lambda function until the environment is stopped. It does not return.
func ServeFunction(ctx context.Context, stages Stages, store activities.Store, logger *slog.Logger) {
	single, batch := Function(stages, store, logger), Batch(stages, store, logger, os.Stderr)
	lambda.StartWithOptions(func(ctx context.Context, invoke wire.Invoke) (any, error) {
		if len(invoke.More) > 0 {
			return batch(ctx, invoke)
		}
		return single(ctx, invoke)
	}, lambda.WithContext(ctx))
}

// Function returns the handler of an invoke. User errors are part of the Answer: a function error means that the
// environment failed.
func Function(
	stages Stages, store activities.Store, logger *slog.Logger,
) func(context.Context, wire.Invoke) (wire.Answer, error) {
	return func(ctx context.Context, invoke wire.Invoke) (wire.Answer, error) {
		if invoke.Version != wire.Version {
			return wire.Answer{}, fmt.Errorf("invoke: %w: %d, this build reads %d", wire.ErrVersion, invoke.Version,
				wire.Version)
		}
		limit(invoke.Start.Grant, false)
		run := func(ctx context.Context) (wire.Answer, error) {
			return stages.execute(ctx, predictor.Function, store, logger, invoke.Start, hooks{}), nil
		}
		if bound := invoke.Start.Bound; bound > 0 {
			return within(ctx, limits{
				stop: bound - wire.BoundGrace(bound), end: bound, cause: errBound, says: wire.BoundPassed,
				note: func(failure *wire.StageFailure) { failure.Bounded = true },
			}, run)
		}
		return run(ctx)
	}
}

// errBound is why the context of code ends that is near its bound.
var errBound = errors.New("the run's money for the attempt is used up")

// limits are when the context of code ends, and when its environment does.
type limits struct {
	stop, end time.Duration
	cause     error  // of the context's end
	says      string // what the environment ends with
	note      func(*wire.StageFailure)
}

// within ends the context of run a while before its limit. Code that does not stop then ends with its environment:
// what goes on costs money that the run does not have, or time that others need. An error is put down to the limit only
// where the context had ended because of it when the code did.
func within(
	ctx context.Context, limits limits, run func(context.Context) (wire.Answer, error),
) (wire.Answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limits.stop, limits.cause)
	defer cancel()
	type ended struct {
		answer wire.Answer
		err    error
	}
	answers := make(chan ended, 1)
	go func() {
		answer, err := run(ctx)
		if answer.Error != nil && errors.Is(context.Cause(ctx), limits.cause) {
			limits.note(answer.Error)
		}
		answers <- ended{answer, err}
	}()
	timer := time.NewTimer(limits.end)
	defer timer.Stop()
	select {
	case got := <-answers:
		return got.answer, got.err
	case <-timer.C:
		panic(limits.says)
	}
}
