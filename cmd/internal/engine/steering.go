package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/whatif"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Outlook returns what would be expected of a run under goal.
func (e *Engine) Outlook(ctx context.Context, run string, goal predictor.Goal) (predictor.Outlook, error) {
	if _, err := e.Run(ctx, run); err != nil {
		return predictor.Outlook{}, err
	}
	hosts, err := e.livingHosts(ctx)
	if err != nil {
		return predictor.Outlook{}, err
	}
	snapshot := e.snapshot(hosts)
	e.observer.mu.Lock()
	defer e.observer.mu.Unlock()
	return e.observer.state.Outlook(run, goal, snapshot), nil
}

// Frontier returns every time and cost that a run could come to under goal.
func (e *Engine) Frontier(ctx context.Context, run string, goal predictor.Goal) (answer whatif.Answer, err error) {
	view, err := e.Run(ctx, run)
	if err != nil {
		return answer, err
	}
	if view.State == predictor.RunRunning {
		return e.couldBe(ctx, func(state predictor.State, snapshot predictor.Snapshot) whatif.Job {
			return state.Prospect(run, goal, snapshot)
		})
	}
	of, err := e.detail(ctx, run)
	if err != nil {
		return answer, err
	}
	taken := of.Taken(view)
	return e.couldBe(ctx, func(state predictor.State, snapshot predictor.Snapshot) whatif.Job {
		return state.ProspectAfter(taken, goal, snapshot)
	})
}

// PipelineFrontier is that of a run of a pipeline that could be started with an input.
func (e *Engine) PipelineFrontier(
	ctx context.Context, pipeline string, input json.RawMessage, goal predictor.Goal,
) (answer whatif.Answer, err error) {
	coming := predictor.Coming{Pipeline: pipeline}
	if len(input) > 0 {
		if _, err := e.apps.want(ctx, pipeline); err != nil {
			return answer, err
		}
		if err := e.trigger.CheckInput(ctx, pipeline, input); err != nil {
			return answer, web.Invalid("", "%s", err)
		}
		coming.Input, coming.Features = runs.Told(input)
	}
	for _, app := range e.apps.list() {
		if app.Current && slices.ContainsFunc(app.Pipelines, func(p loopwire.Pipeline) bool { return p.Name == pipeline }) {
			coming.App = app.Name
		}
	}
	if coming.App == "" { // a chain that is not served now
		earlier, err := e.Runs(ctx, web.RunQuery{Limit: 1, Pipeline: pipeline})
		if err != nil {
			return answer, err
		}
		for _, run := range earlier.Runs {
			coming.App = run.App
		}
	}
	return e.couldBe(ctx, func(state predictor.State, snapshot predictor.Snapshot) whatif.Job {
		return state.ProspectOf(coming, goal, snapshot)
	})
}

// couldBe computes the frontier of what is asked of the state. Others may use the state meanwhile: it takes some ten
// milliseconds.
func (e *Engine) couldBe(
	ctx context.Context, ask func(predictor.State, predictor.Snapshot) whatif.Job,
) (answer whatif.Answer, err error) {
	hosts, err := e.livingHosts(ctx)
	if err != nil {
		return answer, err
	}
	snapshot := e.snapshot(hosts)
	e.observer.mu.Lock()
	job := ask(e.observer.state, snapshot)
	e.observer.mu.Unlock()
	return whatif.Of(job), nil
}

// goalTimeout bounds how long a run may take to take a goal: its workflow worker may be starting.
const goalTimeout = 15 * time.Second

// SetGoal gives a run another goal.
func (e *Engine) SetGoal(ctx context.Context, run string, goal predictor.Goal) (predictor.Outlook, error) {
	view, err := e.Run(ctx, run)
	if err != nil {
		return predictor.Outlook{}, err
	}
	if view.State != predictor.RunRunning {
		return predictor.Outlook{}, web.Conflict("only a run that goes on has a goal to change", "run %q has %s", run,
			view.State)
	}
	if strings.HasPrefix(view.Notice, blockedPrefix) {
		return predictor.Outlook{}, web.Conflict("let it go on first, or cancel it: spillway cancel "+run,
			"run %q takes no goal now: %s", run, view.Notice)
	}
	outlook, err := e.Outlook(ctx, run, goal)
	if err != nil {
		return predictor.Outlook{}, err
	}
	if problem := hopeless(goal, outlook); problem != "" {
		return predictor.Outlook{}, web.Unprocessable(outlook.Summary, "%s", problem)
	}
	ctx, cancel := context.WithTimeout(ctx, goalTimeout)
	defer cancel()
	handle, err := e.temporal.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		WorkflowID: run, UpdateName: runs.GoalUpdate, Args: []any{goal}, WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err == nil {
		err = handle.Get(ctx, nil)
	}
	var missing *serviceerror.NotFound
	switch {
	case errors.As(err, &missing):
		return predictor.Outlook{}, web.Conflict("", "run %q has just ended", run)
	case err != nil:
		return predictor.Outlook{}, fmt.Errorf("change the goal of run %s: %w", run, err)
	}
	return outlook, nil
}

// hopeless says why a goal can never be met, whatever is done; empty when it may. What is only unlikely is for whoever
// asks to decide.
func hopeless(goal predictor.Goal, outlook predictor.Outlook) string {
	if deadline := goal.Deadline.Seconds(); goal.Deadline > 0 && outlook.Elapsed >= deadline {
		elapsed := time.Duration(outlook.Elapsed * float64(time.Second)).Round(time.Second)
		return fmt.Sprintf("the deadline of %s is past: the run has gone on for %s", goal.Deadline, elapsed)
	}
	if goal.Budget > 0 && outlook.Spent >= goal.Budget.USD() {
		return fmt.Sprintf("the budget of %s is spent: the run has cost $%.6f", goal.Budget, outlook.Spent)
	}
	return ""
}

// Retry starts a run again that has ended.
func (e *Engine) Retry(ctx context.Context, run string, request web.Retry) (web.Retried, error) {
	view, err := e.Run(ctx, run)
	if err != nil {
		return web.Retried{}, err
	}
	if view.State == predictor.RunRunning {
		return web.Retried{}, web.Conflict("cancel it first: spillway cancel "+run, "run %q goes on", run)
	}
	team, err := e.TeamOf(ctx, run)
	if err != nil {
		return web.Retried{}, err
	}
	options := loopwire.RunOptions{RetryOf: run, Team: team}
	if request.From != "" {
		first := slices.IndexFunc(view.Stages, func(stage ledger.StageView) bool { return stage.Name == request.From })
		if first < 0 { // the run had not come that far
			first = len(view.Stages)
		}
		for _, before := range view.Stages[:first] {
			options.Only = append(options.Only, before.Name)
		}
		options.NoCache = first == 0
	}
	kept, unsigned, err := e.results.OfRun(ctx, run)
	if err != nil {
		return web.Retried{}, err
	}
	retried := web.Retried{Stages: []string{}, Unsigned: unsigned}
	for _, result := range kept {
		if !options.Reuses(loopwire.Stage{Name: result.Stage}) {
			continue
		}
		if err := e.checkKept(ctx, result); err != nil {
			return web.Retried{}, err
		}
		retried.Tasks++
		if !slices.Contains(retried.Stages, result.Stage) {
			retried.Stages = append(retried.Stages, result.Stage)
		}
	}
	if options.Resumes, err = e.leftOff(ctx, run, options); err != nil {
		return web.Retried{}, err
	}
	for _, left := range options.Resumes {
		if !slices.Contains(retried.Resumed, left.Stage) {
			retried.Resumed = append(retried.Resumed, left.Stage)
		}
	}
	input, err := e.inputOf(ctx, run)
	if err != nil {
		return web.Retried{}, err
	}
	goal := view.Goal
	if request.Goal != nil {
		goal = *request.Goal
	}
	if _, err := e.apps.want(ctx, view.Pipeline); err != nil {
		return web.Retried{}, err
	}
	retried.Event, retried.Run, err = e.trigger.Publish(ctx, view.Pipeline, "", input, &goal, options)
	if refused, is := errors.AsType[*web.Error](err); is {
		return web.Retried{}, refused
	}
	if err != nil {
		return web.Retried{}, web.Conflict("", "%s", err)
	}
	return retried, nil
}

// checkKept returns an error that names what is gone of a result.
func (s *stores) checkKept(ctx context.Context, kept loopwire.Kept) error {
	var gone []string
	digests := digestsOf(kept.Output)
	if kept.Stored.Digest != "" {
		output, err := activities.ReadAll(ctx, sentArtifacts{s.store}, kept.Stored.Digest)
		switch {
		case errors.Is(err, activities.ErrMissing), errors.Is(err, activities.ErrCorrupt):
			gone = append(gone, kept.Stored.Digest)
		case err != nil:
			return fmt.Errorf("look at what task %s returned: %w", kept.Task, err)
		}
		digests = digestsOf(output)
	}
	for _, digest := range digests {
		there, err := s.keeps(ctx, digest)
		if err != nil {
			return err
		}
		if !there {
			gone = append(gone, digest)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return web.Gone("make them again: spillway retry "+kept.Run+" --from "+kept.Stage,
		"what task %s of stage %s returned is gone: %s", kept.Task, kept.Stage, strings.Join(gone, ", "))
}

// keeps reports whether an artifact is stored, which stays then until the new run names it. A store that does not
// answer has lost nothing: that is an error.
func (s *stores) keeps(ctx context.Context, digest string) (bool, error) {
	r, err := sentArtifacts{s.store}.Open(ctx, digest)
	if errors.Is(err, activities.ErrMissing) {
		return false, nil
	}
	if err == nil {
		err = r.Close()
	}
	if err != nil {
		return false, fmt.Errorf("look at artifact %s: %w", digest, err)
	}
	return true, nil
}

// digestsOf are those of the artifacts that an encoded output names.
func digestsOf(output json.RawMessage) (digests []string) {
	var value any
	if json.Unmarshal(output, &value) != nil {
		return nil
	}
	var walk func(any)
	walk = func(value any) {
		switch v := value.(type) {
		case map[string]any:
			if digest, named := v["digest"].(string); named && artifact.CheckDigest(digest) == nil {
				digests = append(digests, digest)
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(value)
	slices.Sort(digests)
	return slices.Compact(digests)
}

// inputOf returns the input that a run was started with.
func (s *stores) inputOf(ctx context.Context, run string) (json.RawMessage, error) {
	events := s.temporal.GetWorkflowHistory(ctx, run, "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	if !events.HasNext() {
		return nil, unknownRun(run)
	}
	first, err := events.Next()
	if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
		return nil, web.Gone("start a new run with the same input", "the history of run %q is gone, and its input with it",
			run)
	}
	if err != nil {
		return nil, fmt.Errorf("read the input of run %s: %w", run, err)
	}
	return s.startInput(ctx, run, first)
}

func (s *stores) startInput(
	ctx context.Context, run string, first *historypb.HistoryEvent,
) (input json.RawMessage, err error) {
	started := first.GetWorkflowExecutionStartedEventAttributes()
	if len(started.GetInput().GetPayloads()) == 0 {
		return json.RawMessage("{}"), nil
	}
	if err := artifact.Restore(ctx, s.store, started); err != nil {
		return nil, web.Gone("start a new run with the same input", "the input of run %q is gone: %v", run, err)
	}
	if err := converter.GetDefaultDataConverter().FromPayload(started.GetInput().GetPayloads()[0], &input); err != nil {
		return nil, fmt.Errorf("read the input of run %s: %w", run, err)
	}
	return input, nil
}
