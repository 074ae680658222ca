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
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/predictor"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

var errAway = errors.New("no responders available for request")

// endAfter runs a pipeline that takes no time in Temporal's test environment, while the first ends that are told fail
// until NATS has been away for so long. It returns the environment and the end that was told at last.
func endAfter(
	t *testing.T, away time.Duration, pipeline func(workflow.Context, int) (int, error),
	during func(*testsuite.TestWorkflowEnvironment),
) (
	*testsuite.TestWorkflowEnvironment, *runs.Ended,
) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(time.Minute)
	start := env.Now()
	told := &runs.Ended{}
	ports := runs.Ports{End: func(_ context.Context, ended runs.Ended) error {
		if env.Now().Sub(start) < away {
			return errAway
		}
		*told = ended
		return nil
	}}
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	named := spillway.NewPipeline("named", pipeline)
	runs.Register(env, ports, []runs.AnyPipeline{named})
	if during != nil {
		during(env)
	}
	env.ExecuteWorkflow(named.Name(), 7)
	return env, told
}

func answer(_ workflow.Context, in int) (int, error) { return in, nil }

func TestARunThatSucceededEndsSoThoughNATSWasAwayForHours(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]time.Duration{
		"for a moment": time.Second, "for an hour": time.Hour,
		"for three days": 72 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, told := endAfter(t, away, answer, nil)
			var result int
			if err := env.GetWorkflowResult(&result); err != nil || result != 7 {
				t.Errorf("result %d, %v: want 7", result, err)
			}
			if told.Ended.State != predictor.RunSucceeded || told.Done.State != predictor.RunSucceeded {
				t.Errorf("told %+v, want an end that says it succeeded", told.Ended)
			}
			if late := env.Now().Sub(told.Ended.At) - away; late > 3*time.Minute {
				t.Errorf("it was told %s after NATS had come back", late)
			}
		})
	}
}

func TestACancelWhileTheEndCannotBeToldChangesNothing(t *testing.T) {
	t.Parallel()
	env, told := endAfter(t, time.Hour, answer, func(env *testsuite.TestWorkflowEnvironment) {
		env.RegisterDelayedCallback(env.CancelWorkflow, 30*time.Minute)
	})
	if err := env.GetWorkflowError(); err != nil || told.Ended.State != predictor.RunSucceeded {
		t.Errorf("ended with %v and told %q, want the result that the pipeline had returned before", err, told.Ended.State)
	}
}

func TestARunThatWasCancelledEndsSoThoughNATSWasAway(t *testing.T) {
	t.Parallel()
	env, told := endAfter(t, time.Hour, func(ctx workflow.Context, _ int) (int, error) {
		return 0, workflow.Sleep(ctx, time.Hour)
	}, func(env *testsuite.TestWorkflowEnvironment) {
		env.RegisterDelayedCallback(env.CancelWorkflow, time.Minute)
	})
	if err := env.GetWorkflowError(); err == nil || told.Ended.State != predictor.RunCancelled {
		t.Errorf("ended with %v and told %q, want cancelled", err, told.Ended.State)
	}
}

func TestTheTextOfAnErrorIsCutSoThatTheEndCanBeTold(t *testing.T) {
	t.Parallel()
	_, told := endAfter(t, 0, func(workflow.Context, int) (int, error) {
		return 0, errors.New("wrong: " + strings.Repeat("é", 1<<20))
	}, nil)
	if size := len(told.Done.Error); size > 17<<10 || !strings.HasPrefix(told.Ended.Error, "wrong: é") ||
		!strings.HasSuffix(told.Ended.Error, "…") {
		t.Errorf("told %d bytes that begin with %.20q, want at most 16 KiB, cut between two characters", size,
			told.Done.Error)
	}
}
