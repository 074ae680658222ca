package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
	"github.com/spillway-ml/spillway/workflows/spillwaytest/forms"
)

var silent = workflows.NewStage("silent", func(context.Context, int) (int, error) { return 0, nil })

// TestATaskThatIsCancelledAndNeverHeardOfAgainIsCancelledAndHasCostWhatItSaid: its host goes away with it, and the
// server says twenty seconds after its last heartbeat that it has timed out.
func TestATaskThatIsCancelledAndNeverHeardOfAgainIsCancelledAndHasCostWhatItSaid(t *testing.T) {
	t.Parallel()
	e := sharedEngine(t)
	c := e.temporal()
	const run, queue, over = "silent", "silent", "over"
	wait := func(ctx workflow.Context) { workflow.GetSignalChannel(ctx, forms.Signal).Receive(ctx, nil) }
	pipeline := workflows.NewPipeline("silent", func(ctx workflow.Context, in int) (int, error) {
		stopped := false
		if err := workflow.SetQueryHandler(ctx, over, func() (bool, error) { return stopped, nil }); err != nil {
			return 0, err
		}
		until, stop := workflow.WithCancel(ctx)
		task := silent.Start(until, in)
		wait(ctx)
		stop()
		_, err := task.Get(ctx)
		stopped = true
		wait(ctx)
		if !temporal.IsCanceledError(err) {
			return 0, errors.Join(errors.New("it is not cancelled"), err)
		}
		return in, nil
	})
	ports := runs.Ports{Stages: []runs.AnyStage{silent}}
	w := worker.New(c, queue, worker.Options{Interceptors: []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)}})
	runs.Register(w, ports, []runs.AnyPipeline{pipeline})
	beat := make(chan struct{})
	once := sync.OnceFunc(func() { close(beat) })
	w.RegisterActivityWithOptions(func(ctx context.Context, _ loopwire.Task, _ json.RawMessage) (loopwire.Result, error) {
		activity.RecordHeartbeat(ctx, loopwire.Heartbeat{Spent: 3, Running: 4})
		once()
		return loopwire.Result{}, activity.ErrResultPending
	}, activity.RegisterOptions{Name: silent.Name()})
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	options := client.StartWorkflowOptions{ID: run, TaskQueue: queue, Memo: map[string]any{
		runs.GoalMemo: predictor.Goal{Budget: 1000}, runs.OptionsMemo: loopwire.RunOptions{Version: loopwire.WorkflowVersion},
	}}
	started, err := c.ExecuteWorkflow(t.Context(), options, pipeline.Name(), 1)
	if err != nil {
		t.Fatal(err)
	}
	proceed := func() {
		if err := c.SignalWorkflow(t.Context(), run, "", forms.Signal, nil); err != nil {
			t.Fatal(err)
		}
	}
	<-beat
	proceed()
	e.until("the task is over", func() bool {
		answer, err := c.QueryWorkflow(t.Context(), run, "", over)
		stopped := false
		return err == nil && answer.Get(&stopped) == nil && stopped
	})
	changed, err := c.UpdateWorkflow(t.Context(), client.UpdateWorkflowOptions{
		WorkflowID: run, UpdateName: runs.GoalUpdate, Args: []any{predictor.Goal{Budget: 6}},
		WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err == nil {
		err = changed.Get(t.Context(), nil)
	}
	if err == nil || !strings.Contains(err.Error(), "has spent") {
		t.Errorf("a budget of 6 where 7 is spent: got %v, want a refusal", err)
	}
	proceed()
	var result int
	if err := started.Get(t.Context(), &result); err != nil || result != 1 {
		t.Errorf("the run returned %d, %v; want 1", result, err)
	}
}
