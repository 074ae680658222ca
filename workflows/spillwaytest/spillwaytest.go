// Package spillwaytest runs pipelines and stages in unit tests, without an engine, and replays recorded histories.
package spillwaytest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/child"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Run runs pipeline on input with the real code of its stages, in Temporal's test environment with a skipping clock,
// and returns its result.
func Run[In, Out any](
	tb testing.TB, pipeline workflows.Pipeline[In, Out], input In, stages ...runs.AnyStage,
) (Out, error) {
	tb.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(testTimeout)
	if err := env.SetMemoOnStart(map[string]any{runs.OptionsMemo: wire.RunOptions{Version: wire.WorkflowVersion}}); err !=
		nil {
		tb.Fatalf("start pipeline %s: %v", pipeline.Name(), err)
	}
	ports := runs.Ports{Stages: stages}
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	runs.Register(env, ports, []runs.AnyPipeline{pipeline})
	RegisterStages(tb, env, stages...)
	env.ExecuteWorkflow(pipeline.Name(), input)
	var out Out
	if err := env.GetWorkflowError(); err != nil {
		return out, fmt.Errorf("pipeline %s: %w", pipeline.Name(), err)
	}
	if err := env.GetWorkflowResult(&out); err != nil {
		return out, fmt.Errorf("pipeline %s: decode result: %w", pipeline.Name(), err)
	}
	return out, nil
}

// RegisterStages gives env the real code of stages, for tests that run a pipeline in a test environment of their own.
func RegisterStages(tb testing.TB, env *testsuite.TestWorkflowEnvironment, stages ...runs.AnyStage) {
	tb.Helper()
	invoke := child.Function(child.NewStages(stages), store(tb), slog.New(slog.DiscardHandler))
	for _, stage := range stages {
		env.RegisterActivityWithOptions(func(ctx context.Context, task wire.Task, encoded json.RawMessage) (wire.Result,
			error,
		) {
			defer beat(ctx)()
			answer, err := invoke(ctx, wire.Invoke{
				Version: wire.Version,
				Start: wire.StartAttempt{
					Task: task, Attempt: int(activity.GetInfo(ctx).Attempt), Input: encoded, Resume: task.Resume,
				},
			})
			if err != nil {
				return wire.Result{}, err
			}
			if answer.Error != nil {
				last := answer.Error.Permanent || int(activity.GetInfo(ctx).Attempt) >= task.MaxAttempts
				return wire.Result{}, temporal.NewApplicationErrorWithOptions(answer.Error.Message, wire.StageError,
					temporal.ApplicationErrorOptions{NonRetryable: last})
			}
			result := wire.Result{Output: answer.Output, Venue: predictor.Pool}
			if task.Tells {
				result.Checkpoint = task.Resume
				if answer.Checkpoint != nil {
					result.Checkpoint = *answer.Checkpoint
				}
				if answer.Progress != nil {
					result.Metrics = answer.Progress.Metrics
				}
				if task.Stretch != nil && answer.Curve != nil {
					var trail predictor.Trail
					trail.Follow(*answer.Curve, predictor.MostTrail)
					result.Prospect = trail.Prospect(*task.Stretch)
				}
			}
			return result, nil
		}, activity.RegisterOptions{Name: stage.Name()})
	}
}

// testTimeout bounds one run, in real time: stages run for real here and may train for a while.
const testTimeout = 10 * time.Minute

// beat sends heartbeats, as an engine does, until the returned function is called.
func beat(ctx context.Context) (stop func()) {
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				activity.RecordHeartbeat(ctx)
			}
		}
	}()
	return func() { close(ended); <-stopped }
}

// Context returns a context in which the function of a stage can be called directly.
func Context(tb testing.TB) context.Context {
	tb.Helper()
	return activities.NewContext(tb.Context(), &activities.Attempt{
		Run: tb.Name(), Stage: "test", Task: "test-0", Number: 1, Venue: predictor.Pool, Store: store(tb),
	})
}

func store(tb testing.TB) activities.Store {
	tb.Helper()
	files, err := artifact.Open(tb.TempDir())
	if err != nil {
		tb.Fatalf("artifact store: %v", err)
	}
	return files
}
