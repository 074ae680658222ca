package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// Stack describes the stack as it is now.
func (e *Engine) Stack(ctx context.Context) (web.Stack, error) {
	hosts, err := e.livingHosts(ctx)
	if err != nil {
		return web.Stack{}, err
	}
	stack := web.Stack{
		Version: e.config.Version, PID: os.Getpid(), StateDir: e.config.StateDir, StartedAt: e.started,
		Addresses: e.addresses, Servers: e.serverList(),
		Hosts: hosts, Apps: e.apps.list(), Policy: e.config.Policy, Functions: e.functions, PoolCPUs: e.config.PoolCPUs,
		FunctionBuilds: e.functionBuilds(), FunctionPlace: e.place,
		Artifacts: e.store.location, ArtifactsNotes: e.store.notes,
		Retention: e.space.Policy(), KeepHours: cmp.Or(e.config.KeepHours, ledgerstore.UsualHours),
		Ledger: e.ledger.String(),
	}
	if err := e.ledger.Failure(); err != nil {
		stack.LedgerFailing = err.Error()
	}
	if e.local != nil {
		stack.FunctionCPUs = e.config.Functions.CPUs
	}
	return stack, nil
}

// functionBuilds are the digests of the builds whose functions may be called; nil where that is not known.
func (e *Engine) functionBuilds() []string {
	if !e.functions.Enabled {
		return nil
	}
	digests, known := e.apps.live()
	if !known {
		return nil
	}
	if e.runner.digest != "" {
		digests = append(digests, e.runner.digest)
	}
	return digests
}

// Check returns an error that names the part that does not work, or says what is waited for before a run is watched
// over as it should be.
func (e *Engine) Check(ctx context.Context) error {
	if err := e.Err(); err != nil {
		return err
	}
	if err := e.observer.starting(); err != nil {
		return err
	}
	if err := e.servers.Check(ctx); err != nil {
		return err
	}
	if missing, err := missingStreams(ctx, e.stream, streamNames(true)); err != nil || len(missing) > 0 {
		return errors.Join(err, lackOf(missing))
	}
	return e.leader.Health()
}

// Plan returns the plan in force.
func (e *Engine) Plan(context.Context) (predictor.Plan, error) {
	e.observer.mu.Lock()
	defer e.observer.mu.Unlock()
	return e.observer.plan, nil
}

// Runs returns a page of the runs that match: those that are folded, and those that are kept.
func (e *Engine) Runs(ctx context.Context, query web.RunQuery) (ledger.Page, error) {
	kept, err := e.ledger.Runs(ctx, query)
	if err != nil { // as on a full disk: what is folded is known all the same
		e.logger.WarnContext(ctx, "runs that are kept could not be listed", "error", err)
	}
	live := e.observer.page(query, kept.Runs)
	return ledger.Join(query, live, kept), nil
}

// RunTotals adds up the runs that match, as the ledger has them once it has taken in what is folded.
func (e *Engine) RunTotals(ctx context.Context, query web.RunQuery) (ledger.RunTotals, error) {
	if err := e.reachLedger(ctx, e.observer.reached()); err != nil {
		return ledger.RunTotals{}, err
	}
	return e.ledger.Totals(ctx, query, e.now())
}

// Run returns one run.
func (e *Engine) Run(ctx context.Context, run string) (ledger.RunView, error) {
	view, live := e.observer.run(run)
	if live && view.State == predictor.RunRunning {
		return e.withSpace(view), nil
	}
	kept, known, err := e.ledger.Run(ctx, run)
	switch {
	case err != nil && !live:
		return ledger.RunView{}, err
	case err != nil: // as on a full disk: what is folded is known all the same
		e.logger.WarnContext(ctx, "what is kept of a run could not be looked up", "run", run, "error", err)
		return e.withSpace(view), nil
	case live && !kept.Fuller(view):
		return e.withSpace(view), nil
	case !known:
		return ledger.RunView{}, unknownRun(run)
	}
	return e.withSpace(kept), nil
}

// Decisions returns the decisions that match.
func (e *Engine) Decisions(ctx context.Context, query web.DecisionQuery) ([]predictor.Decision, error) {
	var about *ledger.RunView
	if query.Run != "" {
		view, err := e.Run(ctx, query.Run)
		if err != nil {
			return nil, err
		}
		about = &view
	}
	e.observer.mu.Lock()
	defer e.observer.mu.Unlock()
	return e.observer.ledger.Decisions(about, query.Limit), nil
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
		return web.NoRun(run)
	case err != nil:
		return fmt.Errorf("cancel run %s: %w", run, err)
	case described.GetWorkflowExecutionInfo().GetStatus() != enums.WORKFLOW_EXECUTION_STATUS_RUNNING:
		return web.Conflict("", "run %q has ended already", run)
	}
	if view, err := e.Run(ctx, run); err == nil && strings.HasPrefix(view.Notice, blockedPrefix) {
		return e.endBlocked(ctx, view, described.GetPendingChildren())
	}
	if err := e.temporal.CancelWorkflow(ctx, run, ""); err != nil {
		return fmt.Errorf("cancel run %s: %w", run, err)
	}
	return nil
}

// History returns the recorded history of a run, as Temporal's replayer reads it, with all of its payloads in it.
func (e *Engine) History(ctx context.Context, run string) (json.RawMessage, error) {
	var history historypb.History
	events := e.temporal.GetWorkflowHistory(ctx, run, "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
			return nil, web.NoRun(run)
		}
		if err != nil {
			return nil, fmt.Errorf("read the history of run %s: %w", run, err)
		}
		history.Events = append(history.Events, event)
	}
	if err := artifact.Restore(ctx, e.store, &history); err != nil {
		return nil, web.Gone("start the run again and record that one", "the history of run %q is not whole any more: %v",
			run, err)
	}
	return protojson.Marshal(&history)
}
