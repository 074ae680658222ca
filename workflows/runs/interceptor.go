package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/workflows/internal/account"
)

// Keys of the memo with which a run is started, or goes on.
const (
	GoalMemo     = "spillway.goal"
	EventMemo    = "spillway.event"
	BindingMemo  = "spillway.binding"
	PipelineMemo = "spillway.pipeline"
	OptionsMemo  = "spillway.options"
	// InputMemo is the digest of the input of a run that an event has started.
	InputMemo = "spillway.input"
	// CarriedMemo is that with what a run that continues as new takes along.
	CarriedMemo = "spillway.carried"
	// TeamMemo is whose a child workflow is that a run of a team other than the default one has started.
	TeamMemo = "spillway.team"
)

// Names of the updates that a run answers.
const (
	// WindowUpdate takes a predictor.Window.
	WindowUpdate = "spillway.window"
	// GoalUpdate takes a predictor.Goal.
	GoalUpdate = "spillway.goal"
)

// Ports is what the workflow worker gives to the workflows that it runs.
type Ports struct {
	// App and Build name the binary.
	App, Build string
	// Stages are those that app.Main lists.
	Stages []AnyStage
	// Whole says that a run calls no other stages than these, but all of them unless it fails: its code is a list of them.
	Whole bool
	// Window is the number of tasks of one run and stage in flight at first, for runs that do not say so themselves (those
	// of earlier engines); 0 means the policy's default.
	Window int
	// Tell publishes a hint; it must not block. Nil publishes none.
	Tell func(predictor.Event)
	// Find returns for each key of a lookup a result of an earlier run, or nil, with an error as well. Nil finds none.
	Find func(context.Context, wire.Lookup) ([]*wire.Kept, error)
	// End makes a run's end durable, and its start with it; it may be called more than once with the same value. Nil does
	// nothing.
	End func(context.Context, Ended) error
}

// Ended is all that is told when a run is over.
type Ended struct {
	// Started was told when the run began; it is repeated because that first word may have been lost in a crash.
	Started predictor.RunStarted `json:"started"`
	Ended   predictor.RunEnded   `json:"ended"`
	Done    wire.Done            `json:"done"`
}

// isPart reports whether a workflow is a part of a run, and not one: a chunk of a Map, or a tuning.
func isPart(workflowType string) bool {
	return workflowType == MapWorkflow || workflowType == TuneWorkflow
}

// Register registers the pipelines and the child workflows of Map and of Tune.
func Register(registry worker.WorkflowRegistry, ports Ports, pipelines []AnyPipeline) {
	for _, pipeline := range pipelines {
		registry.RegisterWorkflowWithOptions(pipeline.Workflow(), workflow.RegisterOptions{Name: pipeline.Name()})
	}
	registry.RegisterWorkflowWithOptions(runChunk(ports), workflow.RegisterOptions{Name: MapWorkflow})
	registry.RegisterWorkflowWithOptions(runTuning(ports), workflow.RegisterOptions{Name: TuneWorkflow})
}

// NewInterceptor returns the interceptor that makes workflows of this worker runs of Spillway: it knows their goal,
// answers updates and tells the engine when they start and end.
func NewInterceptor(ports Ports) interceptor.WorkerInterceptor {
	return &workerInterceptor{ports: ports}
}

type workerInterceptor struct {
	interceptor.WorkerInterceptorBase
	ports Ports
}

// InterceptWorkflow wraps every workflow of the worker.
func (w *workerInterceptor) InterceptWorkflow(
	_ workflow.Context, next interceptor.WorkflowInboundInterceptor,
) interceptor.WorkflowInboundInterceptor {
	return &inbound{
		WorkflowInboundInterceptorBase: interceptor.WorkflowInboundInterceptorBase{Next: next}, ports: w.ports,
		guard: &guard{},
	}
}

type inbound struct {
	interceptor.WorkflowInboundInterceptorBase
	ports Ports
	guard *guard
}

// Init puts this run's guard around the coroutines that it will start.
func (i *inbound) Init(next interceptor.WorkflowOutboundInterceptor) error {
	return i.Next.Init(&outbound{
		WorkflowOutboundInterceptorBase: interceptor.WorkflowOutboundInterceptorBase{Next: next},
		guard:                           i.guard,
	})
}

// ExecuteWorkflow wraps the pipeline's function.
func (i *inbound) ExecuteWorkflow(ctx workflow.Context, in *interceptor.ExecuteWorkflowInput) (any, error) {
	info := workflow.GetInfo(ctx)
	if isPart(info.WorkflowType.Name) {
		return i.Next.ExecuteWorkflow(ctx, in)
	}
	r := i.ports.newRun(info)
	mustKnow(r.version)
	if err := r.answerUpdates(ctx, i.ports); err != nil {
		return nil, err
	}
	if r.version >= versionAccount {
		r.hearChunks(ctx)
	}
	started := predictor.RunStarted{
		Run: r.id, Pipeline: r.pipeline, App: r.app, Build: r.build, Goal: r.goal, At: r.startedAt,
		Event: memo[string](info, EventMemo), Input: preview(in.Args, inputPreview),
		InputBytes: sizeOf(in.Args), Features: featuresOf(in.Args),
		EventAt: r.options.EventAt, RetryOf: r.options.RetryOf, Traceparent: r.options.Traceparent,
		Team: r.options.Team,
	}
	if i.ports.Whole {
		for _, stage := range i.ports.Stages {
			started.Stages = append(started.Stages, stage.Name())
		}
	}
	if r.tell != nil && !workflow.IsReplaying(ctx) { // by each part: the loop forgets what is older than two weeks
		r.tell(started)
	}
	result, err := i.guard.run(workflow.WithValue(ctx, runKey{}, r), r.version, func(ctx workflow.Context) (any, error) {
		return i.Next.ExecuteWorkflow(ctx, in)
	})
	if workflow.IsContinueAsNewError(err) {
		if r.version >= versionCarry {
			err = r.continueAsNew(ctx, err)
		}
		if workflow.IsContinueAsNewError(err) {
			return nil, err
		}
	}
	if endErr := r.attribute(ctx, StateAttribute.ValueSet(string(stateOf(err))),
		CostAttribute.ValueSet(r.account.Spent().USD())); endErr != nil {
		return nil, endErr
	}
	if endErr := i.end(ctx, started, result, err); endErr != nil {
		return nil, endErr
	}
	return result, err
}

func (i *inbound) end(ctx workflow.Context, started predictor.RunStarted, result any, err error) error {
	over := Conclude(started, result, err, workflow.Now(ctx))
	detached, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	return local(detached, i.ports.End != nil, effects{i.ports}.end, over)
}

// Conclude returns what is told of a run that ended at a time, with a result, or with an error that says why it has
// none.
func Conclude(started predictor.RunStarted, result any, err error, at time.Time) Ended {
	ended := predictor.RunEnded{Run: started.Run, State: stateOf(err), At: at}
	done := wire.Done{
		Version: wire.Version, Run: started.Run, Pipeline: started.Pipeline, Event: started.Event, State: ended.State,
		Started: started.At, Ended: at,
	}
	if err != nil {
		ended.Error = short(rootMessage(err), errorPreview)
		done.Error = ended.Error
	} else {
		ended.Result = preview([]any{result}, resultPreview)
		done.Result = preview([]any{result}, donePreview)
	}
	return Ended{Started: started, Ended: ended, Done: done}
}

// effects are the local activities around a run. Temporal records them under the names of these methods: renaming one
// breaks the replay of every run that goes on.
type effects struct{ ports Ports }

func (e effects) end(ctx context.Context, over Ended) error { return e.ports.End(ctx, over) }

// Sizes up to which values are shown or sent along.
const (
	inputPreview  = 1 << 10
	resultPreview = 4 << 10
	donePreview   = 64 << 10
	errorPreview  = 16 << 10
)

// short is text cut to so many bytes, with an ellipsis where something is missing: a message that no server takes could
// never be told.
func short(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes], "") + "…"
}

// sizeOf is how large the first value is, encoded and with the artifacts that it names; 0 where there is none.
func sizeOf(values []any) quantity.Bytes {
	if len(values) == 0 {
		return 0
	}
	encoded, err := json.Marshal(values[0])
	if err != nil {
		return 0
	}
	return inputBytes(encoded)
}

// Told is what starts of runs tell of such an input: its size with the artifacts that it names, and its features.
func Told(input json.RawMessage) (size quantity.Bytes, features map[string]float64) {
	return inputBytes(input), usage.Few(wire.Features(wire.Task{}, input))
}

// featuresOf are the numbers and the categories of the first value, as its tasks have theirs.
func featuresOf(values []any) map[string]float64 {
	if len(values) == 0 {
		return nil
	}
	encoded, err := json.Marshal(values[0])
	if err != nil {
		return nil
	}
	return usage.Few(wire.Features(wire.Task{}, encoded))
}

// preview encodes the first value when it is no larger than limit.
func preview(values []any, limit int) json.RawMessage {
	if len(values) == 0 {
		return nil
	}
	encoded, err := json.Marshal(values[0])
	if err != nil || len(encoded) > limit {
		return nil
	}
	return encoded
}

// local runs a short effect as a local activity: it is done at least once and not again in a replay. It is tried until
// it succeeds, however long that takes: a run that has its result must not fail because nobody could be told. At first
// it is tried again within the workflow task; where the next try is further away than a workflow task may take, the SDK
// sets a timer instead, so that a long wait costs seven events of the history in two minutes and no worker.
func local[T any](ctx workflow.Context, enabled bool, effect func(context.Context, T) error, value T) error {
	if !enabled {
		return nil
	}
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		ScheduleToCloseTimeout: 10 * 365 * 24 * time.Hour, // without one the SDK takes the StartToCloseTimeout
		// an end that an earlier engine may have told is looked for in the streams
		StartToCloseTimeout: time.Minute,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: 50 * time.Millisecond, BackoffCoefficient: 2,
			MaximumInterval: 2 * time.Minute,
		},
	})
	return workflow.ExecuteLocalActivity(ctx, effect, value).Get(ctx, nil)
}

func (p Ports) newRun(info *workflow.Info) *run {
	options := memo[wire.RunOptions](info, OptionsMemo)
	// what a run began with does not change when an engine is started with another
	r := newRun(info.WorkflowExecution.ID, cmp.Or(options.Window, p.Window))
	r.pipeline, r.app, r.build, r.tell = info.WorkflowType.Name, p.App, p.Build, p.Tell
	r.goal, r.options, r.version = memo[predictor.Goal](info, GoalMemo), options, options.Version
	r.options.Team = cmp.Or(options.Team, memo[string](info, TeamMemo))
	// a run that began before there were results to take goes on without
	if _, told := info.Memo.GetFields()[OptionsMemo]; told {
		r.find = p.Find
	}
	r.resume(memo[carried](info, CarriedMemo), info.WorkflowStartTime)
	r.listed = map[string]bool{}
	for _, stage := range p.Stages {
		r.listed[stage.Name()] = true
	}
	return r
}

// part is the run as one chunk of a Map sees it.
func (p Ports) part(c chunk) *run {
	r := newRun(c.Run, c.Window)
	r.pipeline, r.app, r.build, r.tell, r.version = c.Pipeline, c.App, c.Build, p.Tell, c.Version
	r.priorities[c.Stage.Name] = c.Priority
	r.goal.Budget, r.options.Traceparent, r.options.Prices, r.options.Team = c.Budget, c.Trace, c.Prices, c.Team
	r.account = account.NewPart(c.Stage.Name, len(c.Inputs), c.Money)
	return r
}

func memo[T any](info *workflow.Info, key string) (value T) {
	payload, found := info.Memo.GetFields()[key]
	if found {
		// A memo of another shape is one that Spillway did not write: the run then has no goal.
		_ = converter.GetDefaultDataConverter().FromPayload(payload, &value)
	}
	return value
}

// lastPriority is the largest of Temporal's priority keys.
const lastPriority = 5

func (r *run) answerUpdates(ctx workflow.Context, ports Ports) error {
	err := workflow.SetUpdateHandlerWithOptions(ctx, GoalUpdate,
		func(ctx workflow.Context, goal predictor.Goal) (predictor.Goal, error) {
			r.goal = goal
			r.account.SetLimit(goal.Budget)
			if err := r.attribute(ctx, GoalAttribute.ValueSet(goalText(goal))); err != nil {
				return goal, err
			}
			if ports.Tell != nil && !workflow.IsReplaying(ctx) {
				ports.Tell(predictor.GoalChanged{Run: r.id, Goal: goal, At: workflow.Now(ctx)})
			}
			return goal, nil
		}, workflow.UpdateHandlerOptions{Validator: func(_ workflow.Context, goal predictor.Goal) error {
			return r.checkGoal(goal)
		}})
	if err != nil {
		return fmt.Errorf("answer update %s: %w", GoalUpdate, err)
	}
	if r.version >= versionAccount {
		if err := r.answerReserve(ctx); err != nil {
			return err
		}
	}
	err = workflow.SetUpdateHandlerWithOptions(ctx, WindowUpdate, func(_ workflow.Context, window predictor.Window) error {
		r.windows[window.Stage.Name] = window.Tasks
		if r.version >= versionPriority {
			r.priorities[window.Stage.Name] = window.Priority
		}
		return nil
	}, workflow.UpdateHandlerOptions{Validator: func(_ workflow.Context, window predictor.Window) error {
		if window.Tasks < 1 {
			return fmt.Errorf("window of %d tasks: at least 1 is needed", window.Tasks)
		}
		if window.Priority < 0 || window.Priority > lastPriority {
			return fmt.Errorf("window of priority %d: 1 is first, %d last, 0 the usual", window.Priority, lastPriority)
		}
		return nil
	}})
	if err != nil {
		return fmt.Errorf("answer update %s: %w", WindowUpdate, err)
	}
	return nil
}

// checkGoal refuses a goal that this run cannot have any more.
func (r *run) checkGoal(goal predictor.Goal) error {
	if err := CheckGoal(goal); err != nil {
		return err
	}
	if spent := r.account.Spent(); goal.Budget > 0 && goal.Budget < spent {
		return fmt.Errorf("a budget of %s is lower than the %s that the run has spent: give it more, or cancel it",
			goal.Budget, spent)
	}
	return nil
}

func stateOf(err error) predictor.RunState {
	switch {
	case err == nil:
		return predictor.RunSucceeded
	case temporal.IsCanceledError(err):
		return predictor.RunCancelled
	default:
		return predictor.RunFailed
	}
}

// awaited ends what Temporal says of a workflow that waited when it was cancelled: "Await context canceled".
const awaited = " context canceled"

// unasked begins what the worker of Temporal says of an activity that says it was cancelled before the server did.
const unasked = "unexpected activity cancel error"

// rootMessage is the message of the failure itself, without the layers that Temporal puts around it. Of a cancellation
// Temporal says one word, and whose it was.
func rootMessage(err error) string {
	if failed, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		if strings.HasPrefix(failed.Message(), unasked) {
			return "an attempt was cancelled, as its process was ended"
		}
		return failed.Message()
	}
	text := err.Error()
	cancelled, ok := errors.AsType[*temporal.CanceledError](err)
	if !ok {
		return text
	}
	if child, ok := errors.AsType[*temporal.ChildWorkflowExecutionError](err); ok {
		text = strings.Replace(text, child.Error(), cancelled.Error(), 1)
	} else if activity, ok := errors.AsType[*temporal.ActivityError](err); ok {
		text = strings.Replace(text, activity.Error(), cancelled.Error(), 1)
	}
	if text != cancelled.Error() { // somebody says more around it
		return text
	}
	why := ""
	if cancelled.Details(&why) != nil || why == "" || why == wire.StoppedWithRun || strings.HasSuffix(why, awaited) {
		return "the run was cancelled"
	}
	return "the run was cancelled: " + why
}
