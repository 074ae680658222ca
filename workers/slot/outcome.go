package slot

import (
	"context"
	"slices"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-ml/spillway/activities/wait"
)

const (
	// outcomeFor is for how long Temporal is told what an attempt came to, and outcomeTry how long one try takes at most.
	// Longer is of no use: the heartbeat is missed by then, and the attempt given to another.
	outcomeFor, outcomeTry = time.Minute, 10 * time.Second
	// Between two tries lie at first outcomeSoon, and outcomeLate at most.
	outcomeSoon, outcomeLate = 200 * time.Millisecond, 2 * time.Second
)

// refused are the answers that do not change when the same is said again. How much of a rate is left is for Temporal's
// SDK to wait for.
var refused = []codes.Code{
	codes.OK, codes.Canceled, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
	codes.ResourceExhausted, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated,
}

// TellOutcomes has a connection to Temporal tell it what attempts came to until it has taken that, for up to a minute
// and as long as life lasts. A worker of Temporal's SDK gives up after ten seconds, and has no option for more: what
// ended while Temporal's database was away as long was done, and paid for, again.
func TellOutcomes(life context.Context) grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(
		ctx context.Context, method string, request, answer any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		switch request.(type) {
		case *workflowservice.RespondActivityTaskCompletedRequest, *workflowservice.RespondActivityTaskFailedRequest,
			*workflowservice.RespondActivityTaskCanceledRequest:
		default:
			return invoke(ctx, method, request, answer, connection, options...)
		}
		return tellOutcome(ctx, life, func(ctx context.Context) error {
			return invoke(ctx, method, request, answer, connection, options...)
		})
	})
}

// tellOutcome tries until it is taken or refused. The deadline of ctx, which is the SDK's, does not count.
func tellOutcome(ctx, life context.Context, try func(context.Context) error) error {
	within, end := context.WithTimeout(context.WithoutCancel(ctx), outcomeFor)
	defer end()
	defer context.AfterFunc(life, end)()
	for pause := outcomeSoon; ; pause = min(2*pause, outcomeLate) {
		once, done := context.WithTimeout(within, outcomeTry)
		err := try(once)
		done()
		if slices.Contains(refused, status.Code(err)) || !wait.For(within, pause) {
			return err
		}
	}
}
