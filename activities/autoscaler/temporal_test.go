package autoscaler

import (
	"context"
	"sync"
	"testing"

	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// fakeClient is the part of a Temporal client that the autoscaler uses.
type fakeClient struct {
	client.Client
	answer error // to the termination

	mu         sync.Mutex
	terminated []string
	updates    []client.UpdateWorkflowOptions
	queues     []string
	stats      *taskqueuepb.TaskQueueStats
}

func (f *fakeClient) TerminateWorkflow(_ context.Context, workflow, _, _ string, _ ...any) error {
	f.terminated = append(f.terminated, workflow)
	return f.answer
}

func (f *fakeClient) UpdateWorkflow(
	_ context.Context, options client.UpdateWorkflowOptions,
) (client.WorkflowUpdateHandle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.updates = append(f.updates, options)
	return nil, nil
}

func (f *fakeClient) WorkflowService() workflowservice.WorkflowServiceClient {
	return &fakeService{fakeClient: f}
}

// fakeService is the part of Temporal's service that the autoscaler uses.
type fakeService struct {
	workflowservice.WorkflowServiceClient
	fakeClient *fakeClient
}

func (s *fakeService) DescribeTaskQueue(
	_ context.Context, request *workflowservice.DescribeTaskQueueRequest, _ ...grpc.CallOption,
) (*workflowservice.DescribeTaskQueueResponse, error) {
	f := s.fakeClient
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queues = append(f.queues, request.GetNamespace()+" "+request.GetTaskQueue().GetName()+" "+
		request.GetTaskQueueType().String())
	return &workflowservice.DescribeTaskQueueResponse{Stats: f.stats}, nil
}

func TestTheWorkflowOfAnEarlierEngineIsEnded(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		answer error
		fails  bool
	}{
		"it runs":               {},
		"there is none":         {answer: serviceerror.NewNotFound("no such workflow")},
		"Temporal cannot do it": {answer: serviceerror.NewUnavailable("away"), fails: true},
	} {
		fake := &fakeClient{answer: row.answer}
		if err := EndLegacyWorkflow(t.Context(), fake); (err != nil) != row.fails {
			t.Errorf("%s: EndLegacyWorkflow = %v", name, err)
		}
		if len(fake.terminated) != 1 || fake.terminated[0] != "spillway-autoscaler" {
			t.Errorf("%s: terminated %q", name, fake.terminated)
		}
	}
}

func TestWhatTheLeaderAsksOfTemporal(t *testing.T) {
	t.Parallel()
	fake := &fakeClient{stats: &taskqueuepb.TaskQueueStats{ApproximateBacklogCount: 7}}
	opts := options(t, stream(t))
	opts.Client, opts.Namespace = fake, "ml"
	l := leader(t, opts)
	tasks, err := l.backlog(t.Context(), train.Queue())
	if err != nil || tasks != 7 || fake.queues[0] != "ml digits@b1/train Activity" {
		t.Errorf("backlog = %d, %v of %q", tasks, err, fake.queues)
	}
	fake.stats = nil
	if tasks, err := l.backlog(t.Context(), train.Queue()); err == nil {
		t.Errorf("backlog without statistics = %d, want an error", tasks)
	}
	window := predictor.Window{Run: "run-1", Stage: train, Tasks: 128, Priority: 2}
	if err := l.sendWindow(t.Context(), window, "1"); err != nil {
		t.Fatal(err)
	}
	got := fake.updates[0]
	if got.UpdateID != "1" || got.WorkflowID != "run-1" || got.UpdateName != runs.WindowUpdate || len(got.Args) != 1 ||
		got.Args[0] != any(window) || got.WaitForStage != client.WorkflowUpdateStageAccepted {
		t.Errorf("update %+v", got)
	}
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	opts := options(t, stream(t))
	opts.Hosts = nil
	if _, err := New(opts); err == nil || err.Error() != "new autoscaler: Options.Hosts is required" {
		t.Errorf("New without Hosts: %v", err)
	}
}
