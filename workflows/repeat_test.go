package workflows_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
)

// The sample of a run that goes on for ever, as the README has it: it folds each batch of numbers that a signal brings into a mean.
type running struct {
	Batches int     `json:"batches,omitempty"`
	Mean    float64 `json:"mean,omitempty"`
	Last    int     `json:"last,omitempty"` // after how many batches it ends; 0 is never
}

type batch struct {
	Before  running `json:"before"`
	Numbers []int   `json:"numbers"`
}

var learn = spillway.NewStage("learn", func(_ context.Context, in batch) (float64, error) {
	sum := 0
	for _, n := range in.Numbers {
		sum += n
	}
	return (in.Before.Mean*float64(in.Before.Batches) + float64(sum)/float64(len(in.Numbers))) / float64(in.Before.Batches+1), nil
})

func watch(ctx workflow.Context, in running) (running, error) {
	return spillway.Repeat(ctx, in, func(ctx workflow.Context, state running) (running, error) {
		var numbers []int
		workflow.GetSignalChannel(ctx, "batch").Receive(ctx, &numbers)
		mean, err := learn.Run(ctx, batch{Before: state, Numbers: numbers})
		state.Mean, state.Batches = mean, state.Batches+1
		if err == nil && state.Batches == state.Last {
			err = spillway.ErrStop
		}
		return state, err
	})
}

// watching is a test environment of the sample in which Temporal suggests to continue as new, or does not, and a signal comes.
func watching(t *testing.T, suggested bool, in running) *testsuite.TestWorkflowEnvironment {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	if err := env.SetMemoOnStart(map[string]any{spillway.OptionsMemo: wire.RunOptions{Version: wire.WorkflowVersion}}); err != nil {
		t.Fatal(err)
	}
	env.SetContinueAsNewSuggested(suggested)
	host := spillway.Host{Stages: []spillway.AnyStage{learn}}
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{spillway.NewInterceptor(host)}})
	pipeline := spillway.NewPipeline("watch", watch)
	spillway.Register(env, host, []spillway.AnyPipeline{pipeline})
	spillwaytest.RegisterStages(t, env, learn)
	for i := range 2 {
		env.RegisterDelayedCallback(func() { env.SignalWorkflow("batch", []int{1, 3}) }, time.Duration(i+1)*time.Second)
	}
	env.ExecuteWorkflow(pipeline.Name(), in)
	return env
}

func TestRepeatGoesOnUntilItStopsOrIsToContinueAsNew(t *testing.T) {
	t.Parallel()
	var stopped running
	env := watching(t, false, running{Last: 2})
	if err := env.GetWorkflowResult(&stopped); err != nil || stopped != (running{Batches: 2, Mean: 2, Last: 2}) {
		t.Errorf("the sample ended with %+v, %v; want two batches", stopped, err)
	}
	env = watching(t, true, running{Last: 5})
	var continued *workflow.ContinueAsNewError
	if err := env.GetWorkflowError(); !errors.As(err, &continued) {
		t.Fatalf("got %v, want that it continues as new", err)
	}
	var next running
	if err := converter.GetDefaultDataConverter().FromPayloads(continued.Input, &next); err != nil || next != (running{Batches: 1, Mean: 2, Last: 5}) {
		t.Errorf("it continues with %+v, %v; want the state after one batch", next, err)
	}
}
