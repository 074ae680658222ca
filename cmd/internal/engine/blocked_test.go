package engine_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
	"github.com/spillway-ml/spillway/workflows/spillwaytest/forms"
)

// elsewhere is a workflow queue that this test polls in the engine's place, and elsewhereName its pipeline.
const elsewhere, elsewhereName = "elsewhere@1", "elsewhere"

// serveElsewhere polls with code of its own for the pipeline until the returned function is called.
func serveElsewhere(t *testing.T, c client.Client, run func(workflow.Context, int) (int, error)) (stop func()) {
	t.Helper()
	ports := runs.Ports{App: "elsewhere", Build: "1"}
	queue := worker.New(c, elsewhere, runs.WorkerOptions(ports))
	runs.Register(queue, ports, []runs.AnyPipeline{workflows.NewPipeline(elsewhereName, run)})
	if err := queue.Start(); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(queue.Stop)
}

// startElsewhere starts a run as an engine whose steps have this version.
func startElsewhere(t *testing.T, c client.Client, run string, version int) {
	t.Helper()
	_, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: run, TaskQueue: elsewhere, Memo: map[string]any{runs.OptionsMemo: loopwire.RunOptions{Version: version}},
	}, elsewhereName, 1)
	if err != nil {
		t.Fatal(err)
	}
}

// noticed waits until the run's notice is one that is wanted. A blocked run is told once its second workflow task has
// timed out.
func (e *testEngine) noticed(t *testing.T, run string, wanted func(notice string) bool) string {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		view, err := e.client.Run(t.Context(), run)
		if err == nil && wanted(view.Notice) {
			return view.Notice
		}
		if time.Now().After(deadline) {
			t.Fatalf("the notice of run %s is %q (%v)\n%s", run, view.Notice, err, e.printed())
		}
	}
}

func TestARunThatCannotBeReplayedIsBlockedAndToldAndGoesOnLater(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), "")
	c := e.temporal()
	waiting := make(chan struct{})
	began := sync.OnceFunc(func() { close(waiting) })
	right := func(ctx workflow.Context, in int) (int, error) {
		if err := workflow.Sleep(ctx, time.Millisecond); err != nil {
			return 0, err
		}
		began()
		workflow.GetSignalChannel(ctx, forms.Signal).Receive(ctx, nil)
		return in + 1, nil
	}
	stop := serveElsewhere(t, c, right)
	defer func() { stop() }()
	const newer = "newer/1" // as of an event whose ID has a slash
	startElsewhere(t, c, newer, loopwire.WorkflowVersion+98)
	startElsewhere(t, c, "changed", loopwire.WorkflowVersion)
	<-waiting
	stop()

	stop = serveElsewhere(t, c, func(ctx workflow.Context, in int) (int, error) {
		workflow.GetSignalChannel(ctx, forms.Signal).Receive(ctx, nil)
		return in + 1, nil
	})
	if err := c.SignalWorkflow(t.Context(), "changed", "", forms.Signal, nil); err != nil {
		t.Fatal(err)
	}
	blocked := func(notice string) bool { return strings.HasPrefix(notice, "blocked: ") }
	if notice := e.noticed(t, "changed", blocked); !strings.Contains(notice, "other steps than its history has") {
		t.Errorf("the run whose code changed: %q", notice)
	}
	if notice := e.noticed(t, newer, blocked); !strings.Contains(notice, "a newer engine started this run") {
		t.Errorf("the run of a newer engine: %q", notice)
	}
	_, err := e.client.SetGoal(t.Context(), newer, predictor.Goal{Deadline: time.Hour})
	if said := answered(t, err); said.Status != http.StatusConflict ||
		!strings.Contains(said.Message, "takes no goal now") {
		t.Errorf("the goal of a blocked run: got %d %q", said.Status, said.Message)
	}
	if err := e.client.Cancel(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	if view := e.wait(newer, time.Minute); view.State != predictor.RunCancelled {
		t.Errorf("the blocked run that was cancelled has %s: %s", view.State, view.Error)
	}

	stop()
	stop = serveElsewhere(t, c, right)
	var result int
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := c.GetWorkflow(ctx, "changed", "").Get(ctx, &result); err != nil || result != 2 {
		t.Errorf("with its code back the run returned %d, %v; want 2", result, err)
	}
	e.noticed(t, "changed", func(notice string) bool { return notice == "" })
	cancelled, err := e.client.Runs(t.Context(), web.RunQuery{State: predictor.RunCancelled})
	if err != nil || len(cancelled) != 1 {
		t.Errorf("cancelled runs: %+v, %v; want one", cancelled, err)
	}
	e.stop()
}

func TestCancellingARunWhoseMapIsBlockedLeavesNoPartOfItBehind(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), "")
	c := e.temporal()
	const run, part = "mapping", "mapping/draw-0"
	open := make(chan struct{})
	opened := sync.OnceFunc(func() { close(open) })
	stop := serveElsewhere(t, c, func(ctx workflow.Context, _ int) (out int, err error) {
		newer := map[string]any{"run": run, "version": loopwire.WorkflowVersion + 98}
		child := workflow.ExecuteChildWorkflow(workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
			WorkflowID: part, WaitForCancellation: true, ParentClosePolicy: enums.PARENT_CLOSE_POLICY_REQUEST_CANCEL,
		}), runs.MapWorkflow, newer)
		if err := child.GetChildWorkflowExecution().Get(ctx, nil); err != nil {
			return 0, err
		}
		opened()
		return out, child.Get(ctx, nil)
	})
	startElsewhere(t, c, run, loopwire.WorkflowVersion)
	<-open
	stop()
	defer serveElsewhere(t, c, func(ctx workflow.Context, in int) (int, error) {
		return in, workflow.Sleep(ctx, time.Hour)
	})()
	if err := c.SignalWorkflow(t.Context(), run, "", forms.Signal, nil); err != nil {
		t.Fatal(err)
	}
	e.noticed(t, run, func(notice string) bool { return strings.HasPrefix(notice, "blocked: ") })
	if err := e.client.Cancel(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	if view := e.wait(run, time.Minute); view.State != predictor.RunCancelled {
		t.Errorf("the run that was cancelled has %s: %s", view.State, view.Error)
	}
	described, err := c.DescribeWorkflowExecution(t.Context(), part, "")
	if status := described.GetWorkflowExecutionInfo().GetStatus(); err != nil ||
		status != enums.WORKFLOW_EXECUTION_STATUS_TERMINATED {
		t.Errorf("the part that was blocked is %s, %v; want it ended", status, err)
	}
	e.stop()
}
