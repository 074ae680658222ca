package space

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// fakeExecution is a workflow of a fakeTemporal.
type fakeExecution struct {
	id, runID, root string
	unlisted        bool // the list is behind
	started, ended  time.Time
	status          enums.WorkflowExecutionStatus
	history         []*historypb.HistoryEvent
	pending         map[string]*workflowpb.PendingActivityInfo
	keptBack        []*historypb.HistoryEvent // until the workflow task on its way ends
	children        []*fakeExecution          // the first workflow of each
}

// hasBegun writes that a child has begun. Kept back, it is in the history only once tell is called.
func (e *fakeExecution) hasBegun(child *fakeExecution, keptBack bool) {
	e.children = append(e.children, child)
	e.keptBack = append(e.keptBack, &historypb.HistoryEvent{
		EventType: enums.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED,
		Attributes: &historypb.HistoryEvent_ChildWorkflowExecutionStartedEventAttributes{
			ChildWorkflowExecutionStartedEventAttributes: &historypb.ChildWorkflowExecutionStartedEventAttributes{
				WorkflowExecution: &common.WorkflowExecution{WorkflowId: child.id, RunId: child.runID},
			},
		},
	})
	if !keptBack {
		e.tell()
	}
}

func (e *fakeExecution) isOpen() bool { return e.ended.IsZero() }

func (e *fakeExecution) info() *workflowpb.WorkflowExecutionInfo {
	info := &workflowpb.WorkflowExecutionInfo{
		Execution:     &common.WorkflowExecution{WorkflowId: e.id, RunId: e.runID},
		RootExecution: &common.WorkflowExecution{WorkflowId: e.root},
		StartTime:     timestamppb.New(e.started), Status: enums.WORKFLOW_EXECUTION_STATUS_RUNNING,
	}
	if !e.isOpen() {
		info.Status, info.CloseTime = e.status, timestamppb.New(e.ended)
	}
	info.HistoryLength = int64(len(e.history))
	return info
}

// fakeTemporal is a Temporal with these workflows. It keeps no list of what is unlisted, and of what came since a
// workflow task began, as the real one does.
type fakeTemporal struct {
	mu         sync.Mutex
	executions []*fakeExecution // guarded by mu
	begun      int              // guarded by mu: how many workflows were started
	read       int              // guarded by mu: how many histories were read
	// fail is asked before each answer, about the workflow of that ID, whether there is none, and why; nil answers all.
	fail func(call, id string) error
}

var _ Histories = (*fakeTemporal)(nil)

// start starts a workflow; a root of "" is its own.
func (f *fakeTemporal) start(id, root string, at time.Time, input string) *fakeExecution {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun++
	if root == "" {
		root = id
	}
	e := &fakeExecution{
		id: id, root: root, runID: fmt.Sprintf("%s#%d", id, f.begun), started: at,
		pending: map[string]*workflowpb.PendingActivityInfo{},
	}
	e.add(at, &historypb.HistoryEvent{
		EventType: enums.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
		Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
			WorkflowExecutionStartedEventAttributes: &historypb.WorkflowExecutionStartedEventAttributes{Input: payloads(input)},
		},
	})
	f.executions = append(f.executions, e)
	return e
}

// add writes an event into the history.
func (e *fakeExecution) add(at time.Time, event *historypb.HistoryEvent) {
	event.EventId, event.EventTime = int64(len(e.history)+1), timestamppb.New(at)
	e.history = append(e.history, event)
}

// follows says which workflow has continued as this one.
func (e *fakeExecution) follows(before *fakeExecution) {
	e.history[0].GetWorkflowExecutionStartedEventAttributes().ContinuedExecutionRunId = before.runID
}

// schedule schedules an activity whose attempt begins at once, and returns its ID.
func (e *fakeExecution) schedule(at time.Time) (activity string) {
	activity = strconv.Itoa(len(e.history) + 1)
	e.add(at, &historypb.HistoryEvent{
		EventType: enums.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
		Attributes: &historypb.HistoryEvent_ActivityTaskScheduledEventAttributes{
			ActivityTaskScheduledEventAttributes: &historypb.ActivityTaskScheduledEventAttributes{ActivityId: activity},
		},
	})
	e.pending[activity] = &workflowpb.PendingActivityInfo{
		ActivityId: activity, State: enums.PENDING_ACTIVITY_STATE_STARTED, LastStartedTime: timestamppb.New(at),
	}
	return activity
}

// beat schedules an activity whose attempt has told this in a heartbeat.
func (e *fakeExecution) beat(heartbeat string) (activity string) {
	activity = e.schedule(time.Now())
	e.pending[activity].HeartbeatDetails = payloads(heartbeat)
	return activity
}

// complete ends an activity with a result. Kept back, its end is in the history only once tell is called.
func (e *fakeExecution) complete(activity string, result string, keptBack bool) {
	scheduled, _ := strconv.ParseInt(activity, 10, 64)
	delete(e.pending, activity)
	event := &historypb.HistoryEvent{
		EventType: enums.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
		Attributes: &historypb.HistoryEvent_ActivityTaskCompletedEventAttributes{
			ActivityTaskCompletedEventAttributes: &historypb.ActivityTaskCompletedEventAttributes{
				ScheduledEventId: scheduled, Result: payloads(result),
			},
		},
	}
	e.keptBack = append(e.keptBack, event)
	if !keptBack {
		e.tell()
	}
}

// tell writes what was kept back.
func (e *fakeExecution) tell() {
	for _, event := range e.keptBack {
		e.add(time.Time{}, event)
	}
	e.keptBack = nil
}

// end ends a workflow, and what it waits for.
func (e *fakeExecution) end(at time.Time, status enums.WorkflowExecutionStatus) {
	e.tell()
	clear(e.pending)
	e.ended, e.status = at, status
}

func payloads(text string) *common.Payloads {
	return &common.Payloads{Payloads: []*common.Payload{{Data: []byte(text)}}}
}

// answers says whether a call has an answer.
func (f *fakeTemporal) answers(call, id string) error {
	if f.fail == nil {
		return nil
	}
	return f.fail(call, id)
}

// ListWorkflow implements Histories.
func (f *fakeTemporal) ListWorkflow(
	context.Context, *workflowservice.ListWorkflowExecutionsRequest,
) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	if err := f.answers("list", ""); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := &workflowservice.ListWorkflowExecutionsResponse{}
	for _, e := range f.executions {
		if !e.unlisted {
			answer.Executions = append(answer.Executions, e.info())
		}
	}
	return answer, nil
}

// find returns a workflow, the newest of its name where none of its runs is meant. The caller holds mu.
func (f *fakeTemporal) find(id, runID string) (found *fakeExecution) {
	for _, e := range f.executions {
		if e.id == id && (runID == "" || e.runID == runID) {
			found = e
		}
	}
	return found
}

// DescribeWorkflowExecution implements Histories.
func (f *fakeTemporal) DescribeWorkflowExecution(
	_ context.Context, id, runID string,
) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	if err := f.answers("describe", id); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.find(id, runID)
	if e == nil {
		return nil, serviceerror.NewNotFound("gone")
	}
	answer := &workflowservice.DescribeWorkflowExecutionResponse{WorkflowExecutionInfo: e.info()}
	for _, activity := range e.pending {
		answer.PendingActivities = append(answer.PendingActivities, activity)
	}
	for _, child := range e.children {
		if f.find(child.id, "").isOpen() {
			answer.PendingChildren = append(answer.PendingChildren, &workflowpb.PendingChildExecutionInfo{
				WorkflowId: child.id, RunId: child.runID,
			})
		}
	}
	return answer, nil
}

// GetWorkflowHistory implements Histories.
func (f *fakeTemporal) GetWorkflowHistory(
	_ context.Context, id, runID string, _ bool, _ enums.HistoryEventFilterType,
) client.HistoryEventIterator {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read++
	e := f.find(id, runID)
	if e == nil {
		return &events{err: serviceerror.NewNotFound("gone")}
	}
	if err := f.answers("history", id); err != nil { // some came, the rest does not
		return &events{all: e.history[:len(e.history)/2], err: err}
	}
	return &events{all: e.history}
}

// histories is how many histories were read.
func (f *fakeTemporal) histories() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read
}

// events iterates over a history. An error comes behind the events.
type events struct {
	all []*historypb.HistoryEvent
	err error
}

func (e *events) HasNext() bool { return e.err != nil || len(e.all) > 0 }

func (e *events) Next() (*historypb.HistoryEvent, error) {
	if len(e.all) == 0 {
		return nil, e.err
	}
	first := e.all[0]
	e.all = e.all[1:]
	return first, nil
}
