package runs

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/activity"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// TestTheAttemptsThatAVenueUsedUpAreNotThePools has a function give a task up after so many failures.
func TestTheAttemptsThatAVenueUsedUpAreNotThePools(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ allowed, failed, left int }{{3, 0, 3}, {3, 1, 2}, {2, 1, 1}, {1, 1, 1}, {0, 1, 1}} {
		tasks := givenUp(t, wire.WorkflowVersion, c.allowed, c.failed)
		if len(tasks) != 2 || max(tasks[1].MaxAttempts, 1) != c.left {
			t.Errorf("%d of %d attempts failed: tasks %+v; want %d left at the pool", c.failed, c.allowed, tasks, c.left)
		}
	}
}

// TestATaskThatAVenueGivesUpGoesOnAtThePoolFromItsCheckpoint has a function give a task up that has a checkpoint.
func TestATaskThatAVenueGivesUpGoesOnAtThePoolFromItsCheckpoint(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]string{wire.WorkflowVersion: "half", 2: ""} {
		tasks := givenUp(t, version, 3, 0)
		if len(tasks) != 2 || tasks[0].Resume.Digest != "" || tasks[1].ID != "s-0.pool" || tasks[1].Resume.Digest != want {
			t.Errorf("version %d: tasks %+v; want one at the pool that goes on from %q", version, tasks, want)
		}
	}
}

// givenUp are the tasks that a run schedules for one that its function gives up after so many failures.
func givenUp(t *testing.T, version, allowed, failures int) []wire.Task {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetWorkerOptions(worker.Options{DeadlockDetectionTimeout: time.Minute}) // a busy machine is no deadlock
	var tasks []wire.Task
	env.RegisterActivityWithOptions(func(_ context.Context, task wire.Task, _ json.RawMessage) (wire.Result, error) {
		tasks = append(tasks, task)
		if task.PoolOnly {
			return wire.Result{Output: json.RawMessage("1")}, nil
		}
		return wire.Result{}, temporal.NewNonRetryableApplicationError("over", wire.RefusedError, nil, map[string]any{
			"spent_picodollars": 5, "checkpoint": activities.Ref{Digest: "half", Bytes: 3}, "failures": failures,
		})
	}, activity.RegisterOptions{Name: "s"})
	env.ExecuteWorkflow(func(ctx workflow.Context) error {
		r := newRun("r", 0)
		r.version = version
		_, err := r.runTask(ctx, r.place(wire.Stage{Name: "s", MaxAttempts: allowed}, "s-0", nil))
		return err
	})
	if err := env.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	return tasks
}

// TestARunThatIsTriedAgainGoesOnWhereTheOneBeforeWas calls a stage three times with one input and once with another.
func TestARunThatIsTriedAgainGoesOnWhereTheOneBeforeWas(t *testing.T) {
	t.Parallel()
	left := func(input, digest string) wire.Resumption {
		key := wire.NewResultKey(predictor.StageID{Name: "s"}, false, "", json.RawMessage(input))
		return wire.Resumption{Stage: "s", Content: key.Content, Checkpoint: activities.Ref{Digest: digest}}
	}
	resumes := []wire.Resumption{left("1", "one"), left("1", "another"), left("3", "never")}
	for name, c := range map[string]struct {
		options   wire.RunOptions
		continued bool
		want      []string
	}{
		"each is taken once, by the same input": {
			wire.RunOptions{RetryOf: "before", Resumes: resumes}, false, []string{"one", "another", "", ""},
		},
		"none of a stage that begins anew": {
			wire.RunOptions{RetryOf: "before", Only: []string{"other"}, Resumes: resumes}, false, []string{"", "", "", ""},
		},
		"none of a run that begins anew": {
			wire.RunOptions{RetryOf: "before", NoCache: true, Resumes: resumes}, false, []string{"", "", "", ""},
		},
		"none once the run has continued": {
			wire.RunOptions{RetryOf: "before", Resumes: resumes}, true, []string{"", "", "", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRun("r", 0)
			r.version, r.options, r.continued = wire.WorkflowVersion, c.options, c.continued
			var got []string
			for _, input := range []string{"1", "1", "1", "2"} {
				call := r.place(wire.Stage{Name: "s"}, "s-0", json.RawMessage(input))
				got = append(got, r.leftOff(call).Digest)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("checkpoints (-want +got):\n%s", diff)
			}
		})
	}
}
