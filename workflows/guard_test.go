package workflows_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/predictor"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
)

var unused = spillway.NewStage("unused", func(_ context.Context, in int) (int, error) { return in, nil })

func TestAPanicOfThePipelineFailsTheRunAndSaysWhere(t *testing.T) {
	t.Parallel()
	for name, pipeline := range map[string]func(workflow.Context, int) (int, error){
		"in the pipeline's function": func(workflow.Context, int) (int, error) { panic("no such column") },
		"in a coroutine that it waits for": func(ctx workflow.Context, _ int) (int, error) {
			done := workflow.NewChannel(ctx)
			workflow.Go(ctx, func(ctx workflow.Context) {
				if _, err := unused.Run(ctx, 1); err != nil {
					return
				}
				panic("no such column")
			})
			done.Receive(ctx, nil) // nobody sends: without the panic's failure the run would wait for ever
			return 0, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := spillwaytest.Run(t, spillway.NewPipeline("panicky", pipeline), 1, unused)
			var failed *temporal.ApplicationError
			if !errors.As(err, &failed) || failed.Type() != runs.PanicError || !failed.NonRetryable() ||
				!strings.Contains(failed.Message(), "no such column") {
				t.Fatalf("got %v, want a final failure of type %s", err, runs.PanicError)
			}
			var stack string
			if err := failed.Details(&stack); err != nil || !strings.Contains(stack, "guard_test.go") {
				t.Errorf("its details are %q (%v), want the stack", stack, err)
			}
		})
	}
}

// TestAMapThatFailsTakesBackWhatItAnnounced has a pipeline that goes on without it.
func TestAMapThatFailsTakesBackWhatItAnnounced(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(20 * time.Second)
	most, left := 0, 0
	ports := runs.Ports{Stages: []runs.AnyStage{picky}, Tell: func(event predictor.Event) {
		if e, is := event.(predictor.Scheduled); is {
			left = max(0, left-e.Tasks-e.Withdrawn) + e.Expected
			most = max(most, left)
		}
	}}
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	pipeline := spillway.NewPipeline("tolerant", func(ctx workflow.Context, inputs []int) (int, error) {
		if _, err := picky.Map(ctx, inputs); err == nil {
			return 0, errors.New("no shard has failed")
		}
		return left, nil
	})
	runs.Register(env, ports, []runs.AnyPipeline{pipeline})
	spillwaytest.RegisterStages(t, env, picky)
	inputs := make([]int, 600)
	for i := range inputs {
		inputs[i] = i
	}
	env.ExecuteWorkflow(pipeline.Name(), inputs)
	var after int
	if err := env.GetWorkflowResult(&after); err != nil || most != len(inputs) || after != 0 {
		t.Errorf("of %d tasks that were announced %d are to come after it has failed: %v", most, after, err)
	}
}

func TestAPanicInAChunkOfAMapIsNoSilence(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(20 * time.Second)
	ports := runs.Ports{Stages: []runs.AnyStage{unused}, Tell: func(event predictor.Event) {
		if scheduled, is := event.(predictor.Scheduled); is && scheduled.Tasks > 0 {
			panic("no such shard")
		}
	}}
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	pipeline := spillway.NewPipeline("mapping", unused.Map)
	runs.Register(env, ports, []runs.AnyPipeline{pipeline})
	spillwaytest.RegisterStages(t, env, unused)
	env.ExecuteWorkflow(pipeline.Name(), []int{1, 2})
	if err := env.GetWorkflowError(); err == nil || !strings.Contains(err.Error(), "no such shard") {
		t.Errorf("got %v, want what the chunk panicked with", err)
	}
}
