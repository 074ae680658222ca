package workflows_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/search"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// TestACommandIsTuned fills the placeholders of a command's template, reads the objective from what it reports, and
// goes on from its checkpoints; one trial saves none and begins anew.
func TestACommandIsTuned(t *testing.T) {
	t.Parallel()
	stage := spillway.NewCommand("fit")
	input, err := json.Marshal(spillway.Command{Arguments: []string{
		"python3", "fit.py", "--lr={lr}", "--epochs", "{from}..{to}", "{trial}", "{{{rung}}",
	}})
	if err != nil {
		t.Fatal(err)
	}
	request := runs.TuneRequest{
		Stage: stage.Describe(), Name: "rates", Command: true, Input: input, Objective: "loss",
		Space:   spillway.NewSpace("lr=log:1e-3..1.0"),
		Options: search.Options{Trials: 9, Most: 9, Algorithm: search.Halving},
	}
	var mu sync.Mutex
	seen := map[string]string{} // from where to where a job went, by trial and rung
	pipeline := spillway.NewPipeline("tuner", func(ctx workflow.Context, _ int) (runs.Tuning, error) {
		tuning, output, err := runs.Tune(ctx, request)
		if err == nil && !strings.Contains(string(output), `"exit":0`) {
			err = fmt.Errorf("the best left %s", output)
		}
		return tuning, err
	})
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(time.Minute)
	if err := env.SetMemoOnStart(map[string]any{
		runs.OptionsMemo: wire.RunOptions{Version: wire.WorkflowVersion},
	}); err != nil {
		t.Fatal(err)
	}
	ports := runs.Ports{Stages: []runs.AnyStage{stage}}
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	runs.Register(env, ports, []runs.AnyPipeline{pipeline})
	env.RegisterActivityWithOptions(func(_ context.Context, task wire.Task, encoded json.RawMessage) (wire.Result, error) {
		var command wire.Command
		if err := json.Unmarshal(encoded, &command); err != nil {
			return wire.Result{}, err
		}
		a := command.Arguments
		if !task.Command || len(a) != 7 || !strings.HasPrefix(a[2], "--lr=0.") || command.Parameters["lr"] == 0 {
			t.Errorf("the command is %+v", command)
		}
		mu.Lock()
		seen[a[5]+a[6]] = a[4]
		mu.Unlock()
		result := wire.Result{
			Output: json.RawMessage(`{"exit":0}`), Metrics: map[string]float64{"loss": float64(a[5][0])},
		}
		if a[5] != "0" {
			result.Checkpoint = activities.Ref{Digest: "checkpoint of " + a[5] + a[6]}
		}
		return result, nil
	}, activity.RegisterOptions{Name: "fit"})
	env.ExecuteWorkflow("tuner", 0)
	var tuning runs.Tuning
	if err := env.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	if err := env.GetWorkflowResult(&tuning); err != nil {
		t.Fatal(err)
	}
	if *tuning.Best != 0 || tuning.Name != "rates" || tuning.Trials[0].State != runs.TrialFinished {
		t.Errorf("the tuning came to %+v", tuning)
	}
	for job, want := range map[string]string{
		"0{0}": "0..1", "0{1}": "0..3", "0{2}": "0..9", "1{0}": "0..1", "1{1}": "1..3",
	} {
		if seen[job] != want {
			t.Errorf("job %s trained %s, want %s", job, seen[job], want)
		}
	}
}
