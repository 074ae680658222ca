package child

import (
	"context"
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

// Function returns the handler of an invoke. User errors are part of the Answer: a function error means that the environment failed.
func Function(stages Stages, store activities.Store, logger *slog.Logger) func(context.Context, wire.Invoke) (wire.Answer, error) {
	return func(ctx context.Context, invoke wire.Invoke) (wire.Answer, error) {
		if invoke.Version != wire.Version {
			return wire.Answer{}, fmt.Errorf("invoke: %w: %d, this build reads %d", wire.ErrVersion, invoke.Version, wire.Version)
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

// boundGrace is how long code may take to stop at its bound.
const boundGrace = 500 * time.Millisecond

// bounded ends the context of run at its bound. Code that does not stop then ends with its environment: what goes on costs money that the run
// does not have.
func bounded(ctx context.Context, bound time.Duration, run func(context.Context) wire.Answer) wire.Answer {
	ctx, cancel := context.WithTimeout(ctx, max(bound-boundGrace, 1))
	defer cancel()
	answers := make(chan wire.Answer, 1)
	go func() { answers <- run(ctx) }()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case answer := <-answers:
		if answer.Error != nil && ctx.Err() != nil {
			answer.Error.Bounded = true
		}
		return answer
	case <-timer.C:
		panic(wire.BoundPassed)
	}
}
