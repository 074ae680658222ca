package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/slot"
)

const (
	// cancelGrace is how long a stage may take to stop once its context has ended; termGrace what is added after SIGTERM.
	cancelGrace = 5 * time.Second
	termGrace   = time.Second
	// moneyPatience is how long an attempt waits in its slot for the run's word that it may cost something.
	moneyPatience = 2 * time.Minute
)

// running is one attempt between its admission and its end.
type running struct {
	agent *Agent
	try   *slot.Attempt
	room  *reservation

	admitted quantity.Size  // the grant it began with
	expected quantity.Bytes // the most memory that nine of ten like it use; 0 where that is not known
	began    time.Time      // when it was admitted
	fixed    bool           // the stage decides its sizes: plans do not change them
	borrows  bool           // it may take more memory than it holds, where that is free: see lend.go
	recalled chan struct{}  // what it is lent is asked for

	mu    sync.Mutex
	grant quantity.Size
	lent  quantity.Bytes // that it may take beyond its grant
	meter *meter
	live  target // set while the attempt goes on in it
	gauge *gauge
	used  quantity.Bytes // memory at the last look
	last  quantity.Bytes // the limit of memory of a borrower when its work was over; 0 before
}

// target is what an attempt runs in and what its limits are set on.
type target struct {
	group *enforce.Group
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
	if err := a.permit(ctx, task, input); err != nil {
		return wire.Result{}, err
	}
	try, err := slot.Begin(ctx, task, input, a.journal, a.now())
	if err != nil {
		return wire.Result{}, err
	}
	defer try.Close()
	try.OnSuperseded(a.superseded)
	sizing := a.sizingOf(task)
	size, predicted, fits := sizing.For(try.Need(), a.capacity)
	if impossible, found := unfit(a.id, a.capacity, size, try.Need(), fits); found {
		_, err := slot.Settle(task, try.Number, try.State(), impossible)
		return wire.Result{}, err
	}
	if task.Recommends && !task.Command {
		size, predicted = a.recommended(ctx, try, input, size, predicted)
	}
	r := &running{
		agent: a, try: try, admitted: size, expected: quantity.Bytes(predicted.Memory.High), grant: size,
		fixed: task.Recommends, borrows: sizing.Borrows() && !task.Recommends && a.enforcer.Mode() != enforce.None,
		recalled: make(chan struct{}, 1),
	}
	f, account := r.run(ctx, task, input)
	ending, _ := ended(f)
	ending.Grant, ending.Cost = r.grantOf(ending), r.cost(a.now())
	record := try.Record(predictor.Pool, a.id, ending)
	record.Queue, record.Start, record.Cold = account.queue, account.start, account.cold
	record.At, record.Usage, record.Predicted = a.now(), account.usage, predicted
	if !account.began.IsZero() {
		record.Settle = max(record.At.Sub(account.began)-account.usage.Wall, 0)
	}
	var output json.RawMessage
	if f.answer != nil {
		output = f.answer.Output
	}
	return try.End(ctx, slot.Durable{Recorder: a.recorder, Keeper: a.keeper}, record, ending, output)
}

// unfit tells why an attempt can never run on a host; found is false when it can.
func unfit(host string, capacity, size quantity.Size, need predictor.Need, fits bool) (ending slot.Ending, found bool) {
	switch {
	case !fits:
		return slot.Ending{
			Outcome: predictor.OutOfMemory, Permanent: true, Grant: size,
			Message: fmt.Sprintf("it ran out of memory with %s, so it needs %s or more, and host %s has %s for all attempts; "+
				"make the input smaller or add a larger host", need.LargestFailed,
				need.LargestFailed*predictor.GrowAfterOutOfMemory, host, capacity.Memory),
		}, true
	case !size.Fits(capacity): // amounts are cut to the capacity, so it is the device
		return slot.Ending{
			Outcome: predictor.Failed, Permanent: true, Grant: size,
			Message: fmt.Sprintf("it needs a device of class %q, and host %s has class %q; add a host that has one",
				size.DeviceClass, host, capacity.DeviceClass),
		}, true
	}
	return slot.Ending{}, false
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
	room, err := a.admission.reserve(ctx, r.grant)
	account.queue = r.try.Queue(a.now())
	if err != nil {
		f.stopped, f.reason = slot.Stopped(ctx)
		return f, account
	}
	defer room.release()
	admitted := a.now()
	r.mu.Lock()
	r.began = admitted
	r.room, r.meter = room, newMeter(a.price, a.capacity, r.grant, admitted)
	r.meter.told = func(size quantity.Size, held time.Duration, last bool) {
		a.logger.DebugContext(ctx, "held", "run", task.Run, "task", task.ID, "attempt", r.try.Number, "pool_only",
			r.try.PoolOnly,
			"cpu_milli", int64(size.CPU), "memory_bytes", int64(size.Memory), "gpu_milli", int64(size.GPU), "held_ns",
			int64(held),
			"last", last)
	}
	r.mu.Unlock()
	defer func() { r.stopMeter(a.now()) }()
	if task.Command {
		return r.asCommand(ctx, task, input, &account), account
	}
	return r.inChild(ctx, task, input, &account), account
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
	lines := a.output(r.source())
	c.output.attach(lines)
	f = r.supervise(ctx, c, task, input)
	now := a.now()
	if f.answer != nil && f.exit == nil {
		c.output.drain()
	}
	if err := closeOutput(ctx, lines); err != nil {
		a.logger.WarnContext(ctx, "the end of an attempt's output is lost", "task", task.ID, "error", err)
	}
	if f.answer != nil && f.answer.BeganAt.After(began) { // the child has the same clock
		account.start += f.answer.BeganAt.Sub(began)
		account.began = f.answer.BeganAt
	}
	account.usage = r.usage(&f, c.process, now.Sub(began), now, task.Input)
	f.hostKills = memoryKills() > kills
	f.grant, f.peak = r.held(), account.usage.PeakMemory
	r.detach()
	if _, reusable := ended(f); reusable {
		a.children.give(ctx, c, now)
	} else {
		c.kill(ctx)
	}
	return f
}

// errUnaffordable says that the run's money does not allow to wait for a child any longer.
var errUnaffordable = errors.New("the run's money does not allow to wait for the stage's process any longer")

// child takes a child for the attempt. What waits for one holds its room and pays for it, so it waits no longer than
// the run's money allows.
func (r *running) child(ctx context.Context, task wire.Task) (c *child, cold bool, output string, err error) {
	a := r.agent
	waiting, stop := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer stop(nil)
	watch.Go(func() {
		samples := time.NewTicker(a.sampleEvery)
		defer samples.Stop()
		looks := newLooks(r)
		defer looks.stop()
		for {
			select {
			case <-waiting.Done():
				return
			case <-samples.C:
				if !r.affords(ctx) { // what it asks for is also for the time after the start
					stop(errUnaffordable)
				}
				looks.look()
			case <-looks.next():
				looks.look()
			case <-r.recalled:
				looks.look()
			}
		}
	})
	c, cold, output, err = a.children.take(waiting, build{task.Stage.App, task.Stage.Build}, task.Stage.Name,
		func() quantity.Size { // not before there is a group, when nobody could call in what it is lent
			r.borrow()
			return r.limits()
		}, func(group *enforce.Group) { a.attend(r, target{group: group}) })
	if err != nil && errors.Is(context.Cause(waiting), errUnaffordable) {
		err = errUnaffordable
	}
	return c, cold, output, err
}

// source says whose output it is.
func (r *running) source() wire.LogSource {
	task := r.try.Task
	return wire.LogSource{
		Run: task.Run, Stage: task.Stage.Name, Task: task.ID, Attempt: r.try.Number, Venue: predictor.Pool, Host: r.agent.id,
	}
}

// unstarted tells what it means that no child could be had.
func unstarted(ctx context.Context, err error, output string) (f finish) {
	switch {
	case ctx.Err() != nil:
		f.stopped, f.reason = slot.Stopped(ctx)
	case errors.Is(err, errUnavailable):
		f.stopped, f.cause, f.reason = predictor.Lost, predictor.CauseVenue, err.Error()
	case isDiskFull(err):
		f.stopped, f.cause, f.reason = predictor.Lost, predictor.CauseStart, err.Error()
	default:
		f.failed, f.tail = err, output
	}
	return f
}

// supervise tells the child to start and follows it to the end of the attempt.
func (r *running) supervise(ctx context.Context, c *child, task wire.Task, input json.RawMessage) (f finish) {
	err := c.send(wire.ToChild{Start: &wire.StartAttempt{
		Task: task, Attempt: r.try.Number, Input: input, Grant: r.limits(), Resume: r.try.State().Checkpoint,
		Past: r.agent.past(task.Stage), TimeToLoss: r.agent.timeToLoss(r.held().DeviceClass),
	}})
	if err != nil {
		endAll(ctx, c.group)
		f.failed = err
	}
	samples := time.NewTicker(r.agent.sampleEvery)
	defer samples.Stop()
	looks := newLooks(r)
	defer looks.stop()
	var timeout <-chan time.Time
	if task.Timeout > 0 {
		timer := time.NewTimer(task.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	stop := stopping{child: c, done: ctx.Done()}
	for {
		select {
		case message, open := <-c.messages:
			switch {
			case !open:
				return gone(ctx, c, f)
			case message.Progress != nil:
				r.try.Progress(*message.Progress)
			case message.Checkpoint != nil:
				r.try.Checkpoint(*message.Checkpoint, message.CheckpointParts...)
			case message.Training != nil:
				r.trained(ctx, *message.Training)
			case message.Done != nil:
				f.answer = message.Done
				return f
			}
		case <-samples.C:
			r.sample()
			looks.again()
			if f.stopped == "" && !r.affords(ctx) {
				r.unaffordable(&f)
				endAll(ctx, c.group)
			}
		case <-looks.next():
			looks.look()
		case <-r.recalled:
			looks.look()
		case <-timeout:
			timeout = nil
			f.stopped, f.reason = predictor.TimedOut, pastTimeout(task.Timeout)
			endAll(ctx, c.group)
		case <-stop.done:
			if f.stopped == "" {
				f.stopped, f.reason = slot.Stopped(ctx)
			}
			stop.ask(ctx, f.stopped)
		case <-stop.next:
			stop.force(ctx)
		}
	}
}

// perLook is what the attempt costs from one look to the next.
func (r *running) perLook() quantity.Money {
	a := r.agent
	return ledger.PoolCost(predictor.Host{PricePerHour: a.price, Capacity: a.capacity}, r.held(), a.sampleEvery)
}

// affords reports whether the run's money allows the attempt to go on until the next look.
func (r *running) affords(ctx context.Context) bool {
	return r.try.Afford(ctx, r.cost(r.agent.now()), r.perLook())
}

// unaffordable ends an attempt that may cost no more.
func (r *running) unaffordable(f *finish) {
	ending := r.try.Unaffordable()
	f.stopped, f.cause, f.reason = ending.Outcome, ending.Cause, ending.Message
}

// trained takes over what a child tells of a split training. The child has refused what is not sound; a child of
// another version may not have.
func (r *running) trained(ctx context.Context, training predictor.Training) {
	if err := training.Validate(); err != nil {
		r.agent.logger.WarnContext(ctx, "what an attempt tells of its training is left out", "task", r.try.Task.ID, "error",
			err)
		return
	}
	r.try.Trained(training)
}

// stopping ends a child step by step: it is asked, then told to terminate, then killed.
type stopping struct {
	child      *child
	done       <-chan struct{} // of the attempt's context, until it was seen
	next       <-chan time.Time
	terminated bool
}

// ask tells the stage that its context has ended; an attempt that is lost anyhow is not given time.
func (s *stopping) ask(ctx context.Context, outcome predictor.Outcome) {
	s.done = nil
	if outcome != predictor.Cancelled || s.child.send(wire.ToChild{Cancel: true}) != nil {
		endAll(ctx, s.child.group)
		return
	}
	s.next = time.After(cancelGrace)
}

// force takes the next step.
func (s *stopping) force(ctx context.Context) {
	if s.terminated {
		endAll(ctx, s.child.group)
		s.next = nil
		return
	}
	s.terminated = true
	s.child.signal(syscall.SIGTERM)
	s.next = time.After(termGrace)
}

// gone tells how a child went away that says no more.
func gone(ctx context.Context, c *child, f finish) finish {
	timer := time.NewTimer(exitGrace)
	defer timer.Stop()
	select {
	case <-c.exited:
	case <-timer.C: // it closed its channel but lives
		endAll(ctx, c.group)
		<-c.exited
	}
	if c.broken != nil {
		f.failed = c.broken
	}
	f.exit = statusOf(c.process.ProcessState)
	f.tail = c.output.text()
	return f
}

// sample publishes what the attempt takes now, and gives it more memory when it comes close to its limit. An attempt
// that outgrew its grant, where nothing holds it, is counted with what it takes, so that its neighbours are not
// admitted into memory that is not there.
func (r *running) sample() {
	a := r.agent
	now := a.now()
	r.mu.Lock()
	gauge := r.gauge
	r.mu.Unlock()
	l, ok := gauge.sample(now)
	if !ok {
		return
	}
	r.mu.Lock()
	r.used = l.memory
	held := r.grant
	r.mu.Unlock()
	r.room.resize(func(held, _ quantity.Size) quantity.Size {
		held.Memory = max(held.Memory, l.memory)
		return held
	})
	if sizing, known := a.sizing(r.try.Task.Stage); known && !sizing.Live.IsZero() {
		r.resize(sizing, now)
	}
	if r.borrows {
		r.follow(l.memory, now)
		r.lend()
	} else {
		r.change(now, func(held, free quantity.Size) quantity.Size {
			held.Memory = predictor.Relief(held.Memory, r.admitted.Memory, r.expected, l.memory, free.Memory)
			return held
		})
	}
	state, task := r.try.State(), r.try.Task
	a.recorder.Tell(predictor.Sampled{
		Run: task.Run, Stage: task.Stage, Task: task.ID, Attempt: r.try.Number, Venue: predictor.Pool, Host: a.id,
		CPU: l.rate, Memory: l.memory, Throttled: l.throttled, Grant: held, Step: state.Step, Metrics: state.Metrics,
		Training: r.try.News(), At: now,
	})
}

// attach makes the attempt run in live from now on.
func (r *running) attach(live target, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live, r.gauge = live, newGauge(live.group, r.agent.enforcer.Mode(), now)
}

// detach ends the time in which the attempt can be resized. Its processes are gone, or idle: what it leaves behind may
// be collected for long, and nobody could call in what it is lent.
func (r *running) detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = target{}
	if r.borrows {
		r.lent = r.room.borrow(0)
	}
}

// liveAfter is how long an attempt must have run before it is sized by what attempts that run take: its start says
// little about what follows.
const liveAfter = time.Minute

// resize gives the attempt what sizing says now, while it runs.
func (r *running) resize(sizing predictor.Sizing, now time.Time) {
	if r.fixed {
		return
	}
	want, _, _ := sizing.For(r.try.Need(), r.agent.capacity)
	r.mu.Lock()
	used, held := r.used, r.grant
	r.mu.Unlock()
	if !sizing.Live.IsZero() && now.Sub(r.began) >= liveAfter {
		want.CPU, want.Memory = sizing.Live.CPU, sizing.Live.Memory
		if predictor.Relief(held.Memory, r.admitted.Memory, r.expected, used, held.Memory) > held.Memory {
			want.Memory = max(want.Memory, held.Memory) // it has just been given more, or is about to be
		}
	}
	r.change(now, func(held, free quantity.Size) quantity.Size { return resized(held, free, want, used) })
}

// change gives the attempt what decide says, in the books, in the kernel and in the child's runtime. The kernel may
// hold more memory than is asked for, when the attempt uses more.
func (r *running) change(now time.Time, decide func(held, free quantity.Size) quantity.Size) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live.group == nil {
		return
	}
	before := r.limit()
	wanted := r.grant.Memory
	size, lent := r.room.resize(func(held, free quantity.Size) quantity.Size {
		size := decide(held, free)
		wanted = size.Memory
		size.Memory = max(size.Memory, held.Memory) // what is given up is nobody's before the kernel has lowered the limit
		return size
	})
	if size == r.grant && lent == r.lent && wanted == size.Memory {
		return
	}
	limit := size
	limit.Memory = wanted + lent
	memory := limit.Memory // that the kernel allows
	if limit != before {
		held, err := r.live.group.Resize(limit)
		if err != nil {
			r.agent.logger.Warn("a running attempt keeps its limits", "task", r.try.Task.ID, "error", err)
			memory = before.Memory
		}
		memory = max(memory, held.Memory)
	}
	if memory != size.Memory+lent {
		size, lent = r.room.resize(func(now, _ quantity.Size) quantity.Size {
			now.Memory = booked(now.Memory, lent, memory)
			return now
		})
	}
	r.grant, r.lent = size, lent
	r.meter.hold(size, now)
	if limit != before {
		r.tell()
	}
}

// booked is the memory that an attempt holds of what the kernel allows, while this much is lent of it: what it gives up
// comes off what it holds, and where it has more than it holds and is lent, it holds all of it.
func booked(held, lent, allowed quantity.Bytes) quantity.Bytes {
	if allowed-lent > held {
		return allowed
	}
	return allowed - lent
}

// tell hands the attempt its limits; the caller holds mu.
func (r *running) tell() {
	if r.live.tell == nil {
		return
	}
	if err := r.live.tell(r.limit()); err != nil {
		r.live.abandon()
	}
}

func (r *running) held() quantity.Size {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.grant
}

// stopMeter stops the cost at now.
func (r *running) stopMeter(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meter.hold(quantity.Size{}, now)
}

// cost is what the attempt cost until now; nothing when it was never admitted.
func (r *running) cost(now time.Time) quantity.Money {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.meter == nil {
		return 0
	}
	return r.meter.cost(now)
}

// usage is what the attempt took, with what the end of its process adds; f is told what the kernel killed.
func (r *running) usage(
	f *finish, process *exec.Cmd, wall time.Duration, now time.Time, input quantity.Bytes,
) quantity.Usage {
	r.mu.Lock()
	gauge := r.gauge
	r.mu.Unlock()
	var state *os.ProcessState
	if f.exit != nil {
		state = process.ProcessState
	}
	usage := gauge.usage(f.answer, state, wall, now)
	f.kills, f.enforced = gauge.kills(), gauge.counted
	r.settle(f.kills > 0, usage.PeakMemory, now)
	usage.Input = input
	if f.answer != nil {
		usage.Output = quantity.Bytes(len(f.answer.Output)) + f.answer.Written
	}
	return usage
}
