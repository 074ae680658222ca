package payloads

import (
	"context"
	"errors"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	"go.temporal.io/api/proxy"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/spillway-ml/spillway/activities/wire"
)

// tolerant is the key, in the context of a request, of whether one payload that cannot be read spoils the answer.
type tolerant struct{}

// DialOptions have a connection to Temporal encrypt what it sends and decrypt what it is answered. Without keys it
// sends what it is given, and reads, or tells of, what was encrypted once.
//
// A request is changed in a copy of it: the SDK sends one again that was not answered, and has parts of it elsewhere.
// Failures come first, since their messages become payloads then.
func (c *Codec) DialOptions() ([]grpc.DialOption, error) {
	failures := proxy.FailureVisitorInterceptorOptions{Inbound: &proxy.VisitFailuresOptions{
		Visitor: func(_ *proxy.VisitFailuresContext, failure *failurepb.Failure) error {
			converter.DecodeCommonFailureAttributes(converter.GetDefaultDataConverter(), failure)
			return nil
		},
	}}
	all := proxy.PayloadVisitorInterceptorOptions{Inbound: &proxy.VisitPayloadsOptions{
		Visitor: func(v *proxy.VisitPayloadsContext, payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
			return c.read(v.Context, payloads)
		},
		SkipSearchAttributes: true,
	}}
	if c.Encrypts() {
		failures.Outbound = &proxy.VisitFailuresOptions{
			Visitor: func(_ *proxy.VisitFailuresContext, failure *failurepb.Failure) error {
				return converter.EncodeCommonFailureAttributes(converter.GetDefaultDataConverter(), failure)
			},
		}
		all.Outbound = &proxy.VisitPayloadsOptions{
			Visitor: func(_ *proxy.VisitPayloadsContext, payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
				return c.Encode(payloads)
			},
			SkipSearchAttributes: true,
		}
	}
	outer, first := proxy.NewFailureVisitorInterceptor(failures)
	inner, second := proxy.NewPayloadVisitorInterceptor(all)
	if err := errors.Join(first, second); err != nil {
		return nil, err
	}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.outer, outer, inner)}, nil
}

// read decrypts what was answered.
func (c *Codec) read(ctx context.Context, payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
	read := make([]*commonpb.Payload, len(payloads))
	for i, payload := range payloads {
		plain, err := c.decrypt(payload)
		if err != nil {
			c.tell(err)
			if ctx.Value(tolerant{}) == nil {
				return nil, err
			}
			plain = marked(payload, err)
		}
		read[i] = plain
	}
	return read, nil
}

// outer copies requests, and decides what becomes of an answer of which something cannot be read. One about many runs,
// or about how one stands, is given with that payload marked. A task is given back, so that its run waits: a workflow
// would end its run over it, and a stage its attempts. Of anything else it is an error that nobody tries again.
func (c *Codec) outer(
	ctx context.Context, method string, request, answer any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	if message, is := request.(proto.Message); is && c.Encrypts() {
		request = proto.Clone(message)
	}
	switch answer.(type) {
	case *workflowservice.ListWorkflowExecutionsResponse, *workflowservice.DescribeWorkflowExecutionResponse,
		*workflowservice.ListSchedulesResponse, *workflowservice.DescribeScheduleResponse,
		*workflowservice.GetWorkflowExecutionHistoryReverseResponse:
		ctx = context.WithValue(ctx, tolerant{}, true)
	}
	err := invoke(ctx, method, request, answer, connection, options...)
	unreadable, is := errors.AsType[*UnreadableError](err)
	if !is {
		return err
	}
	name, back, told := givenBack(request, answer, unreadable.Error())
	if back == nil {
		return status.Error(codes.FailedPrecondition, unreadable.Error())
	}
	err = invoke(ctx, "/"+workflowservice.WorkflowService_ServiceDesc.ServiceName+"/"+name, back, told, connection,
		options...)
	if task, is := answer.(proto.Message); is {
		proto.Reset(task) // it is no task any more
	}
	return err
}

// againAfter is when a task is tried again that could not be read.
const againAfter = 10 * time.Second

// givenBack is the method by which a task is given back that was answered, with what it takes and is answered, and says
// why; nil where the answer is no task.
func givenBack(request, answer any, why string) (method string, back, told proto.Message) {
	failure := &failurepb.Failure{Message: why, Source: "Spillway"}
	switch task := answer.(type) {
	case *workflowservice.PollActivityTaskQueueResponse:
		asked, is := request.(*workflowservice.PollActivityTaskQueueRequest)
		if !is || len(task.GetTaskToken()) == 0 {
			return "", nil, nil
		}
		failure.FailureInfo = &failurepb.Failure_ApplicationFailureInfo{
			ApplicationFailureInfo: &failurepb.ApplicationFailureInfo{
				Type: wire.LostError, NextRetryDelay: durationpb.New(againAfter), // it counts against nothing
			},
		}
		return "RespondActivityTaskFailed", &workflowservice.RespondActivityTaskFailedRequest{
			TaskToken: task.GetTaskToken(), Namespace: asked.GetNamespace(), Identity: asked.GetIdentity(), Failure: failure,
		}, &workflowservice.RespondActivityTaskFailedResponse{}
	case *workflowservice.PollWorkflowTaskQueueResponse:
		asked, is := request.(*workflowservice.PollWorkflowTaskQueueRequest)
		switch {
		case !is || len(task.GetTaskToken()) == 0:
			return "", nil, nil
		case task.GetQuery() != nil:
			return "RespondQueryTaskCompleted", &workflowservice.RespondQueryTaskCompletedRequest{
				TaskToken: task.GetTaskToken(), Namespace: asked.GetNamespace(),
				CompletedType: enums.QUERY_RESULT_TYPE_FAILED, ErrorMessage: why,
			}, &workflowservice.RespondQueryTaskCompletedResponse{}
		}
		return "RespondWorkflowTaskFailed", &workflowservice.RespondWorkflowTaskFailedRequest{
			TaskToken: task.GetTaskToken(), Namespace: asked.GetNamespace(), Identity: asked.GetIdentity(),
			Cause: enums.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE, Failure: failure,
		}, &workflowservice.RespondWorkflowTaskFailedResponse{}
	default:
		return "", nil, nil
	}
}
