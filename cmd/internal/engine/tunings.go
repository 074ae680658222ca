package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// tuningLimit bounds how long one question to a tuning may take: where the worker of its build does not run any more,
// that is started for it.
const tuningLimit = 10 * time.Second

// Tunings returns how the tunings of a run stand. Temporal has them for as long as it has the run.
func (e *Engine) Tunings(ctx context.Context, run string) ([]runs.Tuning, error) {
	if _, err := e.Run(ctx, run); err != nil {
		return nil, err
	}
	executions, err := e.tuningsOf(ctx, run)
	if err != nil {
		return nil, err
	}
	tunings := make([]runs.Tuning, 0, len(executions))
	for _, execution := range executions {
		one, err := e.tuning(ctx, execution)
		if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
			continue // its history is gone
		}
		if err != nil {
			return nil, fmt.Errorf("ask tuning %s how it stands: %w", execution.GetExecution().GetWorkflowId(), err)
		}
		tunings = append(tunings, one)
	}
	return tunings, nil
}

// tuningsOf lists the workflows that tune for a run, each by its latest part, in the order in which they began.
func (e *Engine) tuningsOf(ctx context.Context, run string) (found []*workflowpb.WorkflowExecutionInfo, err error) {
	begun := map[string]time.Time{}
	var page []byte
	for {
		answer, err := e.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			Query: fmt.Sprintf("WorkflowType = '%s' AND WorkflowId STARTS_WITH '%s/'", runs.TuneWorkflow,
				strings.ReplaceAll(run, "'", "''")),
			PageSize: 1000, NextPageToken: page,
		})
		if err != nil {
			return nil, fmt.Errorf("list the tunings of run %s: %w", run, err)
		}
		for _, info := range answer.GetExecutions() {
			id, at := info.GetExecution().GetWorkflowId(), info.GetStartTime().AsTime()
			first, known := begun[id]
			if !known {
				found = append(found, info)
			}
			if !known || at.Before(first) {
				begun[id] = at
			}
		}
		if page = answer.GetNextPageToken(); len(page) == 0 {
			break
		}
	}
	slices.SortFunc(found, func(a, b *workflowpb.WorkflowExecutionInfo) int {
		first, second := a.GetExecution().GetWorkflowId(), b.GetExecution().GetWorkflowId()
		if order := begun[first].Compare(begun[second]); order != 0 {
			return order
		}
		return strings.Compare(first, second)
	})
	return found, nil
}

// tuning asks the latest part of a tuning, page by page.
func (e *Engine) tuning(ctx context.Context, info *workflowpb.WorkflowExecutionInfo) (all runs.Tuning, err error) {
	if info.GetStatus() != enums.WORKFLOW_EXECUTION_STATUS_RUNNING {
		if err := e.apps.wake(ctx, info.GetTaskQueue()); err != nil {
			return runs.Tuning{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, tuningLimit)
	defer cancel()
	for {
		var part runs.Tuning
		answer, err := e.temporal.QueryWorkflow(ctx, info.GetExecution().GetWorkflowId(), "", runs.TuningQuery,
			runs.TuningPage{First: len(all.Trials)})
		if err == nil {
			err = answer.Get(&part)
		}
		if err != nil {
			return runs.Tuning{}, err
		}
		part.Trials = slices.Concat(all.Trials, part.Trials)
		if len(part.Trials) == len(all.Trials) || len(part.Trials) >= part.Begun {
			return part, nil
		}
		all = part
	}
}

// wake keeps the worker of the build whose workflow queue this is, so that it answers for runs that have ended; tidy
// drops it again where nothing needs it. It fails where the build is not stored any more.
func (a *apps) wake(ctx context.Context, queue string) error {
	app, digest, found := loopwire.ParseWorkflowQueue(queue)
	if !found {
		return fmt.Errorf("%s is no queue of a build", queue)
	}
	_, err := a.chains.Get(app, digest)
	if errors.Is(err, build.ErrUnknownBuild) {
		_, err = a.workers.builds.Get(ctx, app, digest)
	}
	if errors.Is(err, build.ErrUnknownBuild) {
		return web.Gone("run it again", "build %s of %s is gone, and with it who could say how its tunings ended", digest,
			app)
	}
	if err != nil {
		return err
	}
	a.workers.keep(a.life, buildID{app, digest})
	return nil
}
