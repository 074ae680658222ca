package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/runs"
)

const (
	// reconcileEvery is how often runs are looked for whose end nobody told: those that were terminated from outside, or
	// whose end was lost.
	reconcileEvery = 10 * time.Second
	// reconcileAfter is how long a run must have been silent before it is looked at.
	reconcileAfter = 30 * time.Second
	// reconcileMost is how many silent runs are looked at in one sweep. A run may be silent for days because it waits.
	reconcileMost = 64
	// goneSweeps is in how many sweeps in a row Temporal must not know a run before it counts as gone.
	goneSweeps = 2
	// firstSweeps is how often the first sweep is tried while Temporal does not answer.
	firstSweeps = 10
)

// reconciler tells the loop of runs that ended without saying so. One goroutine at a time uses it.
type reconciler struct {
	engine  *Engine
	looked  map[string]time.Time // when a silent run was last looked at
	missing map[string]int       // in how many sweeps in a row Temporal did not know a run
}

func newReconciler(e *Engine) *reconciler {
	return &reconciler{engine: e, looked: map[string]time.Time{}, missing: map[string]int{}}
}

// first looks at all runs of which nothing was heard since the engine began, and returns those that do not go on: what
// the ledger says of them is out of date until it has heard. It goes on without an answer when Temporal has none for a
// while.
func (r *reconciler) first(ctx context.Context) (over map[string]bool) {
	for range firstSweeps {
		var failed bool
		if over, failed = r.sweep(ctx, r.engine.observer.silent(r.engine.began)); !failed {
			break
		}
		if !wait.For(ctx, time.Second) {
			return over
		}
	}
	return over
}

// run sweeps until ctx ends.
func (r *reconciler) run(ctx context.Context) {
	ticker := time.NewTicker(reconcileEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		silent := r.engine.observer.silent(r.engine.now().Add(-reconcileAfter))
		r.forget(silent)
		r.sweep(ctx, leastRecent(silent, func(run ledger.RunView) time.Time { return r.looked[run.Run] }, reconcileMost))
	}
}

// forget drops what is remembered of runs that are not silent any more.
func (r *reconciler) forget(silent []ledger.RunView) {
	still := make(map[string]bool, len(silent))
	for _, run := range silent {
		still[run.Run] = true
	}
	for run := range r.looked {
		if !still[run] {
			delete(r.looked, run)
			delete(r.missing, run)
		}
	}
}

// leastRecent returns those, at most so many, that were not looked at for the longest time, the first of equals first.
func leastRecent[T any](all []T, looked func(T) time.Time, most int) []T {
	sorted := slices.SortedStableFunc(slices.Values(all), func(a, b T) int { return looked(a).Compare(looked(b)) })
	return sorted[:min(len(sorted), most)]
}

// sweep looks at runs and tells the ends of those that are over. It returns those that do not go on, and whether any
// could not be looked at.
func (r *reconciler) sweep(ctx context.Context, silent []ledger.RunView) (over map[string]bool, failed bool) {
	over = map[string]bool{}
	for _, run := range silent {
		goesOn, err := r.reconcile(ctx, run)
		if ctx.Err() != nil {
			return over, true
		}
		r.looked[run.Run] = time.Now()
		if err != nil {
			failed = true
			r.engine.logger.WarnContext(ctx, "look at a silent run", "run", run.Run, "error", err)
		} else if !goesOn {
			over[run.Run] = true
		}
	}
	return over, failed
}

// reconcile looks at a run and tells its end when it is over.
func (r *reconciler) reconcile(ctx context.Context, run ledger.RunView) (goesOn bool, err error) {
	kept, known, err := r.engine.ledger.Run(ctx, run.Run)
	if err != nil { // as on a full disk: Temporal knows
		r.engine.logger.DebugContext(ctx, "look up whether a run has ended", "run", run.Run, "error", err)
	}
	if known && kept.State != predictor.RunRunning && !run.StartedAt.After(kept.EndedAt) {
		return false, r.endAgain(ctx, kept)
	}
	described, err := r.engine.temporal.DescribeWorkflowExecution(ctx, run.Run, "")
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		r.missing[run.Run]++
		if r.missing[run.Run] < goneSweeps {
			return false, nil
		}
		return false, r.end(ctx, run, nil, errGone, heard(run))
	}
	if err != nil {
		return true, err
	}
	delete(r.missing, run.Run)
	info := described.GetWorkflowExecutionInfo()
	if run.Pipeline == "" {
		complete(&run, r.engine.withTeam(ctx, startOf(info)))
	}
	result, failure, over := r.outcome(ctx, info)
	if !over {
		return true, nil
	}
	return false, r.end(ctx, run, result, failure, info.GetCloseTime().AsTime())
}

// Reasons why a run ended that did not say so itself.
var (
	errGone       = errors.New("its workflow is gone from Temporal: deleted, or past retention; how it ended is not known")
	errTerminated = errors.New("the workflow was terminated from outside")
	errTimedOut   = errors.New("the workflow ran past its timeout")
)

// heard is when a run last gave a sign of life.
func heard(run ledger.RunView) time.Time {
	return run.StartedAt.Add(time.Duration(run.Actual.Seconds * float64(time.Second)))
}

// complete fills in what the loop's stream does not say of a run whose start it has no more.
func complete(run *ledger.RunView, started predictor.RunStarted) {
	run.Pipeline, run.App, run.Build, run.StartedAt = started.Pipeline, started.App, started.Build, started.At
	run.Goal, run.Event = cmp.Or(run.Goal, started.Goal), started.Event
	run.EventAt, run.RetryOf, run.Team = started.EventAt, started.RetryOf, started.Team
}

// outcome returns the result of a workflow that is over, or why it has none. Over is false for one that goes on, or of
// which Temporal cannot tell.
func (r *reconciler) outcome(
	ctx context.Context, info *workflow.WorkflowExecutionInfo,
) (result json.RawMessage, failure error, over bool) {
	switch info.GetStatus() {
	case enums.WORKFLOW_EXECUTION_STATUS_TERMINATED:
		failure, over = r.terminated(ctx, info.GetExecution())
		return nil, failure, over
	case enums.WORKFLOW_EXECUTION_STATUS_TIMED_OUT:
		return nil, errTimedOut, true
	case enums.WORKFLOW_EXECUTION_STATUS_COMPLETED, enums.WORKFLOW_EXECUTION_STATUS_FAILED,
		enums.WORKFLOW_EXECUTION_STATUS_CANCELED:
	default:
		return nil, nil, false
	}
	execution := info.GetExecution()
	err := r.engine.temporal.GetWorkflow(ctx, execution.GetWorkflowId(), execution.GetRunId()).Get(ctx, &result)
	failed, isFailure := errors.AsType[*temporal.WorkflowExecutionError](err)
	switch {
	case isFailure:
		return nil, cmp.Or(failed.Unwrap(), error(failed)), true
	case err != nil && ctx.Err() != nil:
		return nil, nil, false //nolint:nilerr // the engine ends: the next one tells its end
	case err != nil: // a result that cannot be read any more is no failure of the run
		r.engine.logger.WarnContext(ctx, "read the result of a run", "run", execution.GetWorkflowId(), "error", err)
		return nil, nil, true
	default:
		return result, nil, true
	}
}

// terminated says why a workflow has no result that was terminated: a run that is cancelled while it is blocked ends so
// too. Over is false when Temporal cannot tell.
func (r *reconciler) terminated(ctx context.Context, execution *common.WorkflowExecution) (why error, over bool) {
	last := r.engine.temporal.GetWorkflowHistory(
		ctx, execution.GetWorkflowId(), execution.GetRunId(), false, enums.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT)
	for last.HasNext() {
		event, err := last.Next()
		if err != nil {
			r.engine.logger.WarnContext(ctx, "read why a run was terminated", "run", execution.GetWorkflowId(), "error", err)
			return nil, false
		}
		if event.GetWorkflowExecutionTerminatedEventAttributes().GetReason() == cancelledBlocked {
			return temporal.NewCanceledError(cancelledBlocked), true
		}
	}
	return errTerminated, true
}

// end tells the loop of the end of a run.
func (r *reconciler) end(
	ctx context.Context, run ledger.RunView, result json.RawMessage, failure error, at time.Time,
) error {
	r.engine.logger.InfoContext(ctx, "tell the end of a run that nobody told", "run", run.Run, "error", failure)
	return r.tell(ctx, runs.Conclude(startOfView(run), result, failure, at))
}

// endAgain tells the loop again of an end that its stream has lost.
func (r *reconciler) endAgain(ctx context.Context, kept ledger.RunView) error {
	r.engine.logger.InfoContext(ctx, "tell again that a run has ended: the stream has lost it", "run", kept.Run)
	return r.tell(ctx, runs.Ended{
		Started: startOfView(kept),
		Ended: predictor.RunEnded{
			Run: kept.Run, State: kept.State, Error: kept.Error, Result: kept.Result, At: kept.EndedAt,
		},
		Done: wire.Done{
			Version: wire.Version, Run: kept.Run, Pipeline: kept.Pipeline, Event: kept.Event, State: kept.State,
			Error: kept.Error, Result: kept.Result, Started: kept.StartedAt, Ended: kept.EndedAt,
		},
	})
}

// tell tells the loop of the end of a run, once.
func (r *reconciler) tell(ctx context.Context, over runs.Ended) error {
	if err := r.engine.recorder.End(ctx, over.Started, over.Ended, over.Done); err != nil {
		return err
	}
	r.engine.observer.reconciled(over)
	return nil
}
