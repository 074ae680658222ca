package devserver

import (
	"os"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// upperStage is called by a grandchild of a run, in TestAChildWorkflowIsItsRunsTeams.
var upperStage = spillway.NewStage("upper", upper)

// TestAChildWorkflowIsItsRunsTeams runs a stage in a child of a child of a team's run, whose tasks are on the queue of
// that team: the proxy would refuse another, and nobody polls one.
func TestAChildWorkflowIsItsRunsTeams(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, Options{Dir: dir, NoUI: true})
	owner := dialTemporal(t, s.TemporalAddress(), dir)
	defer owner.Close()
	stages := worker.New(owner, "app@1/upper~vision", worker.Options{})
	stages.RegisterActivityWithOptions(
		func(_ wire.Task, in string) (wire.Result, error) {
			return wire.Result{Output: []byte(`"` + in + `!"`)}, nil
		},
		activity.RegisterOptions{Name: "upper"})
	c, err := client.DialContext(t.Context(), openProxy(t, s, os.Getpid(), testLog(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ports := runs.Ports{App: "app", Build: "1", Stages: []runs.AnyStage{upperStage}}
	pipelines := worker.New(c, "app@1", runs.WorkerOptions(ports))
	below := func(child string) func(workflow.Context, string) (string, error) {
		return func(ctx workflow.Context, in string) (out string, err error) {
			ctx = workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
				WorkflowID: workflow.GetInfo(ctx).WorkflowExecution.ID + "/child", Memo: map[string]any{"own": 1},
			})
			return out, workflow.ExecuteChildWorkflow(ctx, child, in).Get(ctx, &out)
		}
	}
	for name, pipeline := range map[string]any{
		"run": below("child"), "child": below("grandchild"), "grandchild": upperStage.Run,
	} {
		pipelines.RegisterWorkflowWithOptions(pipeline, workflow.RegisterOptions{Name: name})
	}
	for _, w := range []worker.Worker{stages, pipelines} {
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
	}
	run, err := owner.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: "app-a", TaskQueue: "app@1", WorkflowExecutionTimeout: time.Minute,
		Memo: map[string]any{runs.OptionsMemo: wire.RunOptions{Team: "vision", Version: wire.WorkflowVersion}},
	}, "run", "spill")
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := run.Get(t.Context(), &got); err != nil || got != "spill!" {
		t.Errorf("got %q, error %v; want spill!", got, err)
	}
}
