package devserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	commandpb "go.temporal.io/api/command/v1"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/temporalproxy"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// openProxy opens a proxy of build 1 of app to the process pid and returns what a worker dials there, without a token.
func openProxy(t *testing.T, s *Server, pid int, logger *slog.Logger) client.Options {
	t.Helper()
	behind, err := s.DialTemporal()
	if err != nil {
		t.Fatal(err)
	}
	d, err := temporalproxy.Open(t.Context(), temporalproxy.Options{
		Temporal: behind, Namespace: Namespace, App: "app", Build: "1",
		Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Close()
		_ = behind.Close()
	})
	d.Admit(pid)
	return client.Options{
		HostPort: d.Address(), Namespace: Namespace,
		Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	}
}

// ordering is a pipeline of one task and one child, which asks and is asked by signal.
func ordering(ctx workflow.Context, in string) (out string, err error) {
	if err := workflow.SetQueryHandler(ctx, "in", func() (string, error) { return in, nil }); err != nil {
		return "", err
	}
	child := workflow.ExecuteChildWorkflow(workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID: workflow.GetInfo(ctx).WorkflowExecution.ID + "/child",
	}), "answer")
	if err := child.SignalChildWorkflow(ctx, "question", in).Get(ctx, nil); err != nil {
		return "", err
	}
	workflow.GetSignalChannel(ctx, "answer").Receive(ctx, &in)
	if err := child.Get(ctx, nil); err != nil {
		return "", err
	}
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           "app@1/upper",
		StartToCloseTimeout: time.Minute,
	})
	return out, workflow.ExecuteActivity(ctx, "upper", in).Get(ctx, &out)
}

// answer is that child.
func answer(ctx workflow.Context) error {
	var in string
	workflow.GetSignalChannel(ctx, "question").Receive(ctx, &in)
	parent := workflow.GetInfo(ctx).ParentWorkflowExecution
	return workflow.SignalExternalWorkflow(ctx, parent.ID, parent.RunID, "answer", in+"!").Get(ctx, nil)
}

func TestAWorkflowWorkerWorksThroughItsProxy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, Options{Dir: dir, NoUI: true})
	owner := dialTemporal(t, s.TemporalAddress(), dir)
	defer owner.Close()
	stages := worker.New(owner, "app@1/upper", worker.Options{})
	stages.RegisterActivityWithOptions(upper, activity.RegisterOptions{Name: "upper"})
	c, err := client.DialContext(t.Context(), openProxy(t, s, os.Getpid(), testLog(t)))
	if err != nil {
		t.Fatalf("dial through the proxy: %v", err)
	}
	defer c.Close()
	pipelines := worker.New(c, "app@1", worker.Options{LocalActivityWorkerOnly: true, DisableEagerActivities: true})
	pipelines.RegisterWorkflow(ordering)
	pipelines.RegisterWorkflow(answer)
	for _, w := range []worker.Worker{stages, pipelines} {
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
	}
	run, err := owner.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "app-a", TaskQueue: "app@1"},
		"ordering", "spill")
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := run.Get(t.Context(), &got); err != nil || got != "SPILL!" {
		t.Errorf("result: got %q, error %v; want SPILL!", got, err)
	}
	asked, err := owner.QueryWorkflow(t.Context(), "app-a", "", "in")
	if err != nil || asked.Get(&got) != nil || got != "spill!" {
		t.Errorf("query: got %q, error %v; want spill!", got, err)
	}
}

// TestAttackABuildReachesItsOwnRunsOnly is a worker with other intents.
func TestAttackABuildReachesItsOwnRunsOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, Options{Dir: dir, NoUI: true})
	owner := dialTemporal(t, s.TemporalAddress(), dir)
	defer owner.Close()
	other, err := owner.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "other-a", TaskQueue: "other@2"},
		"pipeline")
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.DialContext(t.Context(), openProxy(t, s, os.Getpid(), testLog(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	refused := func(what string, err error) {
		t.Helper()
		if _, denied := errors.AsType[*serviceerror.PermissionDenied](err); !denied {
			t.Errorf("%s: got %v, want to be refused", what, err)
		}
	}
	_, err = c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{TaskQueue: "app@1"}, "ordering", "spill")
	refused("start a run", err)
	refused("end another's run", c.TerminateWorkflow(t.Context(), other.GetID(), "", "attack"))
	refused("signal another's run", c.SignalWorkflow(t.Context(), other.GetID(), "", "attack", nil))
	_, err = c.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{})
	refused("list runs", err)
	_, err = c.GetWorkflowHistory(t.Context(), other.GetID(), other.GetRunID(), false, 0).Next()
	refused("read another's run", err)
	raw := c.WorkflowService()
	poll := func(queue string) (*workflowservice.PollWorkflowTaskQueueResponse, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return raw.PollWorkflowTaskQueue(ctx, &workflowservice.PollWorkflowTaskQueueRequest{
			Namespace: Namespace, TaskQueue: &taskqueuepb.TaskQueue{Name: queue},
		})
	}
	_, err = poll("other@2")
	refused("take another's task", err)

	if _, err := owner.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "app-a", TaskQueue: "app@1"},
		"ordering", "spill"); err != nil {
		t.Fatal(err)
	}
	task, err := poll("app@1")
	if err != nil {
		t.Fatalf("take its own task: %v", err)
	}
	answer := &workflowservice.RespondWorkflowTaskCompletedRequest{
		Namespace: Namespace, TaskToken: task.GetTaskToken(),
		Commands: []*commandpb.Command{{
			CommandType: enums.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK,
			Attributes: &commandpb.Command_ScheduleActivityTaskCommandAttributes{
				ScheduleActivityTaskCommandAttributes: &commandpb.ScheduleActivityTaskCommandAttributes{
					ActivityId: "a", ActivityType: &commonpb.ActivityType{Name: "run"},
					TaskQueue: &taskqueuepb.TaskQueue{Name: "other@2/stage.pool"},
				},
			},
		}},
	}
	_, err = raw.RespondWorkflowTaskCompleted(t.Context(), answer)
	refused("order a task of another's stage", err)
	answer.Commands, answer.TaskToken = nil, append([]byte{}, task.GetTaskToken()[1:]...)
	_, err = raw.RespondWorkflowTaskCompleted(t.Context(), answer)
	refused("answer with a forged token", err)
	answer.TaskToken = task.GetTaskToken()
	if _, err = raw.RespondWorkflowTaskCompleted(t.Context(), answer); err != nil {
		t.Errorf("answer its own task: %v", err)
	}
}

// TestAttackABuildReachesQueuesOfItsTeamOnly orders tasks of a run, and of its child, on queues of teams: whose a run
// is says what the engine has started it with, whatever it says of itself later.
func TestAttackABuildReachesQueuesOfItsTeamOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, Options{Dir: dir, NoUI: true})
	owner := dialTemporal(t, s.TemporalAddress(), dir)
	defer owner.Close()
	c, err := client.DialContext(t.Context(), openProxy(t, s, os.Getpid(), testLog(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw := c.WorkflowService()
	if _, err := owner.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: "app-a", TaskQueue: "app@1",
		Memo: map[string]any{runs.OptionsMemo: wire.RunOptions{Team: "vision", Version: wire.WorkflowVersion}},
	}, "ordering", "spill"); err != nil {
		t.Fatal(err)
	}
	task := func() *workflowservice.PollWorkflowTaskQueueResponse {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		task, err := raw.PollWorkflowTaskQueue(ctx, &workflowservice.PollWorkflowTaskQueueRequest{
			Namespace: Namespace, TaskQueue: &taskqueuepb.TaskQueue{Name: "app@1"},
		})
		if err != nil || len(task.GetTaskToken()) == 0 {
			t.Fatalf("take a task: %v, error %v", task, err)
		}
		return task
	}
	orders := func(task *workflowservice.PollWorkflowTaskQueueResponse, commands ...*commandpb.Command) error {
		_, err := raw.RespondWorkflowTaskCompleted(t.Context(), &workflowservice.RespondWorkflowTaskCompletedRequest{
			Namespace: Namespace, TaskToken: task.GetTaskToken(), Commands: commands,
		})
		return err
	}
	stage := func(queue string) *commandpb.Command {
		return &commandpb.Command{
			CommandType: enums.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK,
			Attributes: &commandpb.Command_ScheduleActivityTaskCommandAttributes{
				ScheduleActivityTaskCommandAttributes: &commandpb.ScheduleActivityTaskCommandAttributes{
					ActivityId: "a", ActivityType: &commonpb.ActivityType{Name: "upper"},
					TaskQueue: &taskqueuepb.TaskQueue{Name: queue}, StartToCloseTimeout: durationpb.New(time.Minute),
				},
			},
		}
	}
	others, err := converter.GetDefaultDataConverter().ToPayload(
		wire.RunOptions{Team: "robots", Version: wire.WorkflowVersion})
	if err != nil {
		t.Fatal(err)
	}
	memo := &commonpb.Memo{Fields: map[string]*commonpb.Payload{runs.OptionsMemo: others}}
	check := func(who string, task *workflowservice.PollWorkflowTaskQueueResponse, also ...*commandpb.Command) {
		t.Helper()
		for _, queue := range []string{"app@1/upper~robots", "app@1/upper", "app@1/upper~robots.pool"} {
			err := orders(task, append(slices.Clone(also), stage(queue))...)
			if _, denied := errors.AsType[*serviceerror.PermissionDenied](err); !denied {
				t.Errorf("%s orders a task on %s: got %v, want to be refused", who, queue, err)
			}
		}
		if err := orders(task, append(slices.Clone(also), stage("app@1/upper~vision"))...); err != nil {
			t.Errorf("%s orders a task of its own team: %v", who, err)
		}
	}
	check("the run", task(), &commandpb.Command{
		CommandType: enums.COMMAND_TYPE_MODIFY_WORKFLOW_PROPERTIES,
		Attributes: &commandpb.Command_ModifyWorkflowPropertiesCommandAttributes{
			ModifyWorkflowPropertiesCommandAttributes: &commandpb.ModifyWorkflowPropertiesCommandAttributes{UpsertedMemo: memo},
		},
	}, &commandpb.Command{
		CommandType: enums.COMMAND_TYPE_START_CHILD_WORKFLOW_EXECUTION,
		Attributes: &commandpb.Command_StartChildWorkflowExecutionCommandAttributes{
			StartChildWorkflowExecutionCommandAttributes: &commandpb.StartChildWorkflowExecutionCommandAttributes{
				WorkflowId: "app-a/child", WorkflowType: &commonpb.WorkflowType{Name: "answer"},
				TaskQueue: &taskqueuepb.TaskQueue{Name: "app@1"}, Memo: memo,
			},
		},
	})
	child := task()
	for child.GetWorkflowExecution().GetWorkflowId() != "app-a/child" { // the run is told that its child has begun
		if err := orders(child); err != nil {
			t.Fatal(err)
		}
		child = task()
	}
	check("its child", child)
}

// lines is a log that a test waits for.
type lines chan string

// Write implements io.Writer.
func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// TestAttackAProxyIsForOneProcess comes to the proxy of another process, which ends the connection and says so in the
// log.
func TestAttackAProxyIsForOneProcess(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere the kernel does not tell who connects, and the directory of the socket is the guard")
	}
	s := start(t, Options{Dir: t.TempDir(), NoUI: true})
	told := make(lines, 100)
	address := openProxy(t, s, os.Getppid(), slog.New(slog.NewTextHandler(told, nil))).HostPort
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	_, err = workflowservice.NewWorkflowServiceClient(connection).
		GetSystemInfo(t.Context(), &workflowservice.GetSystemInfoRequest{})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("another process than the worker: got %v, want that the connection ends", err)
	}
	select {
	case line := <-told:
		if !strings.Contains(line, "another process than the workflow worker") ||
			!strings.Contains(line, fmt.Sprintf("pid=%d ", os.Getpid())) {
			t.Errorf("the log says %q, want who came", line)
		}
	case <-time.After(5 * time.Minute):
		t.Error("the log does not say that another process came")
	}
}
