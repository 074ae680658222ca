package space

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-ml/spillway/activities/retention"
)

const (
	// parallel is how many workflows are read at a time.
	parallel = 4
	// listed is how many workflows are listed at a time.
	listed = 1000
)

// KnownRun is a run as the ledger knows it.
type KnownRun struct {
	Run string
	// Started is when it began; the zero time where that is not known. Ended is the zero time while it goes on.
	Started, Ended time.Time
	// Told is when its start or its end was told.
	Told time.Time
}

// last is when anything was last told of a run that Temporal does not know: nothing of it goes on.
func (r KnownRun) last() time.Time { return cmp.Or(r.Ended, r.Told) }

// run is what Temporal says of a run, its child workflows among it.
type run struct {
	open  bool      // it, or a child, goes on
	ended time.Time // when the last of it ended
	names []retention.Digest
}

// told is what is found out about all runs.
type told struct {
	runs map[string]*run // by name
	busy time.Time       // when the oldest attempt that goes on began; zero where none does
	lost []KnownRun      // those that Temporal does not know
}

// runReader finds out what the histories of runs, and the heartbeats of their attempts, name. The history of what has
// ended is read once.
type runReader struct {
	temporal Histories
	over     map[string]execution // by Temporal's run ID: what has ended; the zero value is of what is gone
}

func newRunReader(temporal Histories) *runReader {
	return &runReader{temporal: temporal, over: map[string]execution{}}
}

// read finds out about all runs. Temporal's list may be behind, so that what it lacks is looked for where a workflow
// names its children, and by the names of known runs.
func (r *runReader) read(ctx context.Context, known []KnownRun, now time.Time) (told, error) {
	c := &census{
		told: told{runs: map[string]*run{}}, reader: r, now: now, seen: map[string]bool{}, latest: map[string]workflowOf{},
		over: map[string]execution{},
	}
	more, err := r.list(ctx)
	if err != nil {
		return told{}, err
	}
	for {
		if err := c.readAll(ctx, more); err != nil {
			return told{}, err
		}
		if more, err = c.behind(ctx, known); err != nil {
			return told{}, err
		}
		if len(more) == 0 {
			break
		}
	}
	r.over = c.over
	return c.told, nil
}

// census adds up what is found out. One goroutine at a time uses it.
type census struct {
	told

	reader *runReader
	now    time.Time
	seen   map[string]bool       // by Temporal's run ID
	latest map[string]workflowOf // by workflow ID: the one that goes on, or has ended last
	over   map[string]execution  // see runReader
}

// workflowOf is a workflow of a run.
type workflowOf struct {
	run  string
	info *workflowpb.WorkflowExecutionInfo
}

// ofInfo says of which run a workflow is.
func ofInfo(info *workflowpb.WorkflowExecutionInfo) workflowOf {
	for _, root := range []*common.WorkflowExecution{info.GetRootExecution(), info.GetParentExecution()} {
		if root.GetWorkflowId() != "" {
			return workflowOf{root.GetWorkflowId(), info}
		}
	}
	return workflowOf{info.GetExecution().GetWorkflowId(), info}
}

// readAll reads workflows, and those that they tell of: children, and what continued as them.
func (c *census) readAll(ctx context.Context, workflows []workflowOf) error {
	for len(workflows) > 0 {
		found, fresh := make([]execution, len(workflows)), make([]bool, len(workflows))
		reading, readCtx := errgroup.WithContext(ctx)
		reading.SetLimit(parallel)
		for i, one := range workflows {
			id := one.info.GetExecution().GetRunId()
			if c.seen[id] {
				continue
			}
			c.seen[id], fresh[i] = true, true
			if past, known := c.reader.over[id]; known {
				found[i] = past
				continue
			}
			reading.Go(func() (err error) {
				found[i], err = c.reader.readOne(readCtx, one.info)
				return err
			})
		}
		if err := reading.Wait(); err != nil {
			return err
		}
		var others []workflowOf
		for i, one := range workflows {
			if !fresh[i] {
				continue
			}
			if found[i].info == nil { // it is gone
				c.over[one.info.GetExecution().GetRunId()] = execution{}
				continue
			}
			c.add(one.run, found[i])
			for _, other := range found[i].others {
				others = append(others, workflowOf{one.run, other})
			}
		}
		workflows = others
	}
	return nil
}

// add adds what one workflow of a run names.
func (c *census) add(name string, found execution) {
	of := c.runs[name]
	if of == nil {
		of = &run{}
		c.runs[name] = of
	}
	of.names = append(of.names, found.names...)
	id, ended := found.info.GetExecution().GetWorkflowId(), found.info.GetCloseTime().AsTime()
	if isOpen(found.info) {
		of.open = true
		for _, began := range found.attempts {
			if began.After(c.now) { // the clock was ahead, and nobody knows since when it writes
				began = time.Unix(0, 0)
			}
			if c.busy.IsZero() || began.Before(c.busy) {
				c.busy = began
			}
		}
		c.latest[id] = workflowOf{name, found.info}
		return
	}
	info := &workflowpb.WorkflowExecutionInfo{ // all that matters of it from now on
		Execution: found.info.GetExecution(), Status: found.info.GetStatus(), CloseTime: found.info.GetCloseTime(),
	}
	c.over[info.GetExecution().GetRunId()] = execution{info: info, names: found.names, others: found.others}
	if ended.After(of.ended) {
		of.ended = ended
	}
	before, some := c.latest[id]
	if !some || !isOpen(before.info) && ended.After(before.info.GetCloseTime().AsTime()) {
		c.latest[id] = workflowOf{name, found.info}
	}
}

// behind looks up what Temporal's list seems to lack: runs that are known and not listed, those that are known to go on
// of which nothing that goes on is listed, and workflows that have continued as ones that are not listed. It returns
// what it finds, and notes the runs that Temporal does not know at all.
func (c *census) behind(ctx context.Context, known []KnownRun) (found []workflowOf, err error) {
	var doubtful []KnownRun
	for _, one := range known {
		if last, some := c.latest[one.Run]; !some || one.Ended.IsZero() && !isOpen(last.info) {
			doubtful = append(doubtful, one)
		}
	}
	names := map[string]string{} // of the runs of which continued workflows are
	for id, last := range c.latest {
		if !isOpen(last.info) && last.info.GetStatus() == enums.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW {
			names[id] = last.run
			doubtful = append(doubtful, KnownRun{Run: id})
		}
	}
	all := make([]*workflowpb.WorkflowExecutionInfo, len(doubtful))
	looking, lookCtx := errgroup.WithContext(ctx)
	looking.SetLimit(parallel)
	for i, one := range doubtful {
		looking.Go(func() error {
			described, err := c.reader.temporal.DescribeWorkflowExecution(lookCtx, one.Run, "")
			if isGone(err) {
				return nil
			}
			all[i] = described.GetWorkflowExecutionInfo()
			if err != nil {
				return fmt.Errorf("look at run %s: %w", one.Run, err)
			}
			return nil
		})
	}
	if err := looking.Wait(); err != nil {
		return nil, err
	}
	c.lost = nil
	for i, one := range doubtful {
		switch info := all[i]; {
		case info == nil && names[one.Run] == "":
			c.lost = append(c.lost, one)
		case info != nil && !c.seen[info.GetExecution().GetRunId()]:
			found = append(found, workflowOf{cmp.Or(names[one.Run], one.Run), info})
		}
	}
	return found, nil
}

// isOpen reports whether a workflow goes on, as far as is known.
func isOpen(info *workflowpb.WorkflowExecutionInfo) bool {
	switch info.GetStatus() {
	case enums.WORKFLOW_EXECUTION_STATUS_COMPLETED, enums.WORKFLOW_EXECUTION_STATUS_FAILED,
		enums.WORKFLOW_EXECUTION_STATUS_CANCELED, enums.WORKFLOW_EXECUTION_STATUS_TERMINATED,
		enums.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW, enums.WORKFLOW_EXECUTION_STATUS_TIMED_OUT:
		return info.GetCloseTime() == nil
	default:
		return true
	}
}

// list returns all workflows that Temporal lists. Who ends between two pages is in a later one; who begins may be left
// out.
func (r *runReader) list(ctx context.Context) (all []workflowOf, err error) {
	var page []byte
	for {
		answer, err := r.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			PageSize: listed, NextPageToken: page,
		})
		if err != nil {
			return nil, fmt.Errorf("list the runs: %w", err)
		}
		for _, info := range answer.GetExecutions() {
			all = append(all, ofInfo(info))
		}
		if page = answer.GetNextPageToken(); len(page) == 0 {
			return all, nil
		}
	}
}

// execution is what one workflow names.
type execution struct {
	info     *workflowpb.WorkflowExecutionInfo // nil where the workflow is gone
	names    []retention.Digest
	attempts []time.Time                         // when those began that go on
	others   []*workflowpb.WorkflowExecutionInfo // of its run, which it tells of: Temporal's list may lack them
}

// begun notes that the workflow has begun a child, or that another has continued as this one.
func (e *execution) begun(other *common.WorkflowExecution) {
	e.others = append(e.others, &workflowpb.WorkflowExecutionInfo{Execution: other})
}

// readOne reads one workflow. Its attempts come before its history: one that ends in between is in the latter.
func (r *runReader) readOne(ctx context.Context, info *workflowpb.WorkflowExecutionInfo) (execution, error) {
	id, runID := info.GetExecution().GetWorkflowId(), info.GetExecution().GetRunId()
	found := execution{info: info}
	var scanner retention.Scanner
	attempts := newAttempts()
	if isOpen(info) {
		described, err := r.temporal.DescribeWorkflowExecution(ctx, id, runID)
		if err == nil {
			err = scanMessage(&scanner, described)
		}
		if err != nil {
			return execution{}, ignoreGone(fmt.Errorf("look at run %s: %w", id, err))
		}
		attempts.pending(described.GetPendingActivities())
		found.info = described.GetWorkflowExecutionInfo()
		for _, child := range described.GetPendingChildren() {
			if child.GetRunId() != "" { // else it has not begun, and its input is in the history
				found.begun(&common.WorkflowExecution{WorkflowId: child.GetWorkflowId(), RunId: child.GetRunId()})
			}
		}
	}
	events, history := int64(0), r.temporal.GetWorkflowHistory(
		ctx, id, runID, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for history.HasNext() {
		event, err := history.Next()
		if err == nil {
			err = scanMessage(&scanner, event)
		}
		if err != nil {
			return execution{}, ignoreGone(fmt.Errorf("read the history of run %s: %w", id, err))
		}
		attempts.take(event)
		if child := event.GetChildWorkflowExecutionStartedEventAttributes(); child != nil {
			found.begun(child.GetWorkflowExecution())
		}
		if before := event.GetWorkflowExecutionStartedEventAttributes().GetContinuedExecutionRunId(); before != "" {
			found.begun(&common.WorkflowExecution{WorkflowId: id, RunId: before})
		}
		events++
	}
	if want := found.info.GetHistoryLength(); events < want {
		return execution{}, fmt.Errorf("read the history of run %s: it ends after %d of %d events", id, events, want)
	}
	found.names = scanner.Names()
	if isOpen(found.info) {
		found.attempts = attempts.began()
	}
	return found, nil
}

// attempts finds out since when the attempts of a workflow have gone on. Between the end of an attempt and the end of
// the workflow task that is on its way meanwhile, Temporal shows neither the attempt nor, in the history, what it has
// answered; that may name whatever was written since it was scheduled.
type attempts struct {
	scheduled map[int64]*historypb.HistoryEvent // by their IDs; without those that the history says the end of
	waiting   map[string]bool                   // by the activity's ID: no attempt of it goes on
	started   []time.Time                       // of those of which it is known
}

func newAttempts() *attempts {
	return &attempts{scheduled: map[int64]*historypb.HistoryEvent{}, waiting: map[string]bool{}}
}

// pending takes in the activities that have not ended.
func (a *attempts) pending(activities []*workflowpb.PendingActivityInfo) {
	for _, activity := range activities {
		a.waiting[activity.GetActivityId()] = true
		if activity.GetState() != enums.PENDING_ACTIVITY_STATE_SCHEDULED {
			a.started = append(a.started, activity.GetLastStartedTime().AsTime())
		}
	}
}

// take takes in an event of the history.
func (a *attempts) take(event *historypb.HistoryEvent) {
	switch event.GetEventType() { //nolint:exhaustive // the others tell of no attempts
	case enums.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
		a.scheduled[event.GetEventId()] = event
	case enums.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
		delete(a.scheduled, event.GetActivityTaskCompletedEventAttributes().GetScheduledEventId())
	case enums.EVENT_TYPE_ACTIVITY_TASK_FAILED:
		delete(a.scheduled, event.GetActivityTaskFailedEventAttributes().GetScheduledEventId())
	case enums.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
		delete(a.scheduled, event.GetActivityTaskTimedOutEventAttributes().GetScheduledEventId())
	case enums.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
		delete(a.scheduled, event.GetActivityTaskCanceledEventAttributes().GetScheduledEventId())
	}
}

// began is since when those have gone on that do.
func (a *attempts) began() []time.Time {
	began := a.started
	for _, event := range a.scheduled {
		if !a.waiting[event.GetActivityTaskScheduledEventAttributes().GetActivityId()] {
			began = append(began, event.GetEventTime().AsTime())
		}
	}
	return began
}

// isGone reports whether Temporal does not know a workflow.
func isGone(err error) bool {
	_, gone := errors.AsType[*serviceerror.NotFound](err)
	return gone
}

// ignoreGone returns nil for a workflow that was deleted meanwhile.
func ignoreGone(err error) error {
	if isGone(err) {
		return nil
	}
	return err
}

// scanMessage looks for digests in all texts of a message.
func scanMessage(scanner *retention.Scanner, message proto.Message) error {
	text, err := proto.Marshal(message)
	if err != nil {
		return err
	}
	_, err = scanner.Write(append(text, 0)) // what comes next is another text
	return err
}
