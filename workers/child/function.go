package child

import (
	"context"
	"fmt"
	"log/slog"

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
		return stages.execute(ctx, predictor.Function, store, logger, invoke.Start, hooks{}), nil
	}
}
