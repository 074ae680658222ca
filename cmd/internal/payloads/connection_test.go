package payloads

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	commonpb "go.temporal.io/api/common/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	querypb "go.temporal.io/api/query/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-ml/spillway/activities/wire"
)

// frontend stands in for Temporal's: it keeps what it is sent, and answers with what it was given. Package engine tries
// the same with Temporal itself.
type frontend struct {
	workflowservice.UnimplementedWorkflowServiceServer

	mu      sync.Mutex
	sent    []proto.Message // guarded by mu
	refuse  int             // how many requests are refused first; guarded by mu
	payload *commonpb.Payload
	query   bool
}

func (f *frontend) take(request proto.Message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, request)
	if f.refuse > 0 {
		f.refuse--
		return status.Error(codes.Unavailable, "not now")
	}
	return nil
}

func (f *frontend) started() *historypb.History {
	return &historypb.History{Events: []*historypb.HistoryEvent{{
		Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
			WorkflowExecutionStartedEventAttributes: &historypb.WorkflowExecutionStartedEventAttributes{
				Input: &commonpb.Payloads{Payloads: []*commonpb.Payload{f.payload}},
			},
		},
	}}}
}

// RespondActivityTaskFailed implements workflowservice.WorkflowServiceServer.
func (f *frontend) RespondActivityTaskFailed(
	_ context.Context, request *workflowservice.RespondActivityTaskFailedRequest,
) (*workflowservice.RespondActivityTaskFailedResponse, error) {
	return &workflowservice.RespondActivityTaskFailedResponse{}, f.take(request)
}

// RespondWorkflowTaskFailed implements workflowservice.WorkflowServiceServer.
func (f *frontend) RespondWorkflowTaskFailed(
	_ context.Context, request *workflowservice.RespondWorkflowTaskFailedRequest,
) (*workflowservice.RespondWorkflowTaskFailedResponse, error) {
	return &workflowservice.RespondWorkflowTaskFailedResponse{}, f.take(request)
}

// RespondQueryTaskCompleted implements workflowservice.WorkflowServiceServer.
func (f *frontend) RespondQueryTaskCompleted(
	_ context.Context, request *workflowservice.RespondQueryTaskCompletedRequest,
) (*workflowservice.RespondQueryTaskCompletedResponse, error) {
	return &workflowservice.RespondQueryTaskCompletedResponse{}, f.take(request)
}

// PollWorkflowTaskQueue implements workflowservice.WorkflowServiceServer.
func (f *frontend) PollWorkflowTaskQueue(
	context.Context, *workflowservice.PollWorkflowTaskQueueRequest,
) (*workflowservice.PollWorkflowTaskQueueResponse, error) {
	task := &workflowservice.PollWorkflowTaskQueueResponse{TaskToken: []byte("task"), History: f.started()}
	if f.query {
		task.Query = &querypb.WorkflowQuery{QueryType: "where"}
	}
	return task, nil
}

// PollActivityTaskQueue implements workflowservice.WorkflowServiceServer.
func (f *frontend) PollActivityTaskQueue(
	context.Context, *workflowservice.PollActivityTaskQueueRequest,
) (*workflowservice.PollActivityTaskQueueResponse, error) {
	return &workflowservice.PollActivityTaskQueueResponse{
		TaskToken: []byte("task"), Input: &commonpb.Payloads{Payloads: []*commonpb.Payload{f.payload}},
	}, nil
}

// GetWorkflowExecutionHistory implements workflowservice.WorkflowServiceServer.
func (f *frontend) GetWorkflowExecutionHistory(
	context.Context, *workflowservice.GetWorkflowExecutionHistoryRequest,
) (*workflowservice.GetWorkflowExecutionHistoryResponse, error) {
	return &workflowservice.GetWorkflowExecutionHistoryResponse{History: f.started()}, nil
}

// ListWorkflowExecutions implements workflowservice.WorkflowServiceServer.
func (f *frontend) ListWorkflowExecutions(
	context.Context, *workflowservice.ListWorkflowExecutionsRequest,
) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	return &workflowservice.ListWorkflowExecutionsResponse{Executions: []*workflowpb.WorkflowExecutionInfo{
		{Memo: &commonpb.Memo{Fields: map[string]*commonpb.Payload{"goal": f.payload}}},
	}}, nil
}

// dial serves f and connects to it with keys.
func (f *frontend) dial(t *testing.T, keys *Keys) workflowservice.WorkflowServiceClient {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	workflowservice.RegisterWorkflowServiceServer(server, f)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // it ends with Stop
	options, err := codecOf(keys).DialOptions()
	if err != nil {
		t.Fatal(err)
	}
	connection, err := grpc.NewClient("passthrough:///temporal", append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = connection.Close()
		server.Stop()
		serving.Wait()
	})
	return workflowservice.NewWorkflowServiceClient(connection)
}

func TestARequestThatIsSentAgainIsEncryptedOnceAndStaysAsItWas(t *testing.T) {
	t.Parallel()
	f := &frontend{refuse: 2}
	keys := keysOf(t, november)
	frontend := f.dial(t, keys)
	const message, detail = "the file of Ms Alvarez is damaged", "page 7"
	request := &workflowservice.RespondActivityTaskFailedRequest{Failure: &failurepb.Failure{
		Message: message, StackTrace: "main.go:12",
		FailureInfo: &failurepb.Failure_ApplicationFailureInfo{
			ApplicationFailureInfo: &failurepb.ApplicationFailureInfo{
				Details: &commonpb.Payloads{Payloads: []*commonpb.Payload{{Data: []byte(detail)}}},
			},
		},
		Cause: &failurepb.Failure{Message: message},
	}}
	before := proto.Clone(request)
	for range 3 { // as the SDK does with a request that was not answered
		_, _ = frontend.RespondActivityTaskFailed(t.Context(), request)
	}
	if !proto.Equal(request, before) {
		t.Errorf("the request became %v", request)
	}
	if len(f.sent) != 3 {
		t.Fatalf("%d requests came, want 3", len(f.sent))
	}
	for _, sent := range f.sent {
		text, err := proto.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		for _, plain := range []string{message, detail, "main.go"} {
			if bytes.Contains(text, []byte(plain)) {
				t.Errorf("%q was sent in clear: %v", plain, sent)
			}
		}
		failed, _ := sent.(*workflowservice.RespondActivityTaskFailedRequest)
		read, err := codecOf(keys).Decode(failed.GetFailure().GetApplicationFailureInfo().GetDetails().GetPayloads())
		if err != nil || string(read[0].GetData()) != detail {
			t.Errorf("the details are %v, %v: want %q encrypted once", read, err, detail)
		}
	}
}

func TestATaskThatCannotBeReadIsGivenBackSoThatItsRunWaits(t *testing.T) {
	t.Parallel()
	encrypted, err := codecOf(keysOf(t, october)).Encode([]*commonpb.Payload{{Data: []byte("plain")}})
	if err != nil {
		t.Fatal(err)
	}
	workflows := func(t *testing.T, c workflowservice.WorkflowServiceClient) []byte {
		t.Helper()
		task, err := c.PollWorkflowTaskQueue(t.Context(), &workflowservice.PollWorkflowTaskQueueRequest{})
		if err != nil || task.GetHistory() != nil {
			t.Errorf("polled %v, %v, want no task", task, err)
		}
		return task.GetTaskToken()
	}
	for name, row := range map[string]struct {
		query bool
		poll  func(*testing.T, workflowservice.WorkflowServiceClient) []byte
	}{
		"of a workflow": {poll: workflows},
		"a query":       {query: true, poll: workflows},
		"of a stage": {poll: func(t *testing.T, c workflowservice.WorkflowServiceClient) []byte {
			t.Helper()
			task, err := c.PollActivityTaskQueue(t.Context(), &workflowservice.PollActivityTaskQueueRequest{})
			if err != nil || task.GetInput() != nil {
				t.Errorf("polled %v, %v, want no task", task, err)
			}
			return task.GetTaskToken()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &frontend{payload: encrypted[0], query: row.query}
			if token := row.poll(t, f.dial(t, nil)); len(token) > 0 {
				t.Errorf("polled the task %q, want none", token)
			}
			said := ""
			switch sent := f.sent[0].(type) {
			case *workflowservice.RespondWorkflowTaskFailedRequest:
				said = sent.GetFailure().GetMessage()
			case *workflowservice.RespondQueryTaskCompletedRequest:
				said = sent.GetErrorMessage()
			case *workflowservice.RespondActivityTaskFailedRequest:
				said = sent.GetFailure().GetMessage()
				if lost := sent.GetFailure().GetApplicationFailureInfo(); lost.GetType() != wire.LostError ||
					lost.GetNonRetryable() || lost.GetNextRetryDelay().AsDuration() != againAfter {
					t.Errorf("the attempt failed as %v, want it lost, and tried again after %s", lost, againAfter)
				}
			}
			if !strings.Contains(said, `"2026-10"`) {
				t.Errorf("it was answered with %v, want the key in it", f.sent)
			}
		})
	}
}

func TestOnePayloadThatCannotBeReadSpoilsNoListAndAHistoryOnce(t *testing.T) {
	t.Parallel()
	encrypted, err := codecOf(keysOf(t, october)).Encode([]*commonpb.Payload{{Data: []byte("plain")}})
	if err != nil {
		t.Fatal(err)
	}
	frontend := (&frontend{payload: encrypted[0]}).dial(t, keysOf(t, november))
	listed, err := frontend.ListWorkflowExecutions(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{})
	if err != nil || len(listed.GetExecutions()) != 1 {
		t.Errorf("listed %v, %v, want the run", listed, err)
	}
	_, err = frontend.GetWorkflowExecutionHistory(t.Context(), &workflowservice.GetWorkflowExecutionHistoryRequest{})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), `"2026-10"`) {
		t.Errorf("a history: %v, want a failure that names the key and is not tried again", err)
	}
}
