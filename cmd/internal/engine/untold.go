package engine

import (
	"context"
	"fmt"
	"time"

	"go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/spillway-ml/spillway/activities/wait"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// findTries is how often it is tried to find the runs that the stream does not tell of, while Temporal does not answer.
const findTries = 10

// findLost finds the runs that the loop's stream does not tell of as it should.
func (e *Engine) findLost(ctx context.Context) {
	var since time.Time // zero where nothing is lost
	for _, loss := range e.losses {
		if loss.Stream == loopwire.LoopStream {
			since = loss.Since
		}
	}
	for range findTries {
		err := e.findRuns(ctx, since)
		if err == nil || ctx.Err() != nil {
			return
		}
		e.logger.WarnContext(ctx, "find runs that nobody has told of; it is tried again", "error", err)
		wait.For(ctx, time.Second)
	}
}

// findRuns tells the loop of the runs of which its stream does not say how they began: their start was told when nobody
// could hear it, or is lost. Those are the runs that go on by the ledger or by Temporal, and those that ended at
// Temporal since a time; the zero time asks for none of the latter. Whether one is over, the reconciler finds out by
// what Temporal says: so the ledger keeps none for ever that goes on by its word alone.
func (e *Engine) findRuns(ctx context.Context, since time.Time) error {
	reaching, cancel := context.WithTimeout(ctx, ledgerWait)
	defer cancel()
	if err := e.ledger.Reach(reaching, e.observer.reached()); err != nil {
		return fmt.Errorf("find runs that go on: %w", err)
	}
	kept, err := e.ledger.Runs(ctx, ledger.Query{State: predictor.RunRunning})
	if err != nil {
		return fmt.Errorf("find runs that go on: %w", err)
	}
	told := map[string]bool{}
	for _, run := range kept.Runs {
		told[run.Run] = true
		e.tellStart(ctx, startOfView(run))
	}
	queries := []string{"ExecutionStatus = 'Running'"}
	if !since.IsZero() {
		queries = append(queries, fmt.Sprintf("CloseTime >= '%s'", since.UTC().Format(time.RFC3339Nano)))
	}
	for _, query := range queries {
		if err := e.eachRun(ctx, query, func(started predictor.RunStarted) error {
			if _, known, err := e.ledger.Run(ctx, started.Run); err != nil || known {
				return err // one that goes on was told above
			}
			told[started.Run] = true
			e.tellStart(ctx, started)
			return nil
		}); err != nil {
			return fmt.Errorf("find runs at Temporal: %w", err)
		}
	}
	if err := e.ledger.EachRun(ctx, e.now(), func(run string, began, ended, at time.Time) error {
		if began.IsZero() && ended.IsZero() && !told[run] { // only attempts told of it
			e.tellStart(ctx, predictor.RunStarted{Run: run, At: at})
		}
		return nil
	}); err != nil {
		return fmt.Errorf("find runs of which only attempts told: %w", err)
	}
	return nil
}

// eachRun calls visit with the start of each run that Temporal lists.
func (e *Engine) eachRun(ctx context.Context, query string, visit func(predictor.RunStarted) error) error {
	var page []byte
	for {
		answer, err := e.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			Query: query, PageSize: 1000, NextPageToken: page,
		})
		if err != nil {
			return err
		}
		for _, info := range answer.GetExecutions() {
			if !isRun(info) {
				continue
			}
			if err := visit(startOf(info)); err != nil {
				return err
			}
		}
		if page = answer.GetNextPageToken(); len(page) == 0 {
			return nil
		}
	}
}

// isRun reports whether a workflow is a run: not a part of one, a child that a pipeline has named itself, or the
// engine's.
func isRun(info *workflow.WorkflowExecutionInfo) bool {
	_, _, ours := loopwire.ParseWorkflowQueue(info.GetTaskQueue())
	_, told := info.GetMemo().GetFields()[runs.PipelineMemo]
	return ours && told
}

// startOfView is the word that a run says at its start, but for its input.
func startOfView(view ledger.RunView) predictor.RunStarted {
	return predictor.RunStarted{
		Run: view.Run, Pipeline: view.Pipeline, App: view.App, Build: view.Build, Goal: view.Goal, Event: view.Event,
		EventAt: view.EventAt, RetryOf: view.RetryOf, Team: view.Team, At: view.StartedAt,
	}
}
