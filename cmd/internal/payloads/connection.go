package payloads

import (
	"context"
	"errors"

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
)

// tolerant is the key, in the context of a request, of whether one payload that cannot be read spoils the answer.
type tolerant struct{}

// DialOptions have a connection to Temporal encrypt what it sends and decrypt what it is answered.
//
// A request is changed in a copy of it: the SDK sends one again that was not answered, and has parts of it elsewhere.
// Failures come first, since their messages become payloads then.
func (c *Codec) DialOptions() ([]grpc.DialOption, error) {
	failures, err := converter.NewFailureGRPCClientInterceptor(converter.NewFailureGRPCClientInterceptorOptions{
		EncodeCommonAttributes: true,
	})
	if err != nil {
		return nil, err
	}
	if !c.Encrypts() { // messages stay where they are; what was encrypted once is read, or told of, all the same
		failures, err = proxy.NewFailureVisitorInterceptor(proxy.FailureVisitorInterceptorOptions{
			Inbound: &proxy.VisitFailuresOptions{
				Visitor: func(_ *proxy.VisitFailuresContext, failure *failurepb.Failure) error {
					converter.DecodeCommonFailureAttributes(converter.GetDefaultDataConverter(), failure)
					return nil
				},
			},
		})
		if err != nil {
			return nil, err
		}
	}
	inner, err := proxy.NewPayloadVisitorInterceptor(proxy.PayloadVisitorInterceptorOptions{
		Outbound: &proxy.VisitPayloadsOptions{
			Visitor: func(_ *proxy.VisitPayloadsContext, payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
				return c.Encode(payloads)
			},
			SkipSearchAttributes: true,
		},
		Inbound: &proxy.VisitPayloadsOptions{
			Visitor: func(v *proxy.VisitPayloadsContext, payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
				return c.read(v.Context, payloads)
			},
			SkipSearchAttributes: true,
		},
	})
	if err != nil {
		return nil, err
	}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.outer, failures, inner)}, nil
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

// outer copies requests, and decides what becomes of an answer of which something cannot be read. One about many runs
// is given with that payload marked, and so is a task of a stage, whose attempt fails and says why. A workflow task is
// refused, so that its run waits: a workflow would end its run over it. Of anything else it is an error that nobody
// tries again.
func (c *Codec) outer(
	ctx context.Context, method string, request, answer any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	if message, is := request.(proto.Message); is {
		request = proto.Clone(message)
	}
	switch answer.(type) {
	case *workflowservice.ListWorkflowExecutionsResponse, *workflowservice.DescribeWorkflowExecutionResponse,
		*workflowservice.ListSchedulesResponse, *workflowservice.DescribeScheduleResponse,
		*workflowservice.PollActivityTaskQueueResponse:
		ctx = context.WithValue(ctx, tolerant{}, true)
	}
	err := invoke(ctx, method, request, answer, connection, options...)
	unreadable, is := errors.AsType[*UnreadableError](err)
	if !is {
		return err
	}
	task, polled := answer.(*workflowservice.PollWorkflowTaskQueueResponse)
	asked, isPoll := request.(*workflowservice.PollWorkflowTaskQueueRequest)
	if !polled || !isPoll || len(task.GetTaskToken()) == 0 {
		return status.Error(codes.FailedPrecondition, unreadable.Error())
	}
	refuse := func(method string, request, answer proto.Message) error {
		return invoke(ctx, "/"+workflowservice.WorkflowService_ServiceDesc.ServiceName+"/"+method, request, answer,
			connection, options...)
	}
	if task.GetQuery() != nil {
		err = refuse("RespondQueryTaskCompleted", &workflowservice.RespondQueryTaskCompletedRequest{
			TaskToken: task.GetTaskToken(), Namespace: asked.GetNamespace(),
			CompletedType: enums.QUERY_RESULT_TYPE_FAILED, ErrorMessage: unreadable.Error(),
		}, &workflowservice.RespondQueryTaskCompletedResponse{})
	} else {
		err = refuse("RespondWorkflowTaskFailed", &workflowservice.RespondWorkflowTaskFailedRequest{
			TaskToken: task.GetTaskToken(), Namespace: asked.GetNamespace(), Identity: asked.GetIdentity(),
			Cause:   enums.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE,
			Failure: &failurepb.Failure{Message: unreadable.Error(), Source: "Spillway"},
		}, &workflowservice.RespondWorkflowTaskFailedResponse{})
	}
	proto.Reset(task) // it is no task any more
	return err
}
