package temporalproxy

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	commandpb "go.temporal.io/api/command/v1"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
)

// rights are those of the workflow worker of one build.
type rights struct {
	namespace  string
	app, build string
	queue      string // of the build's workflows
}

// namespaced is a request that names its namespace.
type namespaced interface{ GetNamespace() string }

// Where a worker polls for itself alone: the queue of the runs that it remembers, and that of what Temporal has to tell
// it.
var (
	stickyQueue  = regexp.MustCompile(`^[^@/]+:[0-9a-f-]{36}$`)
	commandQueue = regexp.MustCompile(`^temporal-sys/worker-commands/[^/]+/[0-9a-zA-Z-]+$`)
	// unnamedChild is the ID of a child workflow that its pipeline gives none: a run ID of its parent and a number.
	unnamedChild = regexp.MustCompile(`^[0-9a-f-]{36}_[0-9]+$`)
)

// check says why a worker that was given what g remembers may not ask for it; nil when it may.
func (r rights) check(request any, g *given) error {
	if in, is := request.(namespaced); is && in.GetNamespace() != r.namespace {
		return fmt.Errorf("namespace %q is none of its build's", in.GetNamespace())
	}
	switch in := request.(type) {
	case *workflowservice.GetSystemInfoRequest, *workflowservice.DescribeNamespaceRequest,
		*workflowservice.RecordWorkerHeartbeatRequest:
		return nil
	case *workflowservice.PollWorkflowTaskQueueRequest:
		return r.poll(in.GetTaskQueue())
	case *workflowservice.PollNexusTaskQueueRequest:
		if name := in.GetTaskQueue().GetName(); !commandQueue.MatchString(name) {
			return foreignQueue(name)
		}
		return nil
	case *workflowservice.ShutdownWorkerRequest:
		if name := in.GetTaskQueue(); name != "" && name != r.queue {
			return foreignQueue(name)
		}
		return nil
	case *workflowservice.RespondWorkflowTaskCompletedRequest:
		return r.complete(in, g)
	case *workflowservice.RespondWorkflowTaskFailedRequest:
		return own(g, in.GetTaskToken())
	case *workflowservice.RespondQueryTaskCompletedRequest:
		return own(g, in.GetTaskToken())
	case *workflowservice.RespondNexusTaskCompletedRequest:
		return own(g, in.GetTaskToken())
	case *workflowservice.RespondNexusTaskFailedRequest:
		return own(g, in.GetTaskToken())
	case *workflowservice.GetWorkflowExecutionHistoryRequest:
		return history(in, g)
	case *workflowservice.ResetStickyTaskQueueRequest:
		return held(g, in.GetExecution())
	default:
		return errors.New("a workflow worker has no use for it; pipelines reach Temporal through their own runs only")
	}
}

// errNobodys refuses what depends on whose a run is where that was not found out, which is a fault of the proxy's own.
var errNobodys = errors.New("nobody has told whose it is")

func foreignQueue(name string) error { return fmt.Errorf("task queue %q is none of its build's", name) }

// poll checks where workflow tasks are taken from.
func (r rights) poll(queue *taskqueuepb.TaskQueue) error {
	name := queue.GetName()
	if queue.GetKind() == enums.TASK_QUEUE_KIND_STICKY {
		if !stickyQueue.MatchString(name) || queue.GetNormalName() != r.queue {
			return foreignQueue(name)
		}
		return nil
	}
	if name != r.queue {
		return foreignQueue(name)
	}
	return nil
}

// own checks that a task is one that the worker was given.
func own(g *given, token []byte) error {
	if _, ok := g.of(token); !ok {
		return errors.New("the task is none that it was given")
	}
	return nil
}

// held checks that a run is one of which the worker was given a task.
func held(g *given, execution *commonpb.WorkflowExecution) error {
	if !g.holds(runOf(execution)) {
		return fmt.Errorf("run %q is none that it was given a task of", execution.GetWorkflowId())
	}
	return nil
}

// history checks what is read. A page names what is read whatever else the request says, and is not signed.
func history(in *workflowservice.GetWorkflowExecutionHistoryRequest, g *given) error {
	if page := in.GetNextPageToken(); len(page) > 0 {
		if of, ok := g.of(page); !ok || of != runOf(in.GetExecution()) {
			return errors.New("the page is none that it was given")
		}
	}
	return held(g, in.GetExecution())
}

// complete checks what a run orders.
func (r rights) complete(in *workflowservice.RespondWorkflowTaskCompletedRequest, g *given) error {
	of, ok := g.of(in.GetTaskToken())
	if !ok {
		return own(g, in.GetTaskToken())
	}
	if sticky := in.GetStickyAttributes().GetWorkerTaskQueue(); sticky != nil &&
		sticky.GetKind() != enums.TASK_QUEUE_KIND_STICKY {
		return foreignQueue(sticky.GetName())
	} else if sticky != nil {
		if err := r.poll(sticky); err != nil {
			return err
		}
	}
	for _, command := range in.GetCommands() {
		if err := r.order(command, of, g); err != nil {
			return fmt.Errorf("run %s: %w", of.workflow, err)
		}
	}
	return nil
}

// order checks one command of a run.
func (r rights) order(command *commandpb.Command, of run, g *given) error {
	workflow := of.workflow
	switch attributes := command.GetAttributes().(type) {
	case *commandpb.Command_ScheduleActivityTaskCommandAttributes:
		o, known := g.owner(of)
		if !known {
			return errNobodys
		}
		return o.schedule(r.app, r.build, attributes.ScheduleActivityTaskCommandAttributes)
	case *commandpb.Command_StartChildWorkflowExecutionCommandAttributes:
		in := attributes.StartChildWorkflowExecutionCommandAttributes
		if name := in.GetTaskQueue().GetName(); name != r.queue {
			return foreignQueue(name)
		}
		//nolint:staticcheck // deprecated, but the server obeys it
		return r.below(in.GetNamespace(), in.GetWorkflowId(), workflow)
	case *commandpb.Command_SignalExternalWorkflowExecutionCommandAttributes:
		in := attributes.SignalExternalWorkflowExecutionCommandAttributes
		//nolint:staticcheck // deprecated, but the server obeys it
		return r.kin(in.GetNamespace(), in.GetExecution().GetWorkflowId(), workflow)
	case *commandpb.Command_RequestCancelExternalWorkflowExecutionCommandAttributes:
		in := attributes.RequestCancelExternalWorkflowExecutionCommandAttributes
		//nolint:staticcheck // deprecated, but the server obeys it
		return r.below(in.GetNamespace(), in.GetWorkflowId(), workflow)
	case *commandpb.Command_ContinueAsNewWorkflowExecutionCommandAttributes:
		in := attributes.ContinueAsNewWorkflowExecutionCommandAttributes
		if name := in.GetTaskQueue().GetName(); name != "" && name != r.queue {
			return foreignQueue(name)
		}
		o, known := g.owner(of)
		if !known {
			return errNobodys
		}
		return o.goesOn(in)
	case *commandpb.Command_StartTimerCommandAttributes, *commandpb.Command_CancelTimerCommandAttributes,
		*commandpb.Command_RequestCancelActivityTaskCommandAttributes, *commandpb.Command_RecordMarkerCommandAttributes,
		*commandpb.Command_CompleteWorkflowExecutionCommandAttributes,
		*commandpb.Command_FailWorkflowExecutionCommandAttributes,
		*commandpb.Command_CancelWorkflowExecutionCommandAttributes, *commandpb.Command_ProtocolMessageCommandAttributes,
		*commandpb.Command_UpsertWorkflowSearchAttributesCommandAttributes,
		*commandpb.Command_ModifyWorkflowPropertiesCommandAttributes:
		return nil
	default:
		return fmt.Errorf("a pipeline has no use for the command %v", command.GetCommandType())
	}
}

// below checks that a workflow is a child of the run, by its ID.
func (r rights) below(namespace, id, workflow string) error {
	if !strings.HasPrefix(id, workflow+"/") && !unnamedChild.MatchString(id) {
		return fmt.Errorf("workflow %q does not belong to it: the ID of a child begins with %q", id, workflow+"/")
	}
	return r.here(namespace)
}

// kin checks that a workflow is a child of the run or the run that it is a child of.
func (r rights) kin(namespace, id, workflow string) error {
	if strings.HasPrefix(workflow, id+"/") {
		return r.here(namespace)
	}
	return r.below(namespace, id, workflow)
}

// here checks the namespace of a command, which is its run's when it names none.
func (r rights) here(namespace string) error {
	if namespace != "" && namespace != r.namespace {
		return fmt.Errorf("namespace %q is none of its build's", namespace)
	}
	return nil
}

func runOf(execution *commonpb.WorkflowExecution) run {
	return run{execution.GetWorkflowId(), execution.GetRunId()}
}
