package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/slot"
)

// running is one attempt between its admission and its end.
type running struct {
	// What follows stays as it is once its processes start.
	agent    *Agent
	try      *slot.Attempt
	gang     *joined // of a program on several hosts; else nil
	room     *reservation
	admitted quantity.Size  // the grant it began with
	expected quantity.Bytes // the most memory that nine of ten like it use; 0 where that is not known
	began    time.Time      // when it was admitted
	fixed    bool           // the stage decides its sizes: plans do not change them
	borrows  bool           // it may take more memory than it holds, where that is free: see lend.go
	recalled chan struct{}  // what it is lent is asked for
	need     device.Need    // of the host's GPUs
	gpus     *gpuHold       // that it has
	secrets  map[string]string
	mask     *wire.Mask // of these

	// Only who supervises it looks at these.
	planned bool              // it has told of a split training
	lines   activities.Output // takes what it prints, from the start of its processes on
	crowded bool              // it was told there that it was refused processes

	mu    sync.Mutex
	grant quantity.Size
	lent  quantity.Bytes // that it may take beyond its grant
	meter *meter
	live  target // set while the attempt goes on in it
	gauge *gauge
	used  quantity.Bytes // memory at the last look
	// earlier is the limit of memory before it was last raised, 0 where it never was; last what it was when the work of a
	// borrower, or of one that was killed for memory, was over: what was not enough. 0 before.
	earlier, last quantity.Bytes
}

// newRunning is an attempt that this host is to run with this size.
func (a *Agent) newRunning(try *slot.Attempt, s sized, sizing predictor.Sizing) *running {
	return &running{
		agent: a, try: try, admitted: s.size, expected: quantity.Bytes(s.predicted.Memory.High), grant: s.size,
		need:     needOf(s.size, sizing.Learned && s.need.LargestFailedGPU == 0),
		fixed:    try.Task.Recommends,
		borrows:  sizing.Borrows() && !try.Task.Recommends && a.enforcer.Mode() != enforce.None,
		recalled: make(chan struct{}, 1),
	}
}

// target is what an attempt runs in and what its limits are set on.
type target struct {
	group *enforce.Group
	// owns says of a process that is not in the group whether it is the attempt's; nil when all of its are.
	owns func(pid int) bool
	// tell hands the new limits to the attempt; nil where there is nobody to tell. Abandon is called when it cannot be
	// told.
	tell    func(quantity.Size) error
	abandon func()
}

// account is what is known of an attempt when it is over, besides how it ended.
type account struct {
	queue, start time.Duration
	began        time.Time // of the user's code; the zero time when it did not
	cold         bool
	usage        quantity.Usage
}

// handle runs one attempt on this host. It is the agent's [slot.Handler].
func (a *Agent) handle(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
	if err := slot.Permit(ctx, a.declared, task, input, a.logger); err != nil {
		return wire.Result{}, err
	}
	try, err := slot.Begin(ctx, task, input, a.journal, a.now())
	if err != nil {
		return wire.Result{}, err
	}
	defer try.Close()
	if a.superseded != nil {
		try.OnSuperseded(func(older []activities.Ref, made time.Time) { a.superseded(try.Proof(), older, made) })
	}
	if ending, found := a.misplaced(task, input); found {
		a.logger.WarnContext(ctx, "an attempt is given back", "run", task.Run, "task", task.ID, "reason", ending.Message)
		return wire.Result{}, try.GiveBack(ctx, ending)
	}
	sizing := a.sizingOf(task)
	if sizing.Base.GPU > 0 {
		a.gpus.await(ctx)
	}
	s := a.sized(sizing, try.Need())
	impossible, found := a.unfit(s)
	if task.Recommends && !task.Command && !found {
		s.size, s.predicted = a.recommended(ctx, try, input, s.size, s.predicted)
		s.size, s.fits = rounded(s.size), true
		impossible, found = a.unfit(s)
	}
	if found {
		return a.giveBack(ctx, try, s, a.last(impossible, sizing, s.need, try.State().HostWait, task.Recommends))
	}
	r := a.newRunning(try, s, sizing)
	f, account := r.run(ctx, task, input)
	a.lookAtDisk(f.diskFull)
	ending, _ := ended(f)
	ending.Grant, ending.Cost = r.grantOf(ending), r.cost(a.now())
	ending = a.last(ending, sizing, s.need, try.State().HostWait, task.Recommends)
	var output json.RawMessage
	if f.answer != nil {
		output = f.answer.Output
	}
	record := r.record(ending, account, s.predicted)
	return try.End(ctx, slot.Durable{Recorder: a.recorder, Keeper: a.keeper}, record, ending, output)
}

// record is the Record of the attempt, which has just ended.
func (r *running) record(ending slot.Ending, account account, predicted predictor.Prediction) predictor.Record {
	record := r.try.Record(predictor.Pool, r.agent.id, ending)
	if r.gpus != nil {
		record.GPUs = r.gpus.uuids
	}
	record.Queue, record.Start, record.Cold = account.queue, account.start, account.cold
	record.At, record.Usage, record.Predicted = r.agent.now(), account.usage, predicted
	record.Members = r.gang.shares(record.At)
	if !account.began.IsZero() {
		record.Settle = max(record.At.Sub(account.began)-account.usage.Wall, 0)
	}
	return record
}

// run admits the attempt, runs it in a child and gives both back.
func (r *running) run(ctx context.Context, task wire.Task, input json.RawMessage) (f finish, account account) {
	a := r.agent
	// A picodollar, where the pool costs anything: an attempt whose task has nothing left does not begin.
	if !r.try.Secure(ctx, min(r.perLook(), 1), moneyPatience) {
		account.queue = r.try.Queue(a.now())
		if f.stopped, f.reason = slot.Stopped(ctx); ctx.Err() == nil {
			r.unaffordable(&f)
		}
		return f, account
	}
	room, err := r.reserve(ctx, task, input)
	account.queue = r.try.Queue(a.now())
	if errors.Is(err, errNoGang) {
		f.answer = refusal(err, !errors.Is(err, ErrRefused)) // another host may have its gang
		return f, account
	}
	if err != nil {
		if f.stopped, f.reason = slot.Stopped(ctx); errors.Is(err, errNoGPU) {
			f.stopped, f.cause, f.reason, f.gpuWait = predictor.Lost, predictor.CauseNoGPU, err.Error(), gpuPatience
		}
		return f, account
	}
	defer room.release()
	whole, unwatch := r.gang.watch(ctx)
	defer func() { unwatch(); r.gang.end(ctx, a.now()) }()
	who := predictor.GPUHolder{Run: task.Run, Stage: task.Stage.Name, Task: task.ID, Attempt: r.try.Number}
	if r.gpus != nil { // with its gang
	} else if r.gpus, err = a.gpus.take(ctx, r.need, who); err != nil {
		if f.stopped, f.reason = slot.Stopped(ctx); ctx.Err() == nil {
			f.stopped, f.cause, f.reason, f.gpuWait = predictor.Lost, predictor.CauseNoGPU, err.Error(), gpuPatience
		}
		account.queue = r.try.Queue(a.now())
		return f, account
	}
	defer a.gpus.give(r.gpus)
	if len(r.gpus.uuids) > 0 {
		account.queue = r.try.Queue(a.now())
		r.grant, _ = room.resize(func(held, _ quantity.Size) quantity.Size {
			held.GPUMemory, held.DeviceClass = r.gpus.memory(), r.gpus.class()
			return held
		})
	}
	admitted := a.now()
	r.mu.Lock()
	r.began = admitted
	r.room, r.meter = room, newMeter(a.perHour(), a.capacity(), r.grant, admitted)
	r.meter.told = func(size quantity.Size, held time.Duration, last bool) {
		a.logger.DebugContext(ctx, "held", "run", task.Run, "task", task.ID, "attempt", r.try.Number, "pool_only",
			r.try.PoolOnly,
			"cpu_milli", int64(size.CPU), "memory_bytes", int64(size.Memory), "gpu_milli", int64(size.GPU), "held_ns",
			int64(held),
			"last", last)
	}
	r.mu.Unlock()
	defer func() { r.stopMeter(a.now()) }()
	refused, obtained := r.obtainSecrets(whole, task)
	switch {
	case !obtained:
		f = refused
	case task.Command:
		f = r.asCommand(ctx, whole, task, input, &account)
	default:
		f = r.inChild(ctx, task, input, &account)
	}
	if f.answer != nil {
		r.mask.Failure(f.answer.Error)
	}
	a.gpus.settle(context.WithoutCancel(ctx), r.gpus)
	a.gpus.usage(r.gpus, &account.usage)
	return f, account
}

// errNoGang says that a program cannot run on several hosts.
var errNoGang = errors.New("the program cannot run on several hosts")

// reserve waits for the room of the attempt, on all of its hosts where it is for several.
func (r *running) reserve(ctx context.Context, task wire.Task, input json.RawMessage) (*reservation, error) {
	a := r.agent
	least, most := gangOf(task, input)
	if most < 2 || least < 2 && (a.gangs.ways == nil || a.gangs.address == "") {
		return a.admission.reserve(ctx, r.grant)
	}
	if a.gangs.ways == nil || a.gangs.address == "" {
		return nil, fmt.Errorf("%w: host %s takes no part in gangs; start its agent with --training-address, an address of "+
			"it that the others reach, or take it out of the pool", errNoGang, a.id)
	}
	var err error
	if r.gang, err = r.join(ctx, task, input, least, most); err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", errNoGang, err)
	}
	return r.room, err
}

// inChild runs the attempt in a process of the user's build.
func (r *running) inChild(ctx context.Context, task wire.Task, input json.RawMessage, account *account) (f finish) {
	a := r.agent
	admitted := a.now()
	c, cold, output, err := r.child(ctx, task)
	account.cold = cold
	account.start = a.now().Sub(admitted)
	if err != nil {
		a.end(r)
		r.detach()
	}
	switch {
	case errors.Is(err, errUnaffordable):
		r.unaffordable(&f)
		return f
	case err != nil:
		return unstarted(ctx, err, output)
	}
	a.begin(r, target{
		group: c.group, tell: func(size quantity.Size) error { return c.send(wire.ToChild{Limit: &size}) },
		abandon: func() { endAll(ctx, c.group) }, // half a message was written: nothing that follows would be understood
	})
	defer a.end(r)
	began := a.now()
	account.began = began
	kills := memoryKills()
	r.lines = a.output(r.source())
	c.output.attach(r.lines, r.mask) //nolint:contextcheck // Outputs do not wait
	f = r.supervise(ctx, c, task, input)
	now := a.now()
	if f.answer != nil && f.exit == nil {
		c.output.drain() //nolint:contextcheck // Outputs do not wait
	}
	if f.answer != nil && f.answer.BeganAt.After(began) { // the child has the same clock
		account.start += f.answer.BeganAt.Sub(began)
		account.began = f.answer.BeganAt
	}
	account.usage = r.usage(&f, c.process, now.Sub(began), now, task.Input)
	if err := closeOutput(ctx, r.lines); err != nil {
		a.logger.WarnContext(ctx, "the end of an attempt's output is lost", "task", task.ID, "error", err)
	}
	f.hostKills = memoryKills() > kills
	f.grant, f.peak = r.held(), account.usage.PeakMemory
	r.detach()
	if len(r.gpus.uuids) > 0 { // while its process is there; the end of a short one is seen by nobody else
		if err := a.gpus.look(context.WithoutCancel(ctx)); err != nil {
			a.logger.WarnContext(ctx, "the GPUs were not looked at", "task", task.ID, "error", err)
		}
	}
	if _, reusable := ended(f); reusable && len(r.gpus.uuids) == 0 { // a process sees the GPUs that it was started with
		a.children.give(ctx, c)
	} else {
		a.children.stop(ctx, c)
	}
	return f
}
