package child

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// ServeFunction runs attempts as a Lambda function until the environment is stopped. It does not return.
func ServeFunction(ctx context.Context, stages Stages, store activities.Store, logger *slog.Logger) {
	lambda.StartWithOptions(Function(stages, store, logger), lambda.WithContext(ctx))
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
		run := func(ctx context.Context) wire.Answer {
			return stages.execute(ctx, predictor.Function, store, logger, invoke.Start, hooks{})
		}
		if invoke.Start.Bound > 0 {
			return bounded(ctx, invoke.Start.Bound, run), nil
		}
		return run(ctx), nil
	}
}

// errBound is why the context of code ends that is near its bound.
var errBound = errors.New("the run's money for the attempt is used up")

// bounded ends the context of run a while before its bound. Code that does not stop then ends with its environment:
// what goes on costs money that the run does not have. An error is put down to the bound only where the context had
// ended because of it when the code did.
func bounded(ctx context.Context, bound time.Duration, run func(context.Context) wire.Answer) wire.Answer {
	ctx, cancel := context.WithTimeoutCause(ctx, bound-wire.BoundGrace(bound), errBound)
	defer cancel()
	answers := make(chan wire.Answer, 1)
	go func() {
		answer := run(ctx)
		if answer.Error != nil {
			answer.Error.Bounded = errors.Is(context.Cause(ctx), errBound)
		}
		answers <- answer
	}()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case answer := <-answers:
		return answer
	case <-timer.C:
		panic(wire.BoundPassed)
	}
}
