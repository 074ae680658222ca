package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/runs"
)

const (
	// noticeEvery is how often it is asked which runs somebody should know of.
	noticeEvery = 2 * time.Second
	// measureMost is how many runs are looked at in one sweep, for how full their history is and for why they are blocked,
	// and measureAgain after how long again.
	measureMost  = 20
	measureAgain = 30 * time.Second
	// Temporal ends a run whose history passes these; a run is told of at four fifths of them.
	mostEvents, mostHistory = 50 << 10, 50 << 20
	// lastEvents is how far back the reason for a block is looked for. What comes in while a run is blocked comes after
	// it.
	lastEvents = 1000
)

// blockedQuery finds the workflows whose workflow task failed again and again; Temporal clears the attribute with the
// next that succeeds.
const blockedQuery = "TemporalReportedProblems IN ('category=WorkflowTaskFailed', 'category=WorkflowTaskTimedOut') " +
	"AND ExecutionStatus = 'Running'"

// blockedPrefix begins the notice of a run that cannot go on.
const blockedPrefix = "blocked: "

// notices finds the runs that cannot go on, or soon cannot, and why.
type notices struct {
	temporal client.Client
	// why an execution is blocked; empty when it is not
	reason   func(context.Context, *common.WorkflowExecution) (string, error)
	measured map[string]measurement // of runs that go on
	// of executions that are blocked, by Temporal's run ID
	reasons map[string]reason
}

// reason is what was found when an execution was last looked at that is listed as blocked.
type reason struct {
	at  time.Time
	why string // empty when it is only slow, or has gone on meanwhile
}

// measurement is what was found of the history of a run.
type measurement struct {
	at     time.Time
	notice string
}

// noticeRuns keeps what people should know of runs up to date, until ctx ends.
func (e *Engine) noticeRuns(ctx context.Context) {
	found := &notices{temporal: e.temporal, measured: map[string]measurement{}}
	found.reason = func(ctx context.Context, execution *common.WorkflowExecution) (string, error) {
		return blockedBy(ctx, e.temporal, e.servers.Namespace(), execution)
	}
	ticker := time.NewTicker(noticeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if err := e.notice(ctx, found, now); err != nil && ctx.Err() == nil {
				e.logger.DebugContext(ctx, "look for runs that cannot go on", "error", err)
			}
		}
	}
}

func (e *Engine) notice(ctx context.Context, found *notices, now time.Time) error {
	blocked, err := found.blocked(ctx, now)
	if err != nil {
		return err
	}
	going := e.observer.going()
	lookMore := measureMost
	for run, why := range blocked {
		if !e.lead.leads() { // who leads tells the others
			break
		}
		if why.info != nil {
			e.tellStart(ctx, startOf(why.info))
		}
		if len(why.parts) > 0 && lookMore > 0 && !slices.Contains(going, run) {
			e.endLeftBehind(ctx, run, why.parts)
			lookMore--
		}
	}
	found.measure(ctx, going, now)
	for _, run := range going {
		text := found.measured[run].notice
		if why, stands := blocked[run]; stands {
			text = why.text
		}
		if e.observer.note(run, text) && text != "" {
			e.logger.WarnContext(ctx, "a run needs somebody", "run", run, "notice", text)
		}
	}
	return nil
}

// block is why a run cannot go on.
type block struct {
	text  string
	info  *workflowpb.WorkflowExecutionInfo // of the run itself; nil when only a part of it is blocked
	parts []*common.WorkflowExecution       // those of its parts that are blocked
}

// blocked returns the runs that cannot go on, by their ID.
func (n *notices) blocked(ctx context.Context, now time.Time) (map[string]block, error) {
	var listed []*workflowpb.WorkflowExecutionInfo
	for page, more := []byte(nil), true; more; more = len(page) > 0 {
		answer, err := n.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			Query:         blockedQuery,
			NextPageToken: page,
		})
		if err != nil {
			return nil, fmt.Errorf("list blocked runs: %w", err)
		}
		for _, info := range answer.GetExecutions() {
			if _, _, ours := loopwire.ParseWorkflowQueue(info.GetTaskQueue()); ours {
				listed = append(listed, info)
			}
		}
		page = answer.GetNextPageToken()
	}
	n.explain(ctx, listed, now)
	blocked := map[string]block{}
	for _, info := range listed {
		why := n.reasons[info.GetExecution().GetRunId()].why
		if why == "" {
			continue
		}
		run, part := runAndPart(info)
		found := blocked[run]
		if part == "" {
			found.text, found.info = blockedPrefix+why, info
		} else {
			found.parts = append(found.parts, info.GetExecution())
			found.text = cmp.Or(found.text, fmt.Sprintf("%s%s cannot go on: %s", blockedPrefix, part, why))
		}
		blocked[run] = found
	}
	return blocked, nil
}

// runAndPart returns the run that a workflow is, or is a part of, and in words which part, empty for the run itself.
// The ID of an event may have slashes, and so may a run's; the name of a stage has none.
func runAndPart(info *workflowpb.WorkflowExecutionInfo) (run, part string) {
	id := info.GetExecution().GetWorkflowId()
	slash := strings.LastIndexByte(id, '/')
	if slash < 0 {
		return id, ""
	}
	switch info.GetType().GetName() {
	case runs.MapWorkflow:
		return id[:slash], "part " + id[slash+1:] + " of a Map"
	case runs.TuneWorkflow:
		return id[:slash], "tuning " + id[slash+1:]
	default:
		return id, ""
	}
}

// explain looks for the reasons of those of the listed that were looked at the longest ago: at once where none is
// known, else now and then. One that cannot be read, because it has just ended or Temporal does not answer, keeps no
// other from being told.
func (n *notices) explain(ctx context.Context, listed []*workflowpb.WorkflowExecutionInfo, now time.Time) {
	known, due := map[string]reason{}, []*common.WorkflowExecution{}
	for _, info := range listed {
		execution := info.GetExecution()
		last, seen := n.reasons[execution.GetRunId()]
		if seen {
			known[execution.GetRunId()] = last
		}
		if last.why == "" || now.Sub(last.at) >= measureAgain {
			due = append(due, execution)
		}
	}
	looked := func(execution *common.WorkflowExecution) time.Time { return known[execution.GetRunId()].at }
	for _, execution := range leastRecent(due, looked, measureMost) {
		last := known[execution.GetRunId()]
		if why, err := n.reason(ctx, execution); err == nil {
			last.why = why
		}
		last.at = now
		known[execution.GetRunId()] = last
	}
	n.reasons = known
}

// blockedBy says why the last workflow task of an execution failed; empty when it did not.
func blockedBy(
	ctx context.Context, c client.Client, namespace string, execution *common.WorkflowExecution,
) (string, error) {
	answer, err := c.WorkflowService().GetWorkflowExecutionHistoryReverse(ctx,
		&workflowservice.GetWorkflowExecutionHistoryReverseRequest{
			Namespace: namespace, Execution: execution, MaximumPageSize: lastEvents,
		})
	if err != nil {
		return "", fmt.Errorf("read the end of the history of %s: %w", execution.GetWorkflowId(), err)
	}
	for _, event := range answer.GetHistory().GetEvents() {
		switch event.GetEventType() { //nolint:exhaustive // all others say nothing of it
		case enums.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
			return "", nil
		case enums.EVENT_TYPE_WORKFLOW_TASK_FAILED:
			failed := event.GetWorkflowTaskFailedEventAttributes()
			why := failed.GetFailure().GetMessage()
			if failed.GetCause() == enums.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR {
				why = "its code takes other steps than its history has. Start the engine, or serve the build, that the run was " +
					"started with, " +
					"and it goes on; or cancel it: " + why
			}
			return why, nil
		}
	}
	return "", nil
}

// measure looks at the histories of the runs that were looked at the longest ago, now and then at each.
func (n *notices) measure(ctx context.Context, going []string, now time.Time) {
	fresh, due := map[string]measurement{}, []string{}
	for _, run := range going {
		last, seen := n.measured[run]
		if !seen {
			last.at = now // a run is young when it is first seen
		}
		fresh[run] = last
		if now.Sub(last.at) >= measureAgain {
			due = append(due, run)
		}
	}
	for _, run := range leastRecent(due, func(run string) time.Time { return fresh[run].at }, measureMost) {
		last := measurement{at: now, notice: fresh[run].notice}
		if described, err := n.temporal.DescribeWorkflowExecution(ctx, run, ""); err == nil {
			info := described.GetWorkflowExecutionInfo()
			last.notice = fullness(info.GetHistoryLength(), info.GetHistorySizeBytes())
		}
		fresh[run] = last
	}
	n.measured = fresh
}

// fullness tells of a history that is nearly full; empty for one that is not.
func fullness(events, bytes int64) string {
	if events*5 < mostEvents*4 && bytes*5 < mostHistory*4 {
		return ""
	}
	return fmt.Sprintf("its history is nearly full: %d of %d events, %d of %d MiB. Temporal ends the run there; one "+
		"that goes on for long continues as new "+
		"once it has read its signals: see spillway.Repeat", events, mostEvents, bytes>>20, mostHistory>>20)
}

// startOf is the word that a run says at its start, as its memo has it: all but its input.
func startOf(info *workflowpb.WorkflowExecutionInfo) predictor.RunStarted {
	var (
		started = predictor.RunStarted{Run: info.GetExecution().GetWorkflowId(), Pipeline: info.GetType().GetName()}
		options loopwire.RunOptions
		carried struct {
			StartedAt time.Time `json:"started_at"`
		}
	)
	for key, value := range map[string]any{
		runs.GoalMemo: &started.Goal, runs.EventMemo: &started.Event, runs.OptionsMemo: &options,
		runs.CarriedMemo: &carried,
	} {
		if payload, told := info.GetMemo().GetFields()[key]; told {
			_ = converter.GetDefaultDataConverter().FromPayload(payload, value) // one of another shape is another program's
		}
	}
	started.App, started.Build, _ = loopwire.ParseWorkflowQueue(info.GetTaskQueue())
	started.EventAt, started.RetryOf, started.Traceparent = options.EventAt, options.RetryOf, options.Traceparent
	started.Team = options.Team
	started.At = cmp.Or(carried.StartedAt, info.GetStartTime().AsTime()) // a run that has continued as new began before
	return started
}

// tellStart tells the start of a run that was blocked before its first word, or whose first word has left the stream.
func (e *Engine) tellStart(ctx context.Context, started predictor.RunStarted) {
	view, known := e.observer.run(started.Run)
	switch {
	case !known:
	case view.State == predictor.RunRunning && view.Pipeline == "":
		started.Goal = cmp.Or(view.Goal, started.Goal) // it may have been given another since
	case view.State != predictor.RunRunning && started.At.After(view.EndedAt): // a run of a name that another had
	default:
		return
	}
	e.recorder.Tell(e.withTeam(ctx, started))
}

// run returns what the ledger says of a run; known is false when that is nothing.
func (o *observer) run(id string) (view ledger.RunView, known bool) {
	o.mu.Lock()
	run, known := o.ledger.Snapshot(id)
	o.mu.Unlock()
	if !known {
		return ledger.RunView{}, false
	}
	return o.views(run)[0], true
}

// going lists the runs that go on.
func (o *observer) going() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ledger.Going()
}

// note keeps what should be known of a run, and reports whether that is news.
func (o *observer) note(run, text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ledger.Note(run, text) {
		return false
	}
	o.feed.RunChanged(run)
	return true
}

// cancelledBlocked is why Temporal says that a run was terminated that was cancelled while it was blocked, or its part.
const cancelledBlocked = "it was cancelled while it was blocked"

// endWithin bounds how long a blocked run is being ended, whether or not whoever asked for it still waits.
const endWithin = time.Minute

// endBlocked ends a run that could not answer a request to cancel it, and its parts: nobody is left to stop one that is
// blocked. The run goes first: one that goes on, and of which only a part is blocked, would fail as soon as that part
// ended. What is left of a run whose end broke off half-way is the next sweep's (see endLeftBehind), and the
// reconciler's.
func (e *Engine) endBlocked(
	ctx context.Context, run ledger.RunView, parts []*workflowpb.PendingChildExecutionInfo,
) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer stop()
	err := e.temporal.TerminateWorkflow(ctx, run.Run, "", cancelledBlocked)
	if _, over := errors.AsType[*serviceerror.NotFound](err); over {
		return web.Conflict("", "run %q has just ended", run.Run)
	}
	if err != nil {
		return fmt.Errorf("end the blocked run %s: %w", run.Run, err)
	}
	var failed error
	for _, part := range parts {
		failed = errors.Join(failed, e.endPart(ctx, part.GetWorkflowId(), part.GetRunId()))
	}
	why := temporal.NewCanceledError(cancelledBlocked)
	return errors.Join(failed, newReconciler(e).end(ctx, run, nil, why, time.Now()))
}

// endPart ends a part of a run that is over.
func (e *Engine) endPart(ctx context.Context, id, execution string) error {
	err := e.temporal.TerminateWorkflow(ctx, id, execution, cancelledBlocked)
	if _, over := errors.AsType[*serviceerror.NotFound](err); err != nil && !over {
		return fmt.Errorf("end part %s of a blocked run: %w", id, err)
	}
	return nil
}

// endLeftBehind ends parts that are blocked where their run is over: it has asked them to stop, which they cannot hear.
// So it is after a run was cancelled before anybody knew that a part is blocked, and after an engine was killed while
// it ended a run.
func (e *Engine) endLeftBehind(ctx context.Context, run string, parts []*common.WorkflowExecution) {
	described, err := e.temporal.DescribeWorkflowExecution(ctx, run, "")
	_, gone := errors.AsType[*serviceerror.NotFound](err)
	goesOn := described.GetWorkflowExecutionInfo().GetStatus() == enums.WORKFLOW_EXECUTION_STATUS_RUNNING
	if goesOn || err != nil && !gone {
		return
	}
	e.logger.InfoContext(ctx, "end blocked parts of a run that is over", "run", run, "parts", len(parts))
	for _, part := range parts {
		if err := e.endPart(ctx, part.GetWorkflowId(), part.GetRunId()); err != nil {
			e.logger.DebugContext(ctx, "try again in the next sweep", "error", err)
		}
	}
}
