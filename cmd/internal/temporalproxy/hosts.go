package temporalproxy

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/proxy"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/wire"
)

// HostOptions say which hosts come in. All fields are required.
type HostOptions struct {
	// Temporal is a connection to the frontend with all rights. It is not closed.
	Temporal grpc.ClientConnInterface
	// Namespace is the only one that a host may name.
	Namespace string
	// Host says of which host, that has joined, a token is.
	Host func(token string) (host string, known bool)
	// Seal makes the token of a task one that only this host can show, and Open takes it back: also those that an engine
	// before this one has sealed, as attempts outlive it.
	Seal func(host string, task []byte) []byte
	Open func(host string, sealed []byte) (task []byte, genuine bool)
	// Withheld says why a host may not take tasks of a queue of a stage; nil where it may.
	Withheld func(ctx context.Context, host, queue string) error
	// Prove returns what shows that this host was given an attempt, which goes with the token of its task.
	Prove func(host string, given wire.Given) string
	// Logger receives a warning of what is refused, every ten seconds at most.
	Logger *slog.Logger
}

// Hosts lets hosts that have joined into Temporal: they may poll the queues of stages, answer the tasks that they were
// given, heartbeat, and ask the runs of these for money. They can start, signal, end, list or read nothing. It answers
// requests of gRPC over HTTP/2. Use NewHosts.
type Hosts struct {
	options HostOptions
	server  *grpc.Server
	working working

	mu   sync.Mutex
	told time.Time // when something that was refused was logged last; guarded by mu
}

// NewHosts returns a proxy; the caller closes it.
func NewHosts(o HostOptions) (*Hosts, error) {
	h := &Hosts{options: o}
	h.server = grpc.NewServer(grpc.UnaryInterceptor(h.serve))
	service, err := proxy.NewWorkflowServiceProxyServer(proxy.WorkflowServiceProxyOptions{
		Client: workflowservice.NewWorkflowServiceClient(o.Temporal), DisableHeaderForwarding: true,
	})
	if err != nil {
		return nil, fmt.Errorf("open a proxy of Temporal for hosts: %w", err)
	}
	workflowservice.RegisterWorkflowServiceServer(h.server, service)
	return h, nil
}

// ServeHTTP implements http.Handler. Who shows no token is refused before anything is read of what follows: gRPC reads
// a whole message, for as long as it takes, before it asks who sends it.
func (h *Hosts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, _ := access.Bearer(r.Header.Get("Authorization"))
	if _, known := h.options.Host(token); token == "" || !known {
		// An answer without a body, which is what gRPC calls one of trailers only:
		// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#responses
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", strconv.Itoa(int(codes.Unauthenticated)))
		w.Header().Set("Grpc-Message", noToken)
		w.WriteHeader(http.StatusOK)
		return
	}
	h.server.ServeHTTP(w, r)
}

// noToken is the answer to somebody who is no host.
const noToken = "no token of a host that has joined was shown: join again, with the token that " +
	"`spillway hosts token` prints on the server"

// Close ends what goes on.
func (h *Hosts) Close() { h.server.Stop() }

// serve hands a request on that the host may make.
func (h *Hosts) serve(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	host, known := h.host(ctx)
	if !known {
		return nil, status.Error(codes.Unauthenticated, noToken)
	}
	if err := h.admit(ctx, host, request); err != nil {
		h.tell(host, info.FullMethod, err)
		return nil, status.Errorf(codes.PermissionDenied, "host %s: %v", host, err)
	}
	response, err := handler(onBehalf(ctx), request)
	if err != nil {
		return nil, err
	}
	if _, still := h.host(ctx); !still {
		return nil, status.Error(codes.Unauthenticated, "the host was removed")
	}
	h.give(host, request, response)
	return response, nil
}

func (h *Hosts) host(ctx context.Context) (host string, known bool) {
	headers, _ := metadata.FromIncomingContext(ctx)
	for _, shown := range headers.Get("authorization") {
		if token, _ := access.Bearer(shown); token != "" {
			return h.options.Host(token)
		}
	}
	return "", false
}

// stageTasks are the names of queues of stages.
var stageTasks = regexp.MustCompile(`^[^@/]+@[^@/]+/.+$`)

// admit says why a host may not make a request, and puts the tokens in it back to what Temporal has given.
func (h *Hosts) admit(ctx context.Context, host string, request any) error {
	if in, is := request.(namespaced); is && in.GetNamespace() != h.options.Namespace {
		return fmt.Errorf("namespace %q is not that of the stages", in.GetNamespace())
	}
	switch in := request.(type) {
	case *workflowservice.GetSystemInfoRequest, *workflowservice.DescribeNamespaceRequest,
		*workflowservice.RecordWorkerHeartbeatRequest:
		return nil
	case *workflowservice.PollActivityTaskQueueRequest:
		if err := stageQueue(in.GetTaskQueue()); err != nil {
			return err
		}
		return h.options.Withheld(ctx, host, in.GetTaskQueue().GetName())
	case *workflowservice.PollNexusTaskQueueRequest:
		if name := in.GetTaskQueue().GetName(); !commandQueue.MatchString(name) {
			return fmt.Errorf("task queue %q is none of a worker of stages", name)
		}
		return nil
	case *workflowservice.ShutdownWorkerRequest:
		if name := in.GetTaskQueue(); name != "" && !stageTasks.MatchString(name) {
			return fmt.Errorf("task queue %q is none of a stage", name)
		}
		return nil
	case *workflowservice.RecordActivityTaskHeartbeatRequest:
		return h.open(host, &in.TaskToken)
	case *workflowservice.RespondActivityTaskCompletedRequest:
		return h.open(host, &in.TaskToken)
	case *workflowservice.RespondActivityTaskFailedRequest:
		return h.open(host, &in.TaskToken)
	case *workflowservice.RespondActivityTaskCanceledRequest:
		return h.open(host, &in.TaskToken)
	case *workflowservice.RespondNexusTaskCompletedRequest:
		return h.open(host, &in.TaskToken)
	case *workflowservice.RespondNexusTaskFailedRequest:
		return h.open(host, &in.TaskToken)
	case *workflowservice.UpdateWorkflowExecutionRequest:
		if name := in.GetRequest().GetInput().GetName(); name != wire.ReserveUpdate {
			return fmt.Errorf("a host has no update %q to send", name)
		}
		return h.holds(host, in.GetWorkflowExecution())
	case *workflowservice.PollWorkflowExecutionUpdateRequest:
		if id := in.GetUpdateRef().GetUpdateId(); !strings.HasPrefix(id, wire.ReserveUpdate+"/") {
			return fmt.Errorf("the update %q is none of a host", id)
		}
		return h.holds(host, in.GetUpdateRef().GetWorkflowExecution())
	default:
		return errors.New("a host has no use for it: it runs tasks of stages")
	}
}

func stageQueue(queue *taskqueuepb.TaskQueue) error {
	if queue.GetKind() == enums.TASK_QUEUE_KIND_STICKY || !stageTasks.MatchString(queue.GetName()) {
		return fmt.Errorf("task queue %q is none of a stage", queue.GetName())
	}
	return nil
}

// holds checks that the host works on a task of a run.
func (h *Hosts) holds(host string, execution *commonpb.WorkflowExecution) error {
	if !h.working.has(host, runOf(execution), time.Now()) {
		return fmt.Errorf("run %q is none that it has a task of", execution.GetWorkflowId())
	}
	return nil
}

// open puts back the token of a task that the host was given, and notes that it works on it.
func (h *Hosts) open(host string, token *[]byte) error {
	_, sealed := wire.SplitProof(*token)
	opened, genuine := h.options.Open(host, sealed)
	of, task, whole := taskOf(opened)
	if !genuine || !whole {
		return errors.New("the task is none that it was given")
	}
	*token = task
	h.working.note(host, of, time.Now())
	return nil
}

// give seals the tokens of the tasks in an answer to a request.
func (h *Hosts) give(host string, request, response any) {
	switch out := response.(type) {
	case *workflowservice.PollActivityTaskQueueResponse:
		if len(out.GetTaskToken()) > 0 {
			of, now := runOf(out.GetWorkflowExecution()), time.Now()
			out.TaskToken = h.options.Seal(host, withRun(of, out.GetTaskToken()))
			in, _ := request.(*workflowservice.PollActivityTaskQueueRequest) // nothing else is answered so
			given, err := givenBy(in.GetTaskQueue().GetName(), out, now)
			if err == nil {
				out.TaskToken = wire.WithProof(h.options.Prove(host, given), out.GetTaskToken())
			} else { // the host will refuse it, too
				h.tell(host, workflowservice.WorkflowService_PollActivityTaskQueue_FullMethodName, err)
			}
			h.working.note(host, of, now)
		}
	case *workflowservice.PollNexusTaskQueueResponse:
		if len(out.GetTaskToken()) > 0 {
			out.TaskToken = h.options.Seal(host, withRun(run{}, out.GetTaskToken()))
		}
	}
}

// TaskToken is Temporal's own token in what open, as HostOptions.Open, takes back of what a host was given; genuine is
// false where the host was not given it.
func TaskToken(
	open func(host string, sealed []byte) (task []byte, genuine bool), host string, sealed []byte,
) (task []byte, genuine bool) {
	_, sealed = wire.SplitProof(sealed)
	opened, genuine := open(host, sealed)
	_, task, whole := taskOf(opened)
	return task, genuine && whole
}

// givenBy is the attempt that a host is given with an answer, from a queue at now.
func givenBy(queue string, out *workflowservice.PollActivityTaskQueueResponse, now time.Time) (wire.Given, error) {
	var task wire.Task
	payloads := out.GetInput().GetPayloads()
	if len(payloads) != 2 {
		return wire.Given{}, fmt.Errorf("activity %s of %s has %d arguments, and a task of a stage has 2",
			out.GetActivityId(), out.GetWorkflowExecution().GetWorkflowId(), len(payloads))
	}
	if err := converter.GetDefaultDataConverter().FromPayload(payloads[0], &task); err != nil {
		return wire.Given{}, fmt.Errorf("read the task that a host is given: %w", err)
	}
	workflow := out.GetWorkflowExecution().GetWorkflowId()
	pool := queue == task.Stage.PoolQueue()
	switch {
	case task.Run == "" || workflow != task.Run && !strings.HasPrefix(workflow, task.Run+"/"):
		return wire.Given{}, fmt.Errorf("a task says that it is of run %.80q, and workflow %q has scheduled it", task.Run,
			workflow)
	case !pool && queue != task.Stage.Queue():
		return wire.Given{}, fmt.Errorf("a task of stage %.200q is on queue %q", task.Stage.String(), queue)
	case task.ID == "" || task.ID != out.GetActivityId():
		return wire.Given{}, fmt.Errorf("a task says that it is %.80q, and its activity is %.80q", task.ID,
			out.GetActivityId())
	}
	given := wire.Given{
		Run: task.Run, Stage: task.Stage, Task: task.ID, Attempt: int(out.GetAttempt()), PoolOnly: task.PoolOnly || pool,
		At: now.UTC().Truncate(time.Millisecond),
	}
	digest, stored, err := artifact.Stored(payloads[1])
	if err != nil {
		return wire.Given{}, err
	}
	if stored {
		given.Input, given.Command, given.CacheVersion = digest, task.Command, task.CacheVersion
		return given, nil
	}
	var input json.RawMessage
	if err := converter.GetDefaultDataConverter().FromPayload(payloads[1], &input); err != nil {
		return wire.Given{}, fmt.Errorf("read the input of a task that a host is given: %w", err)
	}
	given.Key = wire.NewResultKey(task.Stage, task.Command, task.CacheVersion, input)
	return given, nil
}

// withRun puts the run that a task is of before its token: so a heartbeat tells it to an engine that has started anew.
func withRun(of run, task []byte) []byte {
	text := binary.AppendUvarint(nil, uint64(len(of.workflow)))
	text = append(text, of.workflow...)
	text = binary.AppendUvarint(text, uint64(len(of.run)))
	text = append(text, of.run...)
	return append(text, task...)
}

// taskOf is the reverse of withRun.
func taskOf(text []byte) (of run, task []byte, whole bool) {
	for _, part := range []*string{&of.workflow, &of.run} {
		size, n := binary.Uvarint(text)
		if n <= 0 || size > uint64(len(text)-n) {
			return run{}, nil, false
		}
		*part, text = string(text[n:n+int(size)]), text[n+int(size):]
	}
	return of, text, true
}

// workingFor is how long a host works on a run of which it has said nothing: a task heartbeats at least every minute.
const workingFor = 10 * time.Minute

// working are the runs of which hosts have tasks. The zero value has none.
type working struct {
	mu    sync.Mutex
	runs  map[workingRun]time.Time // when the host was given a task of it, or spoke of one, last; guarded by mu
	swept time.Time                // guarded by mu
}

type workingRun struct {
	host string
	of   run
}

func (h *working) note(host string, of run, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs == nil {
		h.runs = map[workingRun]time.Time{}
	}
	if now.Sub(h.swept) > workingFor {
		h.swept = now
		for key, at := range h.runs {
			if now.Sub(at) > workingFor {
				delete(h.runs, key)
			}
		}
	}
	h.runs[workingRun{host, of}] = now
}

func (h *working) has(host string, of run, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, known := h.runs[workingRun{host, of}]
	return known && now.Sub(at) <= workingFor
}

// tell logs what was refused, unless something was just now.
func (h *Hosts) tell(host, method string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); now.Sub(h.told) >= tellEvery {
		h.told = now
		h.options.Logger.Warn("a host was refused at Temporal", "host", host, "method", method, "error", err)
	}
}
