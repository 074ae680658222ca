package autoscaler

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/grpc"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows"
)

// fakeClient is the part of a Temporal client that the autoscaler uses.
type fakeClient struct {
	client.Client
	beat func() error

	mu      sync.Mutex
	started []client.StartWorkflowOptions
	updates []client.UpdateWorkflowOptions
	queues  []string
	stats   *taskqueuepb.TaskQueueStats
}

func (f *fakeClient) RecordActivityHeartbeat(context.Context, []byte, ...any) error { return f.beat() }

func (f *fakeClient) ExecuteWorkflow(_ context.Context, options client.StartWorkflowOptions, _ any, _ ...any) (client.WorkflowRun, error) {
	f.started = append(f.started, options)
	return nil, nil
}

func (f *fakeClient) UpdateWorkflow(_ context.Context, options client.UpdateWorkflowOptions) (client.WorkflowUpdateHandle, error) {
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

func (s *fakeService) DescribeTaskQueue(_ context.Context, request *workflowservice.DescribeTaskQueueRequest, _ ...grpc.CallOption) (*workflowservice.DescribeTaskQueueResponse, error) {
	f := s.fakeClient
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queues = append(f.queues, request.GetNamespace()+" "+request.GetTaskQueue().GetName()+" "+request.GetTaskQueueType().String())
	return &workflowservice.DescribeTaskQueueResponse{Stats: f.stats}, nil
}

func TestTheWorkflowStartsTheNextLeaderWhateverBecameOfTheLast(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{
		"it served its time":      nil,
		"it failed for good":      temporal.NewNonRetryableApplicationError("no bucket", "x", nil),
		"it failed for some time": errors.New("NATS is away"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var suite testsuite.WorkflowTestSuite
			env := suite.NewTestWorkflowEnvironment()
			attempts := 0
			env.RegisterWorkflowWithOptions(Workflow, workflow.RegisterOptions{Name: WorkflowType})
			env.RegisterActivityWithOptions(func(ctx context.Context) error {
				if got := activity.GetInfo(ctx).HeartbeatTimeout; got != heartbeatTimeout {
					t.Errorf("heartbeat timeout = %v, want %v", got, heartbeatTimeout)
				}
				if attempts++; attempts == 3 {
					return nil // Temporal has retried twice
				}
				return end
			}, activity.RegisterOptions{Name: ActivityType})
			env.ExecuteWorkflow(WorkflowType)
			var again *workflow.ContinueAsNewError
			if err := env.GetWorkflowError(); !env.IsWorkflowCompleted() || !errors.As(err, &again) {
				t.Errorf("the workflow ended with %v, want it to continue as new", err)
			}
		})
	}
}

func TestACancelledAutoscalerEnds(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	ended := make(chan struct{}) // the leader goes on until it hears of it
	env.RegisterActivityWithOptions(func(context.Context) error {
		<-ended
		return nil
	}, activity.RegisterOptions{Name: ActivityType})
	env.RegisterDelayedCallback(env.CancelWorkflow, time.Millisecond)
	env.ExecuteWorkflow(Workflow)
	close(ended)
	if err := env.GetWorkflowError(); !temporal.IsCanceledError(err) {
		t.Errorf("the workflow ended with %v, want it cancelled", err)
	}
}

func TestStartUsesTheAutoscalerThatRuns(t *testing.T) {
	t.Parallel()
	fake := &fakeClient{}
	for range 2 {
		if err := Start(t.Context(), fake); err != nil {
			t.Fatal(err)
		}
	}
	for _, got := range fake.started {
		if got.ID != WorkflowID || got.TaskQueue != Queue || got.WorkflowIDConflictPolicy != enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING {
			t.Errorf("started with %+v", got)
		}
	}
}

func TestTheActivityLeadsAndStopsWhenTemporalSaysSo(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	fake := &fakeClient{stats: &taskqueuepb.TaskQueueStats{ApproximateBacklogCount: 7}}
	fake.beat = func() error { // cancelled once there is a plan
		if slots(t, opts.Board, train) > 0 {
			return temporal.NewCanceledError()
		}
		return nil
	}
	opts.Client = fake
	publish(t, js, scheduled(train, 3))
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.SetTestTimeout(30 * time.Second)
	l := leader(t, opts)
	env.RegisterActivity(l.Lead)
	_, err := env.ExecuteActivity(l.Lead)
	if err == nil || slots(t, opts.Board, train) == 0 {
		t.Errorf("Lead = %v with %d slots in force; want an error after there are some", err, slots(t, opts.Board, train))
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
	if err := l.sendWindow(t.Context(), window); err != nil {
		t.Fatal(err)
	}
	got := fake.updates[0]
	if got.WorkflowID != "run-1" || got.UpdateName != workflows.WindowUpdate || len(got.Args) != 1 || got.Args[0] != any(window) || got.WaitForStage != client.WorkflowUpdateStageAccepted {
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
