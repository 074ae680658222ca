package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/internal/account"
)

// The versions of steps (see wire.WorkflowVersion) from which on a run takes these.
const (
	// versionAccount: the run keeps an account of its money, together with its chunks.
	versionAccount = 1
	// versionPriority: tasks bear the priority that the plan gives them, and the key of their pipeline.
	versionPriority = 1
	// versionGuard: the pipeline's code runs in a coroutine of its own, and a panic in any coroutine fails the run.
	versionGuard = 1
	// versionCarry: a run that continues as new takes along what it knows, once nothing is in flight.
	versionCarry = 1
	// versionLost: a task that was asked to stop and then lost counts as cancelled.
	versionLost = 1
	// versionSilent: so does one that nobody heard of again, and it costs what its last heartbeat said.
	versionSilent = 2
	// versionAnew: nothing is looked up where nothing may be found.
	versionAnew = 2
	// versionTold: each chunk of a Map is told its window and its priority from its beginning on.
	versionTold = 2
	// versionCommands: commands that functions can run are on the queue that functions poll, too.
	versionCommands = 3
	// versionResume: a task that a venue gave up goes on at the pool from its checkpoint.
	versionResume = 3
	// versionAhead: a tuning has few jobs in flight, is told what curves say of its trials, and goes on from the highest
	// rung down.
	versionAhead = 4
)

// rulesAhead are the [search.Options] Rules of tunings from versionAhead on: a newer engine, whose newest are others,
// restores them.
const rulesAhead = 1

// run is what the SDK remembers of the run that a workflow is, or is a part of. Workflow code owns it: no lock is
// needed.
type run struct {
	id       string
	pipeline string
	app      string
	build    string
	goal     predictor.Goal
	options  wire.RunOptions
	// of the steps it takes: wire.WorkflowVersion when it was started
	version    int
	find       func(context.Context, wire.Lookup) ([]*wire.Kept, error) // nil where results are not kept
	listed     map[string]bool                                          // nil lists all (tests)
	tell       func(predictor.Event)
	window     int            // tasks of one stage in flight, where windows has no entry
	windows    map[string]int // by stage
	priorities map[string]int // Temporal's priority key of tasks, by stage; the usual one where there is no entry
	inFlight   map[string]int // by stage
	next       map[string]int // number of the next task, by stage
	open       int            // tasks, Maps and tunings that have begun and not ended
	tunings    map[string]int // how many have begun, by name
	// taken are the results that were taken from the run which this one tries again, by the content of their keys.
	taken map[string]bool
	// resumed are those of its options' Resumes that a task has taken.
	resumed map[int]bool
	// startedAt is when the whole run began, and continued says that this is not its first part.
	startedAt time.Time
	continued bool

	account *account.Account          // what the run spends
	before  map[string]quantity.Money // what a task has cost where it was refused, by task
	// purse is what the jobs of a tuning may take, in its child workflow; nil elsewhere.
	purse  *purse
	ledger budget // in place of account in runs of version 0, with held, what they reserved by task
	held   map[string]quantity.Money
}

// priority is that of the tasks of a stage. Tasks of one queue share it fairly by their pipelines, so that one that
// floods starves no other; by runs, a flood of small runs would outweigh one large run of another pipeline.
func (r *run) priority(stage string) temporal.Priority {
	if r.version < versionPriority {
		return temporal.Priority{}
	}
	return temporal.Priority{PriorityKey: r.priorities[stage], FairnessKey: r.pipeline}
}

type runKey struct{}

// runOf returns the run of ctx; without the interceptor (plain unit tests) it is one that runs every stage on the
// workflow's own queue.
func runOf(ctx workflow.Context) *run {
	if r, ok := ctx.Value(runKey{}).(*run); ok {
		return r
	}
	return newRun(workflow.GetInfo(ctx).WorkflowExecution.ID, 0)
}

func newRun(id string, window int) *run {
	if window <= 0 {
		window = predictor.DefaultPolicy().Window
	}
	return &run{
		id: id, window: window,
		windows: map[string]int{}, priorities: map[string]int{}, inFlight: map[string]int{}, next: map[string]int{},
		tunings: map[string]int{},
		taken:   map[string]bool{},
		resumed: map[int]bool{},
		before:  map[string]quantity.Money{}, ledger: newBudget(), held: map[string]quantity.Money{},
		account: account.New(0, account.Carried{}),
	}
}

// call is one task before it is scheduled.
type call struct {
	stage wire.Stage
	id    string
	input json.RawMessage
	// resume is the checkpoint of the venue that gave the task up, of its trial's last job, or of the run that is tried
	// again; the zero Ref when there is none.
	resume activities.Ref
	// tells asks for the task's last checkpoint and metrics.
	tells bool
	// stretch is which part of a training it does; nil where nobody asks how that ends.
	stretch *predictor.Stretch
	// price is what the task is expected to cost at most, where that is known of it; 0 leaves it to what its stage costs.
	price quantity.Money
	// unfit is why the task is for the pool only, where that follows from what it is; empty else.
	unfit string
}

// newCall numbers a task of stage.
func (r *run) newCall(stage wire.Stage, input json.RawMessage) (call, error) {
	if r.listed != nil && !r.listed[stage.Name] {
		return call{}, temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("stage %q is not listed in app.Main of app %q: add it to Stages", stage.Name, r.app), wire.StageError,
			nil)
	}
	number := r.next[stage.Name]
	r.next[stage.Name]++
	return r.place(stage, fmt.Sprintf("%s-%d", stage.Name, number), input), nil
}

// place is the task of a stage with this input, for the pool only where no function can run it: what is decided here
// needs no function that refuses it. Runs of earlier versions leave all commands to the pool.
func (r *run) place(stage wire.Stage, id string, input json.RawMessage) call {
	c := call{stage: stage, id: id, input: input}
	if !stage.Command {
		return c
	}
	if r.version < versionCommands {
		c.stage.PoolOnly = true
		return c
	}
	c.unfit = stage.PoolOnlyFor(input)
	c.stage.PoolOnly = stage.PoolOnly || c.unfit != ""
	return c
}

// perform returns the encoded output of a task: that of an earlier run where one is to be had, else what running it
// returns.
func (r *run) perform(ctx workflow.Context, c call) (json.RawMessage, error) {
	found, err := r.reuse(ctx, c.stage, []json.RawMessage{c.input})
	if err != nil {
		return nil, err
	}
	if found != nil && found[0] != nil {
		return found[0], nil
	}
	c.resume = r.leftOff(c)
	return r.runTask(ctx, c)
}

// leftOff is the checkpoint that the run which this one tries again has of a task that it did not finish; the zero Ref
// without one. As with its results, each is taken by one call, and none once this run has continued as new.
func (r *run) leftOff(c call) activities.Ref {
	if len(r.options.Resumes) == 0 || r.continued || !r.options.Reuses(c.stage) {
		return activities.Ref{}
	}
	content := wire.NewResultKey(r.stageID(c.stage.Name), c.stage.Command, c.stage.CacheVersion, c.input).Content
	for i, left := range r.options.Resumes {
		if left.Content == content && !r.resumed[i] {
			r.resumed[i] = true
			return left.Checkpoint
		}
	}
	return activities.Ref{}
}

// runTask runs a task within the stage's window and the run's budget and returns its encoded output.
func (r *run) runTask(ctx workflow.Context, c call) (json.RawMessage, error) {
	result, err := r.runWithin(ctx, c)
	return result.Output, err
}

// runWithin is runTask that returns all that is told of the task; its cost also where it failed.
func (r *run) runWithin(ctx workflow.Context, c call) (wire.Result, error) {
	name := c.stage.Name
	if err := workflow.Await(ctx, func() bool { return r.inFlight[name] < r.windowOf(name) }); err != nil {
		return wire.Result{}, err
	}
	r.inFlight[name]++
	defer func() { r.inFlight[name]-- }()
	if err := r.admit(ctx, c); err != nil {
		return wire.Result{}, err
	}
	r.hint(ctx, c)
	result, err := r.execute(ctx, c)
	r.settle(c, result.Cost, err)
	return result, err
}

func (r *run) windowOf(stage string) int {
	if tasks, set := r.windows[stage]; set {
		return tasks
	}
	return r.window
}

// tuningWindow is how many jobs of a tuning are in flight: until the loop says how many keep its slots busy, few.
func (r *run) tuningWindow(stage string) int {
	if _, told := r.windows[stage]; !told && r.version >= versionAhead {
		return min(r.window, predictor.TuningWindow)
	}
	return r.windowOf(stage)
}

// PoolSuffix ends the ID under which a task that a venue refused is scheduled again.
const PoolSuffix = ".pool"

// execute schedules the task on the stage's queue and, when a venue refuses it there, on the queue that only the pool
// polls. The result has the cost of both, also when the task failed.
func (r *run) execute(ctx workflow.Context, c call) (wire.Result, error) {
	result, err := r.schedule(ctx, c, c.stage.PoolOnly)
	var refused *temporal.ApplicationError
	if errors.As(err, &refused) && refused.Type() == wire.RefusedError && !c.stage.PoolOnly {
		r.before[c.id] = result.Cost
		r.account.Withdraw(c.id)
		c.stage.PoolOnly, c.id = true, c.id+PoolSuffix // another task to everyone who counts attempts
		if cost, told := spendingOf(err); told {
			if r.version >= versionResume {
				c.resume = cost.Checkpoint
			}
			c.stage.MaxAttempts = max(c.stage.MaxAttempts-cost.Failures, 1) // the pool has a try in any case
		}
		r.hint(ctx, c)
		before := result.Cost
		result, err = r.schedule(ctx, c, true)
		if r.version >= versionAccount { // runs of earlier engines repeat what they did
			result.Cost += before
		}
	}
	return result, err
}

// Limits of a stage activity. The engine counts failures and enforces the stage's timeout; Temporal retries whatever is
// lost.
const (
	// heartbeatTimeout is longer than an agent that is cut off goes on (loop.Lease): its attempts are given to others once
	// it has stopped them.
	heartbeatTimeout = 20 * time.Second
	activityTimeout  = 30 * 24 * time.Hour
)

func (r *run) schedule(ctx workflow.Context, c call, poolOnly bool) (result wire.Result, err error) {
	id := r.stageID(c.stage.Name)
	queue := id.Queue()
	if poolOnly {
		queue = id.PoolQueue()
	}
	if r.app == "" {
		queue = workflow.GetInfo(ctx).TaskQueueName
	}
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           queue,
		ActivityID:          c.id,
		StartToCloseTimeout: activityTimeout,
		HeartbeatTimeout:    heartbeatTimeout,
		WaitForCancellation: true,
		Priority:            r.priority(c.stage.Name),
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval:    100 * time.Millisecond,
			BackoffCoefficient: 2,
			MaximumInterval:    10 * time.Second,
		},
	})
	task := wire.Task{
		Version: wire.Version, Run: r.id, Pipeline: r.pipeline, Stage: id, ID: c.id,
		Input: c.inputBytes(), Declared: c.stage.Declared, MaxAttempts: c.stage.MaxAttempts, Timeout: c.stage.Timeout,
		PoolOnly: poolOnly, Recommends: c.stage.Recommends,
		Command: c.stage.Command, Batches: !c.stage.Command, CacheVersion: c.stage.CacheVersion,
		Traceparent: r.options.Traceparent, Resume: c.resume, Tells: c.tells,
		Stretch: c.stretch, Secrets: len(c.stage.Secrets) > 0,
	}
	if own := strings.TrimSuffix(c.id, PoolSuffix); r.version >= versionAccount {
		reserved := r.reserved(own)
		task.Budgeted, task.Reserved, task.Asks = !reserved.Unlimited, reserved.Amount, true
	}
	err = workflow.ExecuteActivity(ctx, c.stage.Name, task, c.input).Get(ctx, &result)
	if err != nil {
		cost := r.costOf(err)
		result.Cost = cost.Spent
		if ctx.Err() != nil {
			err = r.lostIsCancelled(err, cost)
		}
	}
	return result, err
}

// lostIsCancelled returns what became of a task that was asked to stop: where its host went away before it could
// answer, the server tries it no more. It says that the task was lost, when the host came back to say so, or that it
// has timed out.
func (r *run) lostIsCancelled(err error, cost spending) error {
	if r.version < versionLost {
		return err
	}
	if silent, ok := errors.AsType[*temporal.TimeoutError](err); ok && r.version >= versionSilent {
		return temporal.NewCanceledError(silent.Message(), cost)
	}
	if lost, ok := errors.AsType[*temporal.ApplicationError](err); ok && lost.Type() == wire.LostError {
		return temporal.NewCanceledError(lost.Message(), cost)
	}
	return err
}

// hint tells the loop that c was scheduled.
func (r *run) hint(ctx workflow.Context, c call) {
	if r.tell == nil || workflow.IsReplaying(ctx) {
		return
	}
	program := c.program()
	r.tell(predictor.Scheduled{
		Run: r.id, Stage: r.stageID(c.stage.Name), Tasks: 1, PoolOnly: c.stage.PoolOnly,
		Input: c.inputBytes(), Declared: c.stage.Declared,
		Program: program.name, Imports: program.imports, Kind: c.kind(), Fixed: program.image || c.stage.Recommends,
		Unfit: c.unfit, Hosts: c.hosts(), Batches: !c.stage.Command, Tuning: c.tells && r.version >= versionAhead,
		At: workflow.Now(ctx),
	})
}

// maxImports is how many modules of a program a hint names: one comes with each task.
const maxImports = 32

// program is what runs a task: stages that the same program runs, and that import the same, are alike.
type program struct {
	name    string
	imports []string
	image   bool // it is that of a container
}

func (c call) program() program {
	if !c.stage.Command {
		return program{name: predictor.GoProgram}
	}
	var command struct {
		Arguments []string `json:"arguments"`
		Image     string   `json:"image"`
		Program   string   `json:"program"`
		Imports   []string `json:"imports"`
	}
	decoded := json.Unmarshal(c.input, &command)
	command.Imports = command.Imports[:min(len(command.Imports), maxImports)]
	switch {
	case decoded != nil || command.Image == "" && len(command.Arguments) == 0:
		return program{} // the host refuses it, and says why
	case command.Image != "":
		return program{name: command.Image, imports: command.Imports, image: true}
	}
	return program{name: cmp.Or(command.Program, path.Base(command.Arguments[0])), imports: command.Imports}
}

// kind is what kind of input the task reads: see [predictor.Scheduled].
func (c call) kind() string {
	if !c.stage.Command {
		return wire.InputKind(c.input)
	}
	var command wire.Command
	if json.Unmarshal(c.input, &command) != nil {
		return "" // the host refuses it, and says why
	}
	return command.InputKind()
}

// hosts is on how many hosts at once the task runs at most.
func (c call) hosts() int {
	var command wire.Command
	if !c.stage.Command || json.Unmarshal(c.input, &command) != nil {
		return 1
	}
	_, most := command.Gang()
	return most
}

// announce tells the loop that tasks like this one will be scheduled from now on, and whether they are a tuning's.
func (r *run) announce(ctx workflow.Context, like call, tasks int, tuning bool) {
	if r.tell == nil || workflow.IsReplaying(ctx) {
		return
	}
	r.tell(predictor.Scheduled{
		Run: r.id, Stage: r.stageID(like.stage.Name), Expected: tasks, PoolOnly: like.stage.PoolOnly,
		Declared: like.stage.Declared, Unfit: like.unfit, Batches: !like.stage.Command, Tuning: tuning,
		At: workflow.Now(ctx),
	})
}

// withdraw tells the loop that so many tasks of a stage that were announced will not come, or as many as are left of
// those; nothing of none.
func (r *run) withdraw(ctx workflow.Context, stage string, tasks int) {
	if tasks <= 0 || r.tell == nil || workflow.IsReplaying(ctx) {
		return
	}
	r.tell(predictor.Scheduled{Run: r.id, Stage: r.stageID(stage), Withdrawn: tasks, At: workflow.Now(ctx)})
}

func (r *run) stageID(stage string) predictor.StageID {
	return predictor.StageID{App: r.app, Build: r.build, Name: stage, Team: r.options.Team}
}

// inputBytes is what the size of an attempt is expected to depend on.
func (c call) inputBytes() quantity.Bytes {
	if c.stage.Command {
		return fileBytes(c.input)
	}
	return inputBytes(c.input)
}

// maxArtifact is more than any artifact holds, so that a few of them cannot overflow a sum.
const maxArtifact = 1 << 60

// inputBytes is the size of an encoded input and of the artifacts that it names.
func inputBytes(input json.RawMessage) quantity.Bytes {
	total := quantity.Bytes(len(input))
	var value any
	if json.Unmarshal(input, &value) == nil {
		total += artifactBytes(value)
	}
	return total
}

func artifactBytes(value any) (total quantity.Bytes) {
	switch v := value.(type) {
	case map[string]any:
		digest, isRef := v["digest"].(string)
		if bytes, ok := v["bytes"].(float64); isRef && ok && len(digest) == 64 && bytes > 0 && bytes < maxArtifact {
			return quantity.Bytes(bytes)
		}
		for _, key := range workflow.DeterministicKeys(v) {
			total += artifactBytes(v[key])
		}
	case []any:
		for _, inner := range v {
			total += artifactBytes(inner)
		}
	}
	return total
}

// fileBytes is the size of the files that an encoded Command is given; its code and its requirements are the same for
// every task.
func fileBytes(input json.RawMessage) (total quantity.Bytes) {
	var command struct {
		Files []struct {
			Artifact activities.Ref `json:"artifact"`
		} `json:"files"`
	}
	if json.Unmarshal(input, &command) != nil {
		return 0 // the host refuses it, and says why
	}
	for _, file := range command.Files {
		if bytes := file.Artifact.Bytes; bytes > 0 && bytes < maxArtifact {
			total += quantity.Bytes(bytes)
		}
	}
	return total
}
