package runs

import (
	"context"
	"encoding/json"
	"errors"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// DefaultMaxAttempts is how often a stage may fail when its hints do not say.
const DefaultMaxAttempts = 3

// InputError is the type of the application error with which a run fails whose input its own Validate refuses.
const InputError = "SpillwayInput"

var (
	// ErrInput is wrapped by Call and Recommend of a stage when the encoded input does not decode: no retry can help.
	ErrInput = errors.New("input does not decode")
	// ErrHostRuns is wrapped by Call of a command stage: it has no function to call.
	ErrHostRuns = errors.New("a host runs the program of a command stage")
)

// AnyStage is a stage of any input and output.
type AnyStage interface {
	Name() string
	Describe() wire.Stage
	Call(ctx context.Context, input json.RawMessage) (json.RawMessage, error)
	Recommend(ctx context.Context, input json.RawMessage, proposed wire.Proposal) (quantity.Size, error)
}

// AnyPipeline is a pipeline of any input and output.
type AnyPipeline interface {
	Name() string
	Describe() (wire.Pipeline, error)
	// CheckInput returns why the pipeline does not take an encoded input; nil where it does.
	CheckInput(input json.RawMessage) error
	Workflow() any
}

// Start calls a stage once and returns the future of its encoded output.
func Start(ctx workflow.Context, stage wire.Stage, input json.RawMessage) workflow.Future {
	done, settle := workflow.NewFuture(ctx)
	r := runOf(ctx)
	call, err := r.newCall(stage, input)
	if err != nil {
		settle.SetError(err)
		return done
	}
	r.open++
	workflow.Go(ctx, func(ctx workflow.Context) {
		defer func() { r.open-- }()
		output, err := r.perform(ctx, call)
		settle.Set(output, err)
	})
	return done
}

// Map calls a stage once for every input and returns the encoded outputs in the order of the inputs.
func Map(ctx workflow.Context, stage wire.Stage, inputs []json.RawMessage) ([]json.RawMessage, error) {
	return runOf(ctx).fanOut(ctx, stage, inputs)
}

// Settled waits until nothing of the run is in flight.
func Settled(ctx workflow.Context) error { return runOf(ctx).finished(ctx) }
