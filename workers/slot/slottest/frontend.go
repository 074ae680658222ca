// Package slottest serves stage tasks from memory through Temporal's own protocol, for tests of who polls for them.
//
// It retries like the server does, with the last heartbeat details, but without a pause, so that tests need not wait.
package slottest

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/serviceerror"
	updatepb "go.temporal.io/api/update/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/spillway-ml/spillway/activities/wire"
)

// HeartbeatTimeout is the heartbeat timeout of every task.
const HeartbeatTimeout = 3 * time.Second

// Frontend holds task queues. All methods may be called concurrently.
type Frontend struct {
	workflowservice.UnimplementedWorkflowServiceServer

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at every change
	waiting  map[string][]*Activity
	byToken  map[string]*Activity
	polls    map[string]int
	shutdown map[string]bool // worker instances that poll no more
	answer   func(wire.Reserve) wire.Reserved
	reject   string // why every update is refused; empty when it is not
	tokens   int
}

// Activity is one stage task at the frontend.
type Activity struct {
	frontend  *Frontend
	queue     string
	workflow  string // that has scheduled it; empty when none has
	input     *commonpb.Payloads
	scheduled time.Time

	// The frontend's mutex guards what follows.
	attempt  int32
	details  *commonpb.Payloads
	result   *commonpb.Payloads
	err      error
	failures []error
	cancel   bool
	closed   chan struct{}
}

// Start returns a frontend and a client of it, both closed when the test ends.
func Start(tb testing.TB) (*Frontend, client.Client) {
	tb.Helper()
	f := &Frontend{
		changed: make(chan struct{}), waiting: make(map[string][]*Activity), byToken: make(map[string]*Activity),
		polls: make(map[string]int), shutdown: make(map[string]bool),
	}
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	workflowservice.RegisterWorkflowServiceServer(server, f)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != nil {
			tb.Errorf("serve the frontend: %v", err)
		}
	})
	c, err := client.Dial(client.Options{
		HostPort: "passthrough:///frontend",
		Logger:   sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		ConnectionOptions: client.ConnectionOptions{DialOptions: []grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		}},
	})
	if err != nil {
		tb.Fatalf("dial the frontend: %v", err)
	}
	tb.Cleanup(func() {
		c.Close()
		server.Stop()
		serving.Wait()
	})
	return f, c
}

// Submit puts a task on queue; input is encoded as JSON.
func (f *Frontend) Submit(tb testing.TB, queue string, task wire.Task, input any) *Activity {
	tb.Helper()
	encoded, err := json.Marshal(input)
	if err != nil {
		tb.Fatalf("encode the input of %s: %v", task.ID, err)
	}
	return f.SubmitOf(tb, task.Run, queue, task, json.RawMessage(encoded))
}

// SubmitOf puts an activity with any arguments on queue as workflow does, or as who has no workflow.
func (f *Frontend) SubmitOf(tb testing.TB, workflow, queue string, arguments ...any) *Activity {
	tb.Helper()
	payloads, err := converter.GetDefaultDataConverter().ToPayloads(arguments...)
	if err != nil {
		tb.Fatalf("encode the arguments of an activity: %v", err)
	}
	a := &Activity{
		frontend: f, queue: queue, workflow: workflow, input: payloads, scheduled: time.Now(),
		closed: make(chan struct{}),
	}
	f.change(func() { f.waiting[queue] = append(f.waiting[queue], a) })
	return a
}

// AwaitPolls waits until exactly n long polls are open on queue.
func (f *Frontend) AwaitPolls(tb testing.TB, queue string, n int) {
	tb.Helper()
	f.await(tb, "long polls on "+queue, func() bool { return f.polls[queue] == n })
}

// Wait returns the activity's result, or the error that its workflow would see.
func (a *Activity) Wait(tb testing.TB) (wire.Result, error) {
	tb.Helper()
	select {
	case <-a.closed:
	case <-tb.Context().Done():
		tb.Fatal("the test ended before the activity")
	}
	if a.err != nil {
		return wire.Result{}, a.err
	}
	var result wire.Result
	if err := converter.GetDefaultDataConverter().FromPayloads(a.result, &result); err != nil {
		tb.Fatalf("decode the result: %v", err)
	}
	return result, nil
}

// Closed is closed when the activity is over.
func (a *Activity) Closed() <-chan struct{} { return a.closed }

// Cancel asks for the activity's cancellation, which its worker sees in the answer to a heartbeat.
func (a *Activity) Cancel() { a.frontend.change(func() { a.cancel = true }) }

// Failures returns the retryable errors of the attempts so far.
func (a *Activity) Failures() []error {
	a.frontend.mu.Lock()
	defer a.frontend.mu.Unlock()
	return append([]error(nil), a.failures...)
}

// AwaitDetails waits until heartbeat details arrive that satisfy want.
func (a *Activity) AwaitDetails(tb testing.TB, what string, want func(wire.Heartbeat) bool) {
	tb.Helper()
	a.frontend.await(tb, what, func() bool {
		var details wire.Heartbeat
		err := converter.GetDefaultDataConverter().FromPayloads(a.details, &details)
		return a.details != nil && err == nil && want(details)
	})
}

// await waits until condition, which runs with the mutex held, is true.
func (f *Frontend) await(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	for {
		f.mu.Lock()
		met, changed := condition(), f.changed
		f.mu.Unlock()
		if met {
			return
		}
		select {
		case <-changed:
		case <-tb.Context().Done():
			tb.Fatalf("the test ended before this came true: %s", what)
		}
	}
}

// change runs edit with the mutex held and wakes all who wait.
func (f *Frontend) change(edit func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit()
	close(f.changed)
	f.changed = make(chan struct{})
}

// GetSystemInfo says that the server is a new one.
func (f *Frontend) GetSystemInfo(
	context.Context, *workflowservice.GetSystemInfoRequest,
) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{
		Capabilities: &workflowservice.GetSystemInfoResponse_Capabilities{ActivityFailureIncludeHeartbeat: true},
	}, nil
}

// DescribeNamespace says that open polls are completed when their worker shuts down.
func (f *Frontend) DescribeNamespace(
	context.Context, *workflowservice.DescribeNamespaceRequest,
) (*workflowservice.DescribeNamespaceResponse, error) {
	capabilities := &namespacepb.NamespaceInfo_Capabilities{WorkerPollCompleteOnShutdown: true, PollerAutoscaling: true}
	return &workflowservice.DescribeNamespaceResponse{
		NamespaceInfo: &namespacepb.NamespaceInfo{Capabilities: capabilities},
	}, nil
}

// ShutdownWorker completes the polls of a worker.
func (f *Frontend) ShutdownWorker(
	_ context.Context, r *workflowservice.ShutdownWorkerRequest,
) (*workflowservice.ShutdownWorkerResponse, error) {
	f.change(func() { f.shutdown[r.GetWorkerInstanceKey()] = true })
	return &workflowservice.ShutdownWorkerResponse{}, nil
}

// PollActivityTaskQueue hands out the oldest task of a queue, once there is one.
func (f *Frontend) PollActivityTaskQueue(
	ctx context.Context, r *workflowservice.PollActivityTaskQueueRequest,
) (*workflowservice.PollActivityTaskQueueResponse, error) {
	queue := r.GetTaskQueue().GetName()
	f.change(func() { f.polls[queue]++ })
	defer f.change(func() { f.polls[queue]-- })
	for {
		f.mu.Lock()
		changed, stopped := f.changed, f.shutdown[r.GetWorkerInstanceKey()]
		var response *workflowservice.PollActivityTaskQueueResponse
		if waiting := f.waiting[queue]; len(waiting) > 0 && !stopped {
			f.waiting[queue] = waiting[1:]
			response = f.start(waiting[0])
		}
		f.mu.Unlock()
		if response != nil {
			return response, nil
		}
		if stopped {
			return &workflowservice.PollActivityTaskQueueResponse{}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &workflowservice.PollActivityTaskQueueResponse{}, nil
		}
	}
}

// start begins the next attempt of a; the caller holds the mutex.
func (f *Frontend) start(a *Activity) *workflowservice.PollActivityTaskQueueResponse {
	a.attempt++
	f.tokens++
	token := strconv.Itoa(f.tokens)
	f.byToken[token] = a
	now := timestamppb.Now()
	response := &workflowservice.PollActivityTaskQueueResponse{
		TaskToken:                   []byte(token),
		WorkflowNamespace:           "default",
		ActivityType:                &commonpb.ActivityType{Name: "stage"},
		ActivityId:                  token,
		Input:                       a.input,
		HeartbeatDetails:            a.details,
		Attempt:                     a.attempt,
		ScheduledTime:               timestamppb.New(a.scheduled),
		CurrentAttemptScheduledTime: now,
		StartedTime:                 now,
		ScheduleToCloseTimeout:      durationpb.New(time.Hour),
		StartToCloseTimeout:         durationpb.New(time.Hour),
		HeartbeatTimeout:            durationpb.New(HeartbeatTimeout),
	}
	if a.workflow != "" {
		response.WorkflowType = &commonpb.WorkflowType{Name: "pipeline"}
		response.WorkflowExecution = &commonpb.WorkflowExecution{WorkflowId: a.workflow, RunId: "run"}
	}
	return response
}

// RecordActivityTaskHeartbeat keeps the details and tells of a cancellation.
func (f *Frontend) RecordActivityTaskHeartbeat(
	_ context.Context, r *workflowservice.RecordActivityTaskHeartbeatRequest,
) (*workflowservice.RecordActivityTaskHeartbeatResponse, error) {
	var cancel, known bool
	f.change(func() {
		var a *Activity
		if a, known = f.byToken[string(r.GetTaskToken())]; known {
			a.details, cancel = r.GetDetails(), a.cancel
		}
	})
	if !known {
		return nil, serviceerror.ToStatus(serviceerror.NewNotFound("activity is gone")).Err()
	}
	return &workflowservice.RecordActivityTaskHeartbeatResponse{CancelRequested: cancel}, nil
}

// Answer makes the frontend answer those who ask for more money with what answer returns; it refuses them before that.
func (f *Frontend) Answer(answer func(wire.Reserve) wire.Reserved) {
	f.change(func() { f.answer = answer })
}

// Reject makes the frontend refuse those who ask for more money, as a workflow without a handler for it does.
func (f *Frontend) Reject(message string) { f.change(func() { f.reject = message }) }

// UpdateWorkflowExecution answers an attempt that asks for more money.
func (f *Frontend) UpdateWorkflowExecution(
	_ context.Context, r *workflowservice.UpdateWorkflowExecutionRequest,
) (*workflowservice.UpdateWorkflowExecutionResponse, error) {
	var answer func(wire.Reserve) wire.Reserved
	var rejection string
	f.change(func() { answer, rejection = f.answer, f.reject })
	if rejection != "" {
		failure := temporal.GetDefaultFailureConverter().ErrorToFailure(temporal.NewApplicationError(rejection, ""))
		return updated(r, &updatepb.Outcome{Value: &updatepb.Outcome_Failure{Failure: failure}}), nil
	}
	if answer == nil {
		return nil, serviceerror.ToStatus(serviceerror.NewNotFound("nobody answers updates")).Err()
	}
	var ask wire.Reserve
	if err := converter.GetDefaultDataConverter().FromPayloads(r.GetRequest().GetInput().GetArgs(), &ask); err != nil {
		return nil, serviceerror.ToStatus(serviceerror.NewInvalidArgument(err.Error())).Err()
	}
	encoded, err := converter.GetDefaultDataConverter().ToPayloads(answer(ask))
	if err != nil {
		return nil, serviceerror.ToStatus(serviceerror.NewInternal(err.Error())).Err()
	}
	return updated(r, &updatepb.Outcome{Value: &updatepb.Outcome_Success{Success: encoded}}), nil
}

// updated is the answer to an update that is over.
func updated(
	r *workflowservice.UpdateWorkflowExecutionRequest, outcome *updatepb.Outcome,
) *workflowservice.UpdateWorkflowExecutionResponse {
	return &workflowservice.UpdateWorkflowExecutionResponse{
		UpdateRef: &updatepb.UpdateRef{
			WorkflowExecution: r.GetWorkflowExecution(),
			UpdateId:          r.GetRequest().GetMeta().GetUpdateId(),
		},
		Stage:   enums.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED,
		Outcome: outcome,
	}
}

// RespondActivityTaskCompleted ends an activity with its result.
func (f *Frontend) RespondActivityTaskCompleted(
	_ context.Context, r *workflowservice.RespondActivityTaskCompletedRequest,
) (*workflowservice.RespondActivityTaskCompletedResponse, error) {
	f.end(r.GetTaskToken(), func(a *Activity) bool { a.result = r.GetResult(); return true })
	return &workflowservice.RespondActivityTaskCompletedResponse{}, nil
}

// RespondActivityTaskFailed ends an activity, or puts it back on its queue when the error may be retried.
func (f *Frontend) RespondActivityTaskFailed(
	_ context.Context, r *workflowservice.RespondActivityTaskFailedRequest,
) (*workflowservice.RespondActivityTaskFailedResponse, error) {
	f.end(r.GetTaskToken(), func(a *Activity) bool {
		err := fromFailure(r.GetFailure())
		if r.GetLastHeartbeatDetails() != nil {
			a.details = r.GetLastHeartbeatDetails()
		}
		if !r.GetFailure().GetApplicationFailureInfo().GetNonRetryable() {
			a.failures = append(a.failures, err)
			f.waiting[a.queue] = append(f.waiting[a.queue], a)
			return false
		}
		a.err = err
		return true
	})
	return &workflowservice.RespondActivityTaskFailedResponse{}, nil
}

// RespondActivityTaskCanceled ends an activity as cancelled.
func (f *Frontend) RespondActivityTaskCanceled(
	_ context.Context, r *workflowservice.RespondActivityTaskCanceledRequest,
) (*workflowservice.RespondActivityTaskCanceledResponse, error) {
	f.end(r.GetTaskToken(), func(a *Activity) bool { a.err = temporal.NewCanceledError(); return true })
	return &workflowservice.RespondActivityTaskCanceledResponse{}, nil
}

// end lets settle end the attempt of token; settle tells whether the activity is over.
func (f *Frontend) end(token []byte, settle func(*Activity) bool) {
	f.change(func() {
		if a, ok := f.byToken[string(token)]; ok {
			delete(f.byToken, string(token))
			if settle(a) {
				close(a.closed)
			}
		}
	})
}

func fromFailure(failure *failurepb.Failure) error {
	return temporal.GetDefaultFailureConverter().FailureToError(failure)
}
