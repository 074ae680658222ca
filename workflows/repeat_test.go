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
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
)

// The sample of a run that goes on for ever, as the README has it: it folds each batch of numbers that a signal brings
// into a mean.
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
	return (in.Before.Mean*float64(in.Before.Batches) + float64(sum)/float64(len(in.Numbers))) /
		float64(in.Before.Batches+1), nil
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

// watching is a test environment of the sample in which Temporal suggests to continue as new, or does not, and signals
// come, one or so many at a time, two times.
func watching(t *testing.T, suggested bool, signals, events int, in running) *testsuite.TestWorkflowEnvironment {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	if err := env.SetMemoOnStart(map[string]any{runs.OptionsMemo: wire.RunOptions{Version: wire.WorkflowVersion}}); err !=
		nil {
		t.Fatal(err)
	}
	env.SetContinueAsNewSuggested(suggested)
	env.SetCurrentHistoryLength(events)
	ports := runs.Ports{Stages: []runs.AnyStage{learn}}
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	pipeline := spillway.NewPipeline("watch", watch)
	runs.Register(env, ports, []runs.AnyPipeline{pipeline})
	spillwaytest.RegisterStages(t, env, learn)
	for i := range 2 {
		env.RegisterDelayedCallback(func() {
			for range signals {
				env.SignalWorkflow("batch", []int{1, 3})
			}
		}, time.Duration(i+1)*time.Second)
	}
	env.ExecuteWorkflow(pipeline.Name(), in)
	return env
}

func TestRepeatGoesOnUntilItStopsOrIsToContinueAsNew(t *testing.T) {
	t.Parallel()
	var stopped running
	env := watching(t, false, 1, 0, running{Last: 2})
	if err := env.GetWorkflowResult(&stopped); err != nil || stopped != (running{Batches: 2, Mean: 2, Last: 2}) {
		t.Errorf("the sample ended with %+v, %v; want two batches", stopped, err)
	}
	for name, c := range map[string]struct {
		signals, events int // at a time; of the history
		batches         int
	}{
		"each signal was read":        {signals: 1, batches: 1},
		"signals came during a step":  {signals: 3, batches: 3},
		"the history is nearly full":  {signals: 3, events: 46_080, batches: 1},
		"the history is not full yet": {signals: 3, events: 46_079, batches: 3},
	} {
		env := watching(t, true, c.signals, c.events, running{Last: 7})
		var continued *workflow.ContinueAsNewError
		if err := env.GetWorkflowError(); !errors.As(err, &continued) {
			t.Fatalf("%s: got %v, want that it continues as new", name, err)
		}
		var next running
		want := running{Batches: c.batches, Mean: 2, Last: 7}
		if err := converter.GetDefaultDataConverter().FromPayloads(continued.Input, &next); err != nil || next != want {
			t.Errorf("%s: it continues with %+v, %v; want %+v", name, next, err, want)
		}
	}
}

func TestARunContinuesAsNewOnceItsChunksAreOver(t *testing.T) {
	t.Parallel()
	began, over := 0, 0
	_, err := budgeted(t, 0, wire.WorkflowVersion, nil, func(ctx workflow.Context) error {
		group, cancel := workflow.WithCancel(ctx)
		workflow.Go(ctx, func(ctx workflow.Context) {
			_ = workflow.Await(ctx, func() bool { return began == 2 })
			cancel()
		})
		if _, err := cheap.Map(group, costing(2, 1)); !temporal.IsCanceledError(err) {
			return err
		}
		return workflow.NewContinueAsNewError(ctx, "spender", 0)
	}, func(env *testsuite.TestWorkflowEnvironment) {
		env.SetOnChildWorkflowStartedListener(func(*workflow.Info, workflow.Context, converter.EncodedValues) { began++ })
		env.SetOnChildWorkflowCompletedListener(func(*workflow.Info, converter.EncodedValue, error) { over++ })
	})
	if !workflow.IsContinueAsNewError(err) {
		t.Fatalf("got %v, want that it continues as new", err)
	}
	if began != 2 || over != began {
		t.Errorf("it continued when %d of %d chunks were over", over, began)
	}
}

// TestEachPartOfARunTellsItsStart: whoever has lost the first word, or has forgotten it, hears of the run again.
func TestEachPartOfARunTellsItsStart(t *testing.T) {
	t.Parallel()
	begun := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	if err := env.SetMemoOnStart(map[string]any{
		runs.OptionsMemo: wire.RunOptions{Version: wire.WorkflowVersion}, runs.GoalMemo: spillway.Goal{Budget: 7},
		runs.EventMemo:   "e1",
		runs.CarriedMemo: map[string]any{"started_at": begun},
	}); err != nil {
		t.Fatal(err)
	}
	var told []predictor.RunStarted
	ports := runs.Ports{App: "app", Build: "b1", Tell: func(event predictor.Event) {
		if started, ok := event.(predictor.RunStarted); ok {
			told = append(told, started)
		}
	}}
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	pipeline := spillway.NewPipeline("idle", func(_ workflow.Context, in int) (int, error) { return in, nil })
	runs.Register(env, ports, []runs.AnyPipeline{pipeline})
	env.ExecuteWorkflow(pipeline.Name(), 3)
	if err := env.GetWorkflowError(); err != nil || len(told) != 1 {
		t.Fatalf("the start was told %d times, %v; want once", len(told), err)
	}
	if one := told[0]; !one.At.Equal(begun) || one.Pipeline != "idle" || one.Goal.Budget != 7 || one.Event != "e1" {
		t.Errorf("got %+v, want the start of the whole run, with its goal and event", one)
	}
}
