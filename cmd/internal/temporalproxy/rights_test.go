package temporalproxy

import (
	"strings"
	"testing"
	"time"

	commandpb "go.temporal.io/api/command/v1"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
)

const (
	namespace = "default"
	uuid      = "01a20412-418a-7655-be23-07d6c87df3f5"
	sticky    = "host:" + uuid
)

// ours are the rights of build 1 of app, which was given a task and a page of the run app-a.
func ours() (rights, *given) {
	g := newGiven()
	g.note(nil, &workflowservice.PollWorkflowTaskQueueResponse{
		TaskToken: []byte("task"), NextPageToken: []byte("page"),
		WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: "app-a", RunId: uuid},
	}, time.Unix(1e9, 0))
	g.own(run{"app-a", uuid}, owner{})
	return rights{namespace: namespace, app: "app", build: "1", queue: "app@1"}, g
}

func queue(name string) *taskqueuepb.TaskQueue { return &taskqueuepb.TaskQueue{Name: name} }

func stickyOf(name, normal string) *taskqueuepb.TaskQueue {
	return &taskqueuepb.TaskQueue{Name: name, Kind: enums.TASK_QUEUE_KIND_STICKY, NormalName: normal}
}

// orders is a run's answer to its task with one command.
func orders(command *commandpb.Command) *workflowservice.RespondWorkflowTaskCompletedRequest {
	return &workflowservice.RespondWorkflowTaskCompletedRequest{
		Namespace: namespace, TaskToken: []byte("task"), Commands: []*commandpb.Command{command},
		StickyAttributes: &taskqueuepb.StickyExecutionAttributes{WorkerTaskQueue: stickyOf(sticky, "app@1")},
	}
}

func activity(queueName string) *workflowservice.RespondWorkflowTaskCompletedRequest {
	return orders(&commandpb.Command{Attributes: &commandpb.Command_ScheduleActivityTaskCommandAttributes{
		ScheduleActivityTaskCommandAttributes: &commandpb.ScheduleActivityTaskCommandAttributes{
			ActivityType: &commonpb.ActivityType{Name: "stage"}, TaskQueue: queue(queueName),
		},
	}})
}

func child(in, queueName, id string) *workflowservice.RespondWorkflowTaskCompletedRequest {
	return orders(&commandpb.Command{Attributes: &commandpb.Command_StartChildWorkflowExecutionCommandAttributes{
		StartChildWorkflowExecutionCommandAttributes: &commandpb.StartChildWorkflowExecutionCommandAttributes{
			//nolint:staticcheck // deprecated, but the server obeys it
			Namespace: in, TaskQueue: queue(queueName), WorkflowId: id,
		},
	}})
}

func signal(in, id string) *workflowservice.RespondWorkflowTaskCompletedRequest {
	return orders(&commandpb.Command{Attributes: &commandpb.Command_SignalExternalWorkflowExecutionCommandAttributes{
		SignalExternalWorkflowExecutionCommandAttributes: &commandpb.SignalExternalWorkflowExecutionCommandAttributes{
			//nolint:staticcheck // deprecated, but the server obeys it
			Namespace: in, Execution: &commonpb.WorkflowExecution{WorkflowId: id},
		},
	}})
}

func cancel(id string) *workflowservice.RespondWorkflowTaskCompletedRequest {
	attributes := &commandpb.RequestCancelExternalWorkflowExecutionCommandAttributes{WorkflowId: id}
	return orders(&commandpb.Command{
		Attributes: &commandpb.Command_RequestCancelExternalWorkflowExecutionCommandAttributes{
			RequestCancelExternalWorkflowExecutionCommandAttributes: attributes,
		},
	})
}

func again(queueName string) *workflowservice.RespondWorkflowTaskCompletedRequest {
	attributes := &commandpb.ContinueAsNewWorkflowExecutionCommandAttributes{TaskQueue: queue(queueName)}
	return orders(&commandpb.Command{Attributes: &commandpb.Command_ContinueAsNewWorkflowExecutionCommandAttributes{
		ContinueAsNewWorkflowExecutionCommandAttributes: attributes,
	}})
}

func read(workflow, page string) *workflowservice.GetWorkflowExecutionHistoryRequest {
	return &workflowservice.GetWorkflowExecutionHistoryRequest{
		Namespace: namespace, Execution: &commonpb.WorkflowExecution{WorkflowId: workflow, RunId: uuid},
		NextPageToken: []byte(page),
	}
}

func poll(of *taskqueuepb.TaskQueue) *workflowservice.PollWorkflowTaskQueueRequest {
	return &workflowservice.PollWorkflowTaskQueueRequest{Namespace: namespace, TaskQueue: of}
}

func TestAWorkflowWorkerMayDoItsWork(t *testing.T) {
	t.Parallel()
	r, g := ours()
	timer := &commandpb.Command{Attributes: &commandpb.Command_StartTimerCommandAttributes{}}
	stickyAnswer := orders(timer)
	plainAnswer := orders(timer)
	plainAnswer.StickyAttributes = nil
	for name, request := range map[string]any{
		"what the system can": &workflowservice.GetSystemInfoRequest{},
		"the namespace":       &workflowservice.DescribeNamespaceRequest{Namespace: namespace},
		"a poll":              poll(queue("app@1")),
		"a poll of its own":   poll(stickyOf(sticky, "app@1")),
		"commands for the worker": &workflowservice.PollNexusTaskQueueRequest{
			Namespace: namespace,
			TaskQueue: queue("temporal-sys/worker-commands/default/" + uuid),
		},
		"a timer":                 stickyAnswer,
		"a timer, not remembered": plainAnswer,
		"a task of a stage":       activity("app@1/stage"),
		"a task for the pool":     activity("app@1/stage.pool"),
		"a chunk of a map":        child("", "app@1", "app-a/stage-0"),
		"a child without a name":  child(namespace, "app@1", uuid+"_7"),
		"a signal to a chunk":     signal(namespace, "app-a/stage-0"),
		"the cancelling of one":   cancel("app-a/stage-0"),
		"continuing as new":       again("app@1"),
		"a failed task": &workflowservice.RespondWorkflowTaskFailedRequest{
			Namespace: namespace,
			TaskToken: []byte("task"),
		},
		"an answered query": &workflowservice.RespondQueryTaskCompletedRequest{
			Namespace: namespace,
			TaskToken: []byte("task"),
		},
		"the history":   read("app-a", ""),
		"its next page": read("app-a", "page"),
		"forgetting where it runs": &workflowservice.ResetStickyTaskQueueRequest{
			Namespace: namespace,
			Execution: &commonpb.WorkflowExecution{WorkflowId: "app-a", RunId: uuid},
		},
		"going away": &workflowservice.ShutdownWorkerRequest{
			Namespace: namespace, TaskQueue: "app@1",
			StickyTaskQueue: sticky,
		},
	} {
		if err := r.check(request, g); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	g.note(nil, &workflowservice.PollWorkflowTaskQueueResponse{
		TaskToken: []byte("chunk"), WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: "app-a/stage-0", RunId: uuid},
	}, time.Unix(1e9, 0))
	up := signal("", "app-a")
	up.TaskToken = []byte("chunk")
	if err := r.check(up, g); err != nil {
		t.Errorf("a chunk's signal to its run: %v", err)
	}
}

func TestAttackAWorkflowWorkerMayDoNothingElse(t *testing.T) {
	t.Parallel()
	r, g := ours()
	forged := activity("app@1/stage")
	forged.TaskToken = []byte("forged")
	diverted := activity("app@1/stage")
	diverted.StickyAttributes.WorkerTaskQueue = stickyOf("spillway-engine", "app@1")
	normal := activity("app@1/stage")
	normal.StickyAttributes.WorkerTaskQueue = queue("other@2")
	for name, request := range map[string]any{
		"starting a run":       &workflowservice.StartWorkflowExecutionRequest{Namespace: namespace},
		"starting an activity": &workflowservice.StartActivityExecutionRequest{Namespace: namespace},
		"several at once":      &workflowservice.ExecuteMultiOperationRequest{Namespace: namespace},
		"a signal":             &workflowservice.SignalWorkflowExecutionRequest{Namespace: namespace},
		"an update":            &workflowservice.UpdateWorkflowExecutionRequest{Namespace: namespace},
		"ending a run":         &workflowservice.TerminateWorkflowExecutionRequest{Namespace: namespace},
		"a list of runs":       &workflowservice.ListWorkflowExecutionsRequest{Namespace: namespace},
		"a task of a stage": &workflowservice.PollActivityTaskQueueRequest{
			Namespace: namespace,
			TaskQueue: queue("app@1/stage"),
		},
		"the answer to one": &workflowservice.RespondActivityTaskCompletedRequest{
			Namespace: namespace,
			TaskToken: []byte("task"),
		},
		"a schedule":                    &workflowservice.CreateScheduleRequest{Namespace: namespace},
		"a new namespace":               &workflowservice.RegisterNamespaceRequest{Namespace: namespace},
		"another namespace":             &workflowservice.DescribeNamespaceRequest{Namespace: "temporal-system"},
		"another build's runs":          poll(queue("app@2")),
		"another app's runs":            poll(queue("other@1")),
		"the engine's":                  poll(queue("spillway-engine")),
		"another build's as if its own": poll(stickyOf("app@2", "app@1")),
		"the engine's as if its own":    poll(stickyOf("spillway-engine", "app@1")),
		"its own, of another build":     poll(stickyOf(sticky, "app@2")),
		"a queue of Nexus": &workflowservice.PollNexusTaskQueueRequest{
			Namespace: namespace,
			TaskQueue: queue("app@2"),
		},
		"a forged task": forged,
		"a forged failure": &workflowservice.RespondWorkflowTaskFailedRequest{
			Namespace: namespace,
			TaskToken: []byte("forged"),
		},
		"a forged answer": &workflowservice.RespondQueryTaskCompletedRequest{
			Namespace: namespace,
			TaskToken: []byte("forged"),
		},
		"tasks sent elsewhere":          diverted,
		"tasks sent to another build":   normal,
		"a command for another build":   activity("other@2/stage.pool"),
		"a command for the engine":      activity("spillway-engine"),
		"a command for its own queue":   activity("app@1"),
		"a command for a longer build":  activity("app@12/stage"),
		"a command for another stage":   activity("app@1/other"),
		"a command for a team's queue":  activity("app@1/stage~vision"),
		"a child of another build":      child("", "other@2", "app-a/stage-0"),
		"a child in the place of a run": child("", "app@1", "app-b"),
		"a child in another namespace":  child("temporal-system", "app@1", "app-a/stage-0"),
		"a signal to another run":       signal("", "app-b"),
		"a signal to another's chunk":   signal("", "app-b/stage-0"),
		"a signal elsewhere":            signal("temporal-system", "app-a/stage-0"),
		"cancelling another run":        cancel("app-b"),
		"going on as another build":     again("other@2"),
		"an operation of Nexus": orders(
			&commandpb.Command{Attributes: &commandpb.Command_ScheduleNexusOperationCommandAttributes{}}),
		"a command of no kind":         orders(&commandpb.Command{}),
		"another run's history":        read("app-b", ""),
		"another's with a forged page": read("app-a", "forged"),
		"a page as if of another's":    read("app-b", "page"),
		"forgetting where another's run": &workflowservice.ResetStickyTaskQueueRequest{
			Namespace: namespace,
			Execution: &commonpb.WorkflowExecution{WorkflowId: "app-b"},
		},
		"sending another worker away": &workflowservice.ShutdownWorkerRequest{Namespace: namespace, TaskQueue: "app@2"},
	} {
		if err := r.check(request, g); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want a refusal of one line", name, err)
		}
	}
}

func TestWhatAWorkerWasGivenIsForgottenInTime(t *testing.T) {
	t.Parallel()
	g := newGiven()
	begin := time.Unix(1e9, 0)
	give := func(token string, at time.Duration) {
		g.note(nil, &workflowservice.PollWorkflowTaskQueueResponse{
			TaskToken: []byte(token), WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: token},
		}, begin.Add(at))
	}
	knows := func(token string) bool {
		_, ok := g.of([]byte(token))
		if held := g.holds(run{workflow: token}); held != ok {
			t.Errorf("%s: its run is held: %v, its token: %v", token, held, ok)
		}
		return ok
	}
	give("a", 0)
	give("b", remembered-time.Second)
	give("c", remembered)
	if !knows("a") || !knows("b") || !knows("c") {
		t.Error("a task that may still be answered is forgotten")
	}
	give("d", 2*remembered)
	if knows("a") || knows("b") || !knows("c") || !knows("d") {
		t.Error("old tasks are kept, or new ones forgotten")
	}
	g.note(nil, &workflowservice.PollWorkflowTaskQueueResponse{}, begin) // a poll that found nothing
	if knows("") {
		t.Error("no token counts as one")
	}
}
