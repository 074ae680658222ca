// Package spill polls stage queues and forwards each task to a function.
//
// It is an extra poller: each stage's own queue is polled by the pool's hosts and, with as many slots as the plan
// grants to functions, by this package; where an invoke carries several tasks, with as many as the invokes of those
// slots and of one more carry. Whoever is free first takes the task. What a function cannot run is refused, and its
// workflow puts it on the queue that only the pool polls.
package spill

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	random "math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/workers/slot"
)

const (
	defaultDrain = 10 * time.Second
	// A throttled invoke is tried again this often, with twice the pause each time; then the pool may have the task.
	throttleTries = 5
	throttlePause = 200 * time.Millisecond
	// moneyPatience is how long an invoke waits for the run's word that it may cost so much: the pool takes it for less.
	moneyPatience = 3 * time.Second
)

// Options configures a [Worker]. Client, Functions, Recorder, Plans and Venue are required.
type Options struct {
	// Host is the name of the host that the worker runs on.
	Host string
	// StateDir is an existing directory that no other spill worker uses at the same time: attempts in hand are written
	// down there, so that the next worker can give them back after a crash. Empty writes nothing down.
	StateDir string
	// Client is connected to Temporal.
	Client client.Client
	// Functions runs the invokes.
	Functions activities.Functions
	// Recorder takes Records and starts.
	Recorder activities.Recorder
	// Started makes durable that the worker has started anew, before it takes its first task; it is tried again until it
	// has. Nil tells nobody.
	Started func(context.Context, predictor.HostStarted) error
	// Local says that functions end with this process, as those of the local function host do: one that is lost with it is
	// billed until then. Others go on without it and are billed to their limit.
	Local bool
	// Results keeps results for later runs; nil keeps none.
	Results slot.Keeper
	// Plans hands out the plan.
	Plans activities.Plans
	// Venue says what functions offer and cost.
	Venue predictor.FunctionVenue
	// Declared says whether a function may run a command: nil when its stage was declared as one that runs it. Nil refuses
	// every command.
	Declared slot.Declared
	// Secrets has what stages name as secrets; nil gives them none.
	Secrets slot.Secrets
	// Drain is how long invokes may go on when the worker is told to end; 0 means 10 seconds.
	Drain time.Duration
	// Output opens what takes the output of an attempt; nil discards it.
	Output func(wire.LogSource) activities.Output
	// Now is the clock by which what happens is told; nil means time.Now.
	Now func() time.Time
	// Logger takes the worker's log; nil discards it.
	Logger *slog.Logger
}

// Worker forwards tasks to functions. All methods may be called concurrently.
type Worker struct {
	host      string
	instance  string
	client    client.Client
	started   func(context.Context, predictor.HostStarted) error
	journal   *slot.Journal // nil where none is kept
	logger    *slog.Logger
	functions activities.Functions
	recorder  activities.Recorder
	keeper    slot.Keeper
	plans     activities.Plans
	venue     predictor.FunctionVenue
	declared  slot.Declared
	secrets   slot.Secrets
	local     bool
	drain     time.Duration
	board     *slot.Board
	output    func(wire.LogSource) activities.Output
	now       func() time.Time

	flights sync.WaitGroup // that end soon after their tasks

	mu      sync.Mutex
	granted map[predictor.StageID]granted
	lines   map[predictor.StageID]*line
	closing bool // no invoke begins any more: all that wait are told to leave
}

// granted is what the plan says of a stage that has function slots.
type granted struct {
	size   quantity.Size
	sizing predictor.Sizing
	slots  int // invokes at a time
	batch  predictor.Batch
}

// New returns a worker that does nothing until Run.
func New(options Options) (*Worker, error) {
	switch {
	case options.Client == nil || options.Functions == nil || options.Recorder == nil || options.Plans == nil:
		return nil, errors.New("make a spill worker: client, functions, recorder and plans are all required")
	case len(options.Venue.Classes) == 0 || options.Venue.MaxMemory <= 0 || options.Venue.MaxDuration <= 0:
		return nil, fmt.Errorf("make a spill worker: the venue needs memory classes, a largest memory and a longest "+
			"duration; got %d, %s and %s",
			len(options.Venue.Classes), options.Venue.MaxMemory, options.Venue.MaxDuration)
	}
	if options.Drain <= 0 {
		options.Drain = defaultDrain
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	w := &Worker{
		host: options.Host, instance: rand.Text(), client: options.Client, started: options.Started, logger: options.Logger,
		functions: options.Functions, recorder: options.Recorder, keeper: options.Results, plans: options.Plans,
		venue: options.Venue, declared: options.Declared, secrets: options.Secrets,
		local: options.Local, drain: options.Drain,
		output: options.Output, now: options.Now, granted: make(map[predictor.StageID]granted),
		lines: make(map[predictor.StageID]*line),
	}
	if options.StateDir != "" {
		journal, err := slot.OpenJournal(
			filepath.Join(options.StateDir, "attempts", string(predictor.Function)), predictor.Function, w.host, w.instance,
			options.Logger)
		if err != nil {
			return nil, fmt.Errorf("make a spill worker: %w", err)
		}
		w.journal = journal
	}
	w.board = slot.NewBoard(options.Client, w.handle, options.Logger.With("venue", string(predictor.Function)))
	return w, nil
}

// Run obeys the plan's function grants until ctx ends. Then it polls no more, waits a while for running invokes, and
// abandons the rest.
func (w *Worker) Run(ctx context.Context) error {
	slot.TellStarted(ctx, w.started, predictor.HostStarted{
		Host: w.host, Venue: predictor.Function, Instance: w.instance,
		At: w.now(),
	}, w.logger)
	var giving sync.WaitGroup
	giving.Go(func() { w.journal.GiveBack(ctx, w.client, w.recorder) })
	err := w.board.Run(ctx, w.plans, w.obey, w.drain)
	giving.Wait()
	w.flights.Wait()
	if err = errors.Join(err, w.journal.Close(err == nil)); err != nil {
		return fmt.Errorf("run the spill worker: %w", err)
	}
	return nil
}

// Stages returns the stages that are polled for functions, sorted.
func (w *Worker) Stages() []predictor.StageID { return w.board.Stages() }

// obey takes over a plan and returns its function slots.
func (w *Worker) obey(plan predictor.Plan) map[predictor.StageID]slot.Target {
	targets := make(map[predictor.StageID]slot.Target)
	rows := make(map[predictor.StageID]granted)
	for _, g := range plan.Grants {
		if g.Venue == predictor.Function && g.Slots > 0 && w.venue.Enabled {
			targets[g.Stage] = slot.Target{Slots: polled(g)}
			rows[g.Stage] = granted{size: g.Size, slots: g.Slots, batch: g.Batch}
		}
	}
	for _, sizing := range plan.Sizings {
		if row, ok := rows[sizing.Stage]; ok {
			row.sizing = sizing
			rows[sizing.Stage] = row
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, stage := range w.board.Stages() { // an open poll may bring one more task of a stage that has no slots any more
		if _, ok := rows[stage]; !ok {
			rows[stage] = w.granted[stage]
		}
	}
	w.granted = rows
	for stage, at := range w.lines {
		w.turn(stage, at)
	}
	return targets
}

// polled is how many tasks are taken from the queue at a time. Where an invoke carries several, the next batch gathers
// while as many go on as there are slots.
func polled(g predictor.Grant) int {
	if g.Batch.Most() == 1 {
		return g.Slots
	}
	return (g.Slots + 1) * g.Batch.Tasks
}

// call is one attempt on its way to a function and back.
type call struct {
	function  string // its name, once deployed
	program   string // of a command: what mainly runs
	class     quantity.Bytes
	timeout   time.Duration // the stage's, and for a command the grace after it; 0 for none
	within    time.Duration // how long the run's money lets it take; 0 as long as any
	queue     time.Duration // until this process turned to it
	begun     time.Time     // when that was
	invoked   time.Time     // zero when it never was
	ended     time.Time
	answer    activities.FunctionAnswer
	err       error // of the invoke
	abandoned bool  // the invoke was given up by us and may still run
	// lasts is how long it is expected to take.
	lasts usage.Duration
	// outlives is for how long it may go on after it was given up, where it ends with this process; it is billed.
	outlives time.Duration
	// limit is how long the invoke may take, highest what it can cost when it goes on without us.
	limit   time.Duration
	highest quantity.Money
	part    part
	mask    *wire.Mask // of the attempt's secrets
}

// part is an attempt's part in its invoke.
type part struct {
	tasks, number int            // how many attempts the invoke carried, and which of them it is, from 0
	waited        time.Duration  // for others to come along, or until an invoke could begin
	turn          time.Duration  // after the invoke's first had begun, before it did
	cost          quantity.Money // its share of what the invoke cost
	billed        time.Duration  // and of what was billed
	ran           time.Duration  // and of how long the invoke took, which counts where the attempt measured nothing
}

// handle runs one attempt as an invoke. It is the worker's [slot.Handler].
func (w *Worker) handle(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
	if err := slot.Permit(ctx, w.declared, task, input, w.logger); err != nil {
		return wire.Result{}, err
	}
	try, err := slot.Begin(ctx, task, input, w.journal, w.now())
	if err != nil {
		return wire.Result{}, err
	}
	defer try.Close()
	w.mu.Lock()
	row := w.granted[task.Stage]
	w.mu.Unlock()
	c := call{class: w.venue.Classes[0], begun: w.now(), lasts: row.sizing.Duration}
	c.queue = try.Queue(c.begun)
	ending, predicted := refusedBefore(w.venue, row, task, try.Need())
	var answer wire.Answer
	c.timeout = task.Timeout
	if ending.Outcome == "" && task.Command {
		var stops time.Duration
		if c.program, stops, ending = commandRefused(w.venue, input, try.State().Checkpoint); task.Timeout > 0 {
			c.timeout += stops
		}
	}
	if ending.Outcome == "" {
		c.class = class(w.venue, row, try.Need())
		ending, answer = w.call(ctx, try, &c, input, predicted)
		ending.Message = c.mask.Text(ending.Message)
	}
	w.print(ctx, try, c, answer.Printed)
	if c.ended.IsZero() {
		c.ended = w.now()
	}
	ending.Grant = size.OfClass(c.class)
	ending.Cost = c.part.cost
	record := try.Record(predictor.Function, c.function, ending)
	record.Queue, record.At, record.Predicted = c.queue+c.part.waited+c.part.turn, c.ended, predicted
	record.Cold, record.Start, record.Usage = c.answer.Init > 0, started(c), usageOf(c, answer, task)
	if task.Command {
		record.Start += answer.Fetch // as at the pool: until the program runs
	}
	record.Init, record.Billed = c.answer.Init, c.part.billed
	if c.part.tasks > 1 {
		record.Batch = c.part.tasks
		if answer.Wall > 0 { // else nothing tells when it ended
			record.Settle = max(c.answer.Duration-c.part.turn-record.Usage.Wall, 0)
		}
	}
	return try.End(ctx, slot.Durable{Recorder: w.recorder, Keeper: w.keeper}, record, ending, answer.Output)
}

// print tells what the function printed: what a command returned of it or else the last, as the venue's log has no
// more.
func (w *Worker) print(ctx context.Context, try *slot.Attempt, c call, all []wire.Printed) {
	text := printed(c.answer.Log) // of a batch, its own part
	if w.output == nil || text == "" && len(all) == 0 {
		return
	}
	if len(all) == 0 {
		all = []wire.Printed{{Error: true, Text: []byte(text)}}
	}
	task := try.Task
	lines := w.output(wire.LogSource{
		Run: task.Run, Stage: task.Stage.Name, Task: task.ID, Attempt: try.Number, Venue: predictor.Function,
		Host: c.function,
	})
	for _, part := range all {
		to := lines.Stdout()
		if part.Error {
			to = lines.Stderr()
		}
		_, _ = io.WriteString(to, c.mask.Text(string(part.Text))) // it never fails
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outputTimeout)
	defer cancel()
	_ = lines.Close(ctx) // output that cannot be kept is no reason to fail
}

// outputTimeout bounds how long output is made durable before the attempt's Record is.
const outputTimeout = 5 * time.Second

// call deploys and invokes the function, alone or with other tasks of the stage, and tells how that ended.
// A run with a budget is asked for what it costs when it takes as long as expected, if that is more than is reserved.
func (w *Worker) call(
	ctx context.Context, try *slot.Attempt, c *call, input json.RawMessage, predicted predictor.Prediction,
) (slot.Ending, wire.Answer) {
	task := try.Task
	left, _ := try.Left()
	need := needs(w.venue, c.class, c.timeout, longest(w.venue, c.timeout, predicted), left)
	if !try.Secure(ctx, need, moneyPatience) {
		if ctx.Err() != nil {
			return unreached(ctx, ctx.Err(), "pay for"), wire.Answer{}
		}
		return overBudget("an invoke may cost %s, and the run's budget has less for this task", need), wire.Answer{}
	}
	left, isBounded := try.Left()
	c.within = bound(w.venue, c.class, c.timeout, left, isBounded)
	secrets, err := slot.Obtain(ctx, w.secrets, task, try.Number)
	switch {
	case errors.Is(err, slot.ErrNoSecret):
		return slot.Ending{Outcome: predictor.Failed, Permanent: true, Message: err.Error()}, wire.Answer{}
	case err != nil:
		return slot.Ending{Outcome: predictor.Lost, Message: err.Error()}, wire.Answer{}
	}
	// They go with the invoke, which the venue does not keep, and not into the function's variables, which everybody reads
	// who may look at its configuration.
	c.mask = wire.NewMask(secrets)
	start := wire.StartAttempt{
		Task: task, Attempt: try.Number, Input: input, Grant: size.OfClass(c.class), Resume: try.State().Checkpoint,
		Bound: c.within, Secrets: secrets,
	}
	payload, err := json.Marshal(wire.Invoke{Version: wire.Version, Start: start})
	if err != nil {
		return slot.Ending{Outcome: predictor.Failed, Permanent: true, Message: "encode the invoke: " + err.Error()},
			wire.Answer{}
	}
	if len(payload) > maxPayload {
		return because(predictor.CausePayload, refused("its payload of %s is over the %s that a function takes; pass an "+
			"artifact instead", quantity.Bytes(len(payload)), quantity.Bytes(maxPayload))), wire.Answer{}
	}
	if task.Command {
		c.function, err = w.functions.EnsureCommands(ctx, c.program, c.class)
	} else {
		c.function, err = w.functions.Ensure(ctx, task.Stage.App, task.Stage.Build, c.class)
	}
	if err != nil {
		return unreached(ctx, err, "deploy"), wire.Answer{}
	}
	got := w.ride(ctx, &member{
		try: try, call: c, start: start, payload: payload, alone: alone(task, try.Number, *c), landed: make(chan landing, 1),
		expected: predicted.Wall.Mid, rest: try.Rests,
		risk: func(most quantity.Money, soFar func(time.Duration) quantity.Money) {
			if w.local {
				try.Accrue(ctx, soFar)
			} else {
				try.Risk(ctx, most) // it goes on and is billed also when this process ends
			}
		},
	})
	switch {
	case c.invoked.IsZero():
		return unreached(ctx, ctx.Err(), "invoke"), wire.Answer{}
	case ctx.Err() != nil && c.err != nil:
		outcome, reason := slot.Stopped(ctx)
		return slot.Ending{Outcome: outcome, Message: reason + "; the invoke was abandoned"}, wire.Answer{}
	case c.abandoned && c.part.tasks > 1:
		return lostWithOthers(*c, fmt.Sprintf("the function did not answer within %s", c.limit+initAllowance)), wire.Answer{}
	case c.abandoned:
		return slot.Ending{
			Outcome: predictor.TimedOut, ToPool: !bounded(w.venue, task.Timeout),
			Message: fmt.Sprintf("the function did not answer within %s", c.limit+initAllowance),
		}, wire.Answer{}
	case c.err != nil:
		return unreached(ctx, c.err, "invoke"), wire.Answer{}
	}
	var note wire.FunctionNote
	note, c.answer.Log = wire.CutFunctionNotes(c.answer.Log)
	ending, answer := got.ending, got.answer
	answer.Progress, answer.Checkpoint = cmp.Or(answer.Progress, note.Progress), cmp.Or(answer.Checkpoint, note.Checkpoint)
	if answer.Curve != nil {
		try.Learned(*answer.Curve)
	}
	if answer.Progress != nil {
		try.Progress(*answer.Progress)
	}
	if answer.Checkpoint != nil {
		try.Checkpoint(*answer.Checkpoint)
	}
	return ending, answer
}

// invoke calls the function, and again after a pause while it is throttled.
func (w *Worker) invoke(
	ctx context.Context, name string, payload []byte,
) (answer activities.FunctionAnswer, err error) {
	for try, pause := 1, throttlePause; ; try, pause = try+1, 2*pause {
		answer, err = w.functions.Invoke(ctx, name, payload)
		if !errors.Is(err, activities.ErrThrottled) || try == throttleTries {
			return answer, err
		}
		if !wait.For(ctx, jittered(pause, random.Float64())) {
			return answer, err
		}
	}
}

// jittered spreads pause over half to one and a half of itself; draw is in [0, 1). Callers that were throttled together
// come back apart.
func jittered(pause time.Duration, draw float64) time.Duration {
	return time.Duration(float64(pause) * (0.5 + draw))
}
