package runs

import (
	"fmt"
	"maps"
	"runtime/debug"
	"strings"
	"time"

	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
)

// PanicError is the type of the application error with which a run fails whose pipeline panics. Its details are the
// stack.
const PanicError = "SpillwayPanic"

// workerStop is how long a worker may take to finish the workflow tasks in its hands.
const workerStop = 2 * time.Second

// WorkerOptions are those of every worker that runs workflows of Spillway.
//
// What the code as it is now cannot replay blocks: the workflow task is tried again and again, and the run goes on as
// soon as code polls that can. The alternative, FailWorkflow, ends a run for a mistake of whoever deployed. A panic of
// the pipeline's own code fails its run all the same.
func WorkerOptions(ports Ports) worker.Options {
	return worker.Options{
		Interceptors:           []interceptor.WorkerInterceptor{NewInterceptor(ports)},
		DisableEagerActivities: true,
		WorkflowPanicPolicy:    worker.BlockWorkflow,
		// Beside fifty busy processes, steps that take 30 ms of a core took more than the second of the SDK's default, which
		// takes them for a deadlock and does them again. A workflow task has ten.
		DeadlockDetectionTimeout: 8 * time.Second,
		WorkerStopTimeout:        workerStop,
		LocalActivityWorkerOnly:  true,
	}
}

// newerSteps is the panic that blocks a run which a newer engine started.
type newerSteps struct{ version int }

// String is what is told of the run.
func (n newerSteps) String() string {
	return fmt.Sprintf("a newer engine started this run: its steps are of version %d, and this engine knows "+
		"versions up to %d. "+
		"Start the newer engine again and it goes on, or cancel it", n.version, wire.WorkflowVersion)
}

// mustKnow blocks the workflow unless this code has the steps of the version.
func mustKnow(version int) {
	if version > wire.WorkflowVersion {
		panic(newerSteps{version})
	}
}

// guard keeps the first panic of the user's code in a run. The coroutines of a workflow run one at a time: no lock is
// needed.
type guard struct{ failure error }

// catch is deferred around the user's code.
func (g *guard) catch() {
	value := recover()
	if value == nil {
		return // also when the SDK ends a coroutine: that is no panic
	}
	if ofTheSDK(value) {
		panic(value)
	}
	if g.failure == nil {
		g.failure = temporal.NewNonRetryableApplicationError(fmt.Sprintf("the pipeline panicked: %v", value), PanicError, nil,
			string(debug.Stack()))
	}
}

// ofTheSDK reports whether a panic says that the history and the code do not fit, which no user's code has caused
// alone.
func ofTheSDK(value any) bool {
	if _, newer := value.(newerSteps); newer {
		return true
	}
	return strings.Contains(fmt.Sprint(value), "[TMPRL")
}

// outbound catches the panics of coroutines that the user's code starts, and says whose its child workflows are.
type outbound struct {
	interceptor.WorkflowOutboundInterceptorBase
	guard *guard
}

// Go starts a coroutine. In a chunk of a Map and in a tuning there is no code of the user, and nobody who asks for a
// failure: a panic there blocks it.
func (o *outbound) Go(ctx workflow.Context, name string, f func(workflow.Context)) workflow.Context {
	if isPart(workflow.GetInfo(ctx).WorkflowType.Name) {
		return o.Next.Go(ctx, name, f)
	}
	return o.Next.Go(ctx, name, func(ctx workflow.Context) {
		defer o.guard.catch()
		f(ctx)
	})
}

// ExecuteChildWorkflow starts a workflow of the user's below a run. It is a run of its own for all that it does, but
// for whose it is: that of who has started it.
func (o *outbound) ExecuteChildWorkflow(
	ctx workflow.Context, childWorkflowType string, args ...any,
) workflow.ChildWorkflowFuture {
	team := runOf(ctx).options.Team
	if team == "" || isPart(childWorkflowType) { // a part is told with its input
		return o.Next.ExecuteChildWorkflow(ctx, childWorkflowType, args...)
	}
	options := workflow.GetChildWorkflowOptions(ctx)
	memo := map[string]any{}
	maps.Copy(memo, options.Memo)
	memo[TeamMemo] = team
	options.Memo = memo
	return o.Next.ExecuteChildWorkflow(workflow.WithChildOptions(ctx, options), childWorkflowType, args...)
}

// run returns what main returns, or the failure of the first panic anywhere in the run. Before versionGuard a
// coroutine's panic did not reach here.
func (g *guard) run(
	ctx workflow.Context, version int, main func(workflow.Context) (any, error),
) (result any, err error) {
	if version < versionGuard {
		func() {
			defer g.catch()
			result, err = main(ctx)
		}()
		if g.failure != nil {
			return nil, g.failure
		}
		return result, err
	}
	ended := false
	workflow.Go(ctx, func(ctx workflow.Context) {
		result, err = main(ctx)
		ended = true
	})
	settled, _ := workflow.NewDisconnectedContext(ctx) // main is told of a cancellation, and says what becomes of it
	if awaitErr := workflow.Await(settled, func() bool { return ended || g.failure != nil }); awaitErr != nil {
		return nil, awaitErr
	}
	if g.failure != nil {
		return nil, g.failure
	}
	return result, err
}
