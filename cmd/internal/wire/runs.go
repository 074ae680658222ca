package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/logs"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// Stack describes the stack as it is now.
func (e *Engine) Stack(ctx context.Context) (web.Stack, error) {
	hosts, err := e.leases.Hosts(ctx)
	if err != nil {
		return web.Stack{}, err
	}
	stack := web.Stack{
		Version: e.config.Version, PID: os.Getpid(), StateDir: e.config.StateDir, StartedAt: e.started, Addresses: e.addresses,
		Hosts: hosts, Apps: e.apps.list(), Policy: e.config.Policy, Functions: e.functions, PoolCPUs: e.config.PoolCPUs,
	}
	if e.local != nil {
		stack.FunctionCPUs = e.config.Functions.CPUs
	}
	return stack, nil
}

// Check returns an error that names the part that does not work.
func (e *Engine) Check(ctx context.Context) error {
	if err := e.Err(); err != nil {
		return err
	}
	return e.servers.Check(ctx)
}

// Plan returns the plan in force.
func (e *Engine) Plan(context.Context) (predictor.Plan, error) {
	e.observer.mu.Lock()
	defer e.observer.mu.Unlock()
	return e.observer.plan, nil
}

// Runs returns the runs that match.
func (e *Engine) Runs(_ context.Context, query web.RunQuery) ([]ledger.RunView, error) {
	e.observer.mu.Lock()
	defer e.observer.mu.Unlock()
	return e.observer.ledger.Runs(ledger.Query{Limit: query.Limit, State: query.State, Pipeline: query.Pipeline}), nil
}

// Run returns one run.
func (e *Engine) Run(_ context.Context, run string) (ledger.RunView, error) {
	e.observer.mu.Lock()
	defer e.observer.mu.Unlock()
	view, known := e.observer.ledger.Run(run)
	if !known {
		return ledger.RunView{}, web.NotFound("see spillway runs", "there is no run %q", run)
	}
	return view, nil
}

// Decisions returns the decisions that match.
func (e *Engine) Decisions(_ context.Context, query web.DecisionQuery) ([]predictor.Decision, error) {
	e.observer.mu.Lock()
	defer e.observer.mu.Unlock()
	return e.observer.ledger.Decisions(query.Run, query.Limit), nil
}

// Logs calls handle with what the attempts of a run print.
func (e *Engine) Logs(ctx context.Context, query logs.Query, handle func(logs.Line) error) error {
	return logs.Follow(ctx, e.stream, query, handle)
}

// Cancel asks that the run ends.
func (e *Engine) Cancel(ctx context.Context, run string) error {
	described, err := e.temporal.DescribeWorkflowExecution(ctx, run, "")
	var missing *serviceerror.NotFound
	switch {
	case errors.As(err, &missing):
		return web.NotFound("see spillway runs", "there is no run %q", run)
	case err != nil:
		return fmt.Errorf("cancel run %s: %w", run, err)
	case described.GetWorkflowExecutionInfo().GetStatus() != enums.WORKFLOW_EXECUTION_STATUS_RUNNING:
		return web.Conflict("", "run %q has ended already", run)
	}
	if err := e.temporal.CancelWorkflow(ctx, run, ""); err != nil {
		return fmt.Errorf("cancel run %s: %w", run, err)
	}
	return nil
}

const (
	// settleEvery is how often runs are looked for whose end nobody told: those that were terminated from outside.
	settleEvery = 10 * time.Second
	// settleAfter is how long a run must have been silent before it is looked at.
	settleAfter = 30 * time.Second
)

// settle tells the loop of runs that ended without saying so.
func (e *Engine) settle(ctx context.Context) {
	ticker := time.NewTicker(settleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, run := range e.observer.silent(time.Now().Add(-settleAfter)) {
			if err := e.settleRun(ctx, run); err != nil && ctx.Err() == nil {
				e.logger.DebugContext(ctx, "look at a silent run", "run", run.Run, "error", err)
			}
		}
	}
}

func (e *Engine) settleRun(ctx context.Context, run ledger.RunView) error {
	described, err := e.temporal.DescribeWorkflowExecution(ctx, run.Run, "")
	if err != nil {
		return err
	}
	info := described.GetWorkflowExecutionInfo()
	ended := predictor.RunEnded{Run: run.Run, At: info.GetCloseTime().AsTime()}
	switch info.GetStatus() {
	case enums.WORKFLOW_EXECUTION_STATUS_TERMINATED:
		ended.State, ended.Error = predictor.RunFailed, "the workflow was terminated from outside"
	case enums.WORKFLOW_EXECUTION_STATUS_TIMED_OUT:
		ended.State, ended.Error = predictor.RunFailed, "the workflow ran past its timeout"
	case enums.WORKFLOW_EXECUTION_STATUS_FAILED:
		ended.State, ended.Error = predictor.RunFailed, "the workflow failed before it could say why; see its history"
	case enums.WORKFLOW_EXECUTION_STATUS_CANCELED:
		ended.State, ended.Error = predictor.RunCancelled, "the run was cancelled before its first step"
	default: // it goes on, or has told its end itself
		return nil
	}
	started := predictor.RunStarted{
		Run: run.Run, Pipeline: run.Pipeline, App: run.App, Build: run.Build, Goal: run.Goal, Event: run.Event, At: run.StartedAt,
	}
	return e.recorder.End(ctx, started, ended, loopwire.Done{
		Version: loopwire.Version, Run: run.Run, Pipeline: run.Pipeline, Event: run.Event, State: ended.State, Error: ended.Error,
		Started: run.StartedAt, Ended: ended.At,
	})
}

// History returns the recorded history of a run, as Temporal's replayer reads it, with all of its payloads in it.
func (e *Engine) History(ctx context.Context, run string) (json.RawMessage, error) {
	var history historypb.History
	events := e.temporal.GetWorkflowHistory(ctx, run, "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
			return nil, web.NotFound("see spillway runs", "there is no run %q", run)
		}
		if err != nil {
			return nil, fmt.Errorf("read the history of run %s: %w", run, err)
		}
		history.Events = append(history.Events, event)
	}
	if err := artifact.Restore(ctx, e.store, &history); err != nil {
		return nil, web.Gone("start the run again and record that one", "the history of run %q is not whole any more: %v", run, err)
	}
	return protojson.Marshal(&history)
}
