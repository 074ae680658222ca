package slot

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// maxBeat bounds the time between two heartbeats, because a cancellation is only seen in the answer to one.
	maxBeat = 2 * time.Second
	// beatShare is how many heartbeats fit into the heartbeat timeout, so that two may be lost.
	beatShare = 3
	// beatTimeout bounds a heartbeat that is sent at once.
	beatTimeout = 5 * time.Second
	// longestDelivery bounds the time that a task is taken to be on its way from the server, as the clocks of two hosts
	// differ.
	longestDelivery = time.Second
	// recordPause and maxRecordPause space the tries to make a Record durable, each bounded by recordTimeout;
	// recordGrace is how long they go on when the attempt has no more time.
	recordPause    = 50 * time.Millisecond
	maxRecordPause = 5 * time.Second
	recordTimeout  = 10 * time.Second
	recordGrace    = 5 * time.Second
)

// Attempt is one try of a task as its supervisor sees it: it keeps the heartbeat going and its details up to date.
// All methods may be called concurrently.
type Attempt struct {
	// Task is what is tried, Number which try it is, from 1.
	Task   wire.Task
	Number int
	// ScheduledAt is when the task was put on its queue. For later attempts it is when this one was taken from the queue,
	// because Temporal does not tell workers when it put the task back.
	ScheduledAt time.Time
	// PoolOnly says that the task came from the queue that functions do not poll.
	PoolOnly bool

	input    json.RawMessage
	features map[string]float64
	taken    time.Time     // when this process got it
	queued   time.Duration // before that

	mu       sync.Mutex
	state    wire.Heartbeat
	reported wire.Progress       // the newest of this attempt; state has that of an earlier one until then
	trail    predictor.Trail     // of the metric of its training
	training *predictor.Training // the newest that was told; replaced, never changed
	fresh    bool                // nobody has asked for it yet
	told     *predictor.Training // what was returned to who asked last
	money    money
	asks     sync.WaitGroup // that ask for more of it
	accrues  accrual
	// checkpoints are those from which a retry may go on; superseded is told of the others, where it is not nil.
	checkpoints checkpoints
	made        int // by this attempt
	superseded  func(older []activities.Ref, made time.Time)

	proof   string        // that this host was given it; empty where it came without
	every   time.Duration // between two heartbeats
	late    time.Duration // for how long a heartbeat may be on its way
	journal *Journal
	entry   int        // in the journal
	kept    Taken      // what it says
	keeping sync.Mutex // of kept, once it has begun

	urgent  chan struct{} // a checkpoint shall reach the server now
	stop    chan struct{}
	stopped chan struct{}
	once    sync.Once
}

// Begin reads what earlier attempts left, writes the attempt down in the journal and starts the heartbeat. Ctx, task
// and input are those of a
// [Handler]. Call Close when the attempt is over.
func Begin(
	ctx context.Context, task wire.Task, input json.RawMessage, journal *Journal, taken time.Time,
) (*Attempt, error) {
	info := activity.GetInfo(ctx)
	a := &Attempt{
		Task:        task,
		Number:      int(info.Attempt),
		ScheduledAt: info.ScheduledTime,
		PoolOnly:    task.PoolOnly || info.TaskQueue == task.Stage.PoolQueue(),
		input:       input,
		features:    wire.Features(task, input),
		taken:       taken,
		queued:      max(info.StartedTime.Sub(info.ScheduledTime), 0),
		journal:     journal,
		urgent:      make(chan struct{}, 1),
		stop:        make(chan struct{}),
		stopped:     make(chan struct{}),
		every:       maxBeat,
		late:        beatTimeout,
	}
	if a.Number > 1 {
		a.ScheduledAt, a.queued = info.StartedTime, 0
	}
	// Between the server's word that the attempt has started and this line the task was on its way here.
	a.queued += min(max(a.taken.Sub(info.StartedTime), 0), longestDelivery)
	if activity.HasHeartbeatDetails(ctx) {
		if err := activity.GetHeartbeatDetails(ctx, &a.state); err != nil {
			return nil, temporal.NewNonRetryableApplicationError(
				"read what the last attempt of "+task.ID+" left: the heartbeat is not one of this version of spillway",
				MalformedError, err)
		}
	}
	if info.HeartbeatTimeout > 0 {
		a.every = min(a.every, info.HeartbeatTimeout/beatShare)
		a.late = max(a.late, info.HeartbeatTimeout) // Temporal's worker gives one up after four fifths of that
	}
	if a.state.Checkpoint.Digest == "" {
		a.state.Checkpoint = task.Resume
	}
	if a.state.Checkpoint.Digest != "" {
		a.checkpoints.add(time.Now(), []activities.Ref{a.state.Checkpoint})
	}
	a.state.Spent += a.state.Running // an attempt that was lost has cost something as well
	a.state.Running = 0
	a.proof = journal.proofs().take(task.Run, task.ID, a.Number, info.TaskToken)
	a.entry = journal.take(a, info.TaskToken)
	a.money = newMoney(task, a.state)
	go a.beat(ctx)
	return a, nil
}

// Close ends the heartbeat. It may be called several times, but not concurrently with End.
func (a *Attempt) Close() {
	a.once.Do(func() {
		close(a.stop)
		<-a.stopped // it writes to the entry
		a.journal.leave(a.entry)
		a.journal.proofs().forget(a.Task.Run, a.Task.ID, a.Number)
	})
	a.asks.Wait()
}

// Proof shows that this host was given the attempt; empty where that came without.
func (a *Attempt) Proof() string { return a.proof }

// State returns what the attempt would leave for the next one now.
func (a *Attempt) State() wire.Heartbeat {
	state, _ := a.numbered()
	return state
}

// numbered is State, with the number of its checkpoint.
func (a *Attempt) numbered() (state wire.Heartbeat, checkpoint int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	state = a.state
	state.Metrics = maps.Clone(state.Metrics)
	return state, a.checkpoints.newest
}

// Progress notes the newest finished step; the next heartbeat carries it, and the attempt's Record has the last. Of
// more than 64 metrics the first by name are kept, of those whose names have at most 200 bytes: a Record that is too
// large could never be stored.
func (a *Attempt) Progress(progress wire.Progress) {
	progress.Metrics, progress.NotFinite = fewest(progress.Metrics), fewNames(progress.NotFinite)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reported = progress
	a.state.Step, a.state.Of, a.state.Metrics = progress.Step, progress.Of, progress.Metrics
	a.state.NotFinite = progress.NotFinite
	a.trail.Tell(progress.Step, progress.Metrics, progress.NotFinite, predictor.MostTrail)
}

// Learned notes how the metric of its training went, where nobody heard of the steps while it ran, as at a function; it
// replaces what was heard of the same steps.
func (a *Attempt) Learned(curve predictor.Curve) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trail.Follow(curve, predictor.MostTrail)
}

// maxMetrics and maxMetricName bound what is kept of one report.
const (
	maxMetrics    = 64
	maxMetricName = 200
)

// fewest returns a copy of metrics within the bounds; nil for none.
func fewest(metrics map[string]float64) map[string]float64 {
	kept := maps.Clone(metrics)
	maps.DeleteFunc(kept, func(name string, _ float64) bool { return len(name) > maxMetricName })
	if len(kept) > maxMetrics {
		for _, name := range slices.Sorted(maps.Keys(kept))[maxMetrics:] {
			delete(kept, name)
		}
	}
	return kept
}

// fewNames returns the names within the bounds; nil for none.
func fewNames(names []string) []string {
	kept := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return len(name) > maxMetricName })
	if len(kept) == 0 {
		return nil
	}
	return kept[:min(len(kept), maxMetrics)]
}

// Trained notes how a split training goes, which Validate has found sound; it replaces all before it, and goes with the
// attempt's Record.
func (a *Attempt) Trained(training predictor.Training) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.training, a.fresh = &training, true
}

// News returns how a split training goes, once for each time that it was told; nil when nothing was told since. What
// was not chosen, and why, is left out where News has told it before: a training of a day has a sample a second. The
// Record tells it again.
func (a *Attempt) News() *predictor.Training {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.fresh {
		return nil
	}
	news, told := *a.training, a.told
	a.fresh, a.told = false, a.training
	if told != nil && told.Reason == news.Reason && slices.Equal(told.Alternatives, news.Alternatives) {
		news.Reason, news.Alternatives = "", nil
	}
	return &news
}

// OnSuperseded has tell told of checkpoints that are of no use any more, because the server knows of a newer one. It is
// called once, right after Begin.
func (a *Attempt) OnSuperseded(tell func(older []activities.Ref, made time.Time)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.superseded = tell
}

// acknowledged notes that the server knows of the checkpoint of this number.
func (a *Attempt) acknowledged(number int) {
	a.mu.Lock()
	superseded, tell := a.checkpoints.acknowledge(number, time.Now(), a.late), a.superseded
	a.mu.Unlock()
	if tell == nil {
		return
	}
	for _, one := range superseded {
		tell(one.refs, one.at)
	}
}

// Checkpoint notes the newest checkpoint and has it sent at once, so that a host that dies now loses no more than what
// came after it. Parts are artifacts that were stored for it alone.
func (a *Attempt) Checkpoint(ref activities.Ref, parts ...activities.Ref) {
	a.mu.Lock()
	a.state.Checkpoint = ref
	a.checkpoints.add(time.Now(), append([]activities.Ref{ref}, parts...))
	a.made++
	a.mu.Unlock()
	select {
	case a.urgent <- struct{}{}:
	default: // one is on its way already and will carry this one
	}
}

// Queue returns how long the attempt has waited in the queue and, since this process took it, until now.
func (a *Attempt) Queue(now time.Time) time.Duration { return a.queued + now.Sub(a.taken) }

// Need returns what is known about the attempt before it runs.
func (a *Attempt) Need() predictor.Need {
	a.mu.Lock()
	defer a.mu.Unlock()
	return predictor.Need{
		Input: a.Task.Input, Features: a.features,
		OutOfMemory: a.state.OutOfMemory, LargestFailed: a.state.LargestFailed, LargestFailedGPU: a.state.LargestFailedGPU,
	}
}

// Record returns the start of the attempt's Record: who it is, where it ran, how it ended and what it said last.
func (a *Attempt) Record(venue predictor.Venue, host string, ending Ending) predictor.Record {
	a.mu.Lock()
	training, reported, made, before := a.training, a.reported, a.made, a.state
	curve := a.trail.Curve()
	a.mu.Unlock()
	return predictor.Record{
		Run: a.Task.Run, Pipeline: a.Task.Pipeline, Stage: a.Task.Stage, Task: a.Task.ID, Attempt: a.Number,
		Venue: venue, Host: host, PoolOnly: a.PoolOnly, ScheduledAt: a.ScheduledAt,
		Outcome: ending.Outcome, Cause: ending.because(), Error: clip(ending.Message, maxMessage), Grant: ending.Grant,
		Next:     next(a.Task, a.Number, before, ending),
		Cost:     ending.Cost,
		Features: a.features, Step: reported.Step, Of: reported.Of, Metrics: maps.Clone(reported.Metrics),
		NotFinite: reported.NotFinite, Curve: curve,
		Training: training, Checkpoints: made,
	}
}

// Keeper keeps results for later runs.
type Keeper interface {
	// Keep makes a result durable.
	Keep(ctx context.Context, kept wire.Kept) error
}

// Durable is where an attempt leaves what outlives it. Recorder is required; Keeper is nil where nobody keeps results.
type Durable struct {
	Recorder activities.Recorder
	Keeper   Keeper
}

// End closes the attempt: it makes record durable, keeps the result, leaves what the next attempt must know and returns
// what the handler returns. When record cannot be made durable while ctx lasts, the attempt is lost and will be done
// again, because a result must not be known before its cost is. A result that cannot be kept is made again when it is
// needed again.
func (a *Attempt) End(
	ctx context.Context, durable Durable, record predictor.Record, ending Ending, output json.RawMessage,
) (wire.Result, error) {
	kept := a.keep(ctx, durable.Keeper, record, ending, output)
	defer func() { <-kept }()
	if err := persist(ctx, durable.Recorder, record); err != nil {
		ending = Ending{
			Outcome: predictor.Lost, Grant: ending.Grant, Cost: ending.Cost,
			Message: "the Record could not be stored: " + err.Error(),
		}
	} else {
		a.journal.recorded(a.entry)
	}
	a.Close()
	after, err := Conclude(a.Task, a.Number, a.State(), ending)
	if err == nil {
		result := wire.Result{Output: output, Venue: record.Venue, Cost: after.Spent}
		if a.Task.Tells {
			result.Checkpoint, result.Metrics, result.NotFinite = after.Checkpoint, after.Metrics, after.NotFinite
			result.Took = record.Start + record.Usage.Wall + record.Settle
		}
		result.Prospect = a.prospect()
		return result, nil
	}
	activity.RecordHeartbeat(context.WithoutCancel(ctx), after) // Temporal's worker sends it before the error
	return wire.Result{}, err
}

// prospect looks ahead from where the attempt has come to; nil where its task does not ask for that.
func (a *Attempt) prospect() *predictor.Prospect {
	if a.Task.Stretch == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.trail.Prospect(*a.Task.Stretch)
}

// GiveBack closes an attempt that its venue does not begin and another may: there is no Record of it, and what the next
// one must know is left for it. The error is what the handler returns. One that ends its task has a Record: see
// [Attempt.End].
func (a *Attempt) GiveBack(ctx context.Context, ending Ending) error {
	a.Close()
	after, err := Conclude(a.Task, a.Number, a.State(), ending)
	activity.RecordHeartbeat(context.WithoutCancel(ctx), after)
	return err
}

// keepTimeout bounds the try to keep a result.
const keepTimeout = 2 * time.Second

// keep begins to keep the result of an attempt that has succeeded; the channel is closed when that is over.
func (a *Attempt) keep(
	ctx context.Context, keeper Keeper, record predictor.Record, ending Ending, output json.RawMessage,
) <-chan struct{} {
	over := make(chan struct{})
	if keeper == nil || ending.Outcome != predictor.Succeeded {
		close(over)
		return over
	}
	kept := wire.Kept{
		Key: wire.NewResultKey(a.Task.Stage, a.Task.Command, a.Task.CacheVersion, a.input), Run: a.Task.Run,
		Stage: a.Task.Stage.Name, Task: a.Task.ID,
		Output: output, Cost: a.State().Spent + ending.Cost, Wall: record.Usage.Wall, At: record.At,
	}
	if a.Task.Tells {
		state := a.State()
		kept.Told = &wire.Told{
			Checkpoint: state.Checkpoint, Metrics: state.Metrics, NotFinite: state.NotFinite, Prospect: a.prospect(),
			Stretch: a.Task.Stretch,
		}
	}
	go func() {
		defer close(over)
		ctx, cancel := context.WithTimeout(ctx, keepTimeout)
		defer cancel()
		if err := keeper.Keep(ctx, kept); err != nil {
			activity.GetLogger(ctx).Debug("a result is not kept", "task", kept.Task, "error", err)
		}
	}()
	return over
}

// persist stores record, trying again until recordGrace after ctx has ended: the loop's stream may be restarting.
func persist(ctx context.Context, recorder activities.Recorder, record predictor.Record) error {
	ctx, cancel := outlive(ctx, recordGrace)
	defer cancel()
	for pause := recordPause; ; pause = min(2*pause, maxRecordPause) {
		try, done := context.WithTimeout(ctx, recordTimeout)
		err := recorder.Record(try, record)
		done()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if !wait.For(ctx, pause) {
			return err
		}
	}
}

// outlive returns a context that ends grace after ctx.
func outlive(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if wait.For(late, grace) {
			cancel()
		}
	})
	return late, func() { stop(); cancel() }
}

// beat sends the state now and then until Close. It goes on when ctx has ended, because the attempt may still need time
// to stop.
func (a *Attempt) beat(ctx context.Context) {
	defer close(a.stopped)
	live := context.WithoutCancel(ctx)
	ticker := time.NewTicker(a.every)
	defer ticker.Stop()
	for {
		select {
		case <-a.stop:
			return
		case <-ticker.C:
			a.accrue(time.Now())
			a.writeDown()
			a.send(live)
		case <-a.urgent:
			a.send(live)
		}
	}
}

// send sends the state: through Temporal's worker, so that what that holds back is not older than what is sent next,
// and past it, since it would hold this back as well and ask for a cancellation only every eight seconds.
func (a *Attempt) send(ctx context.Context) {
	state, checkpoint := a.numbered()
	activity.RecordHeartbeat(ctx, state)
	if beatNow(ctx, state) {
		a.acknowledged(checkpoint)
	}
}

// Risk notes, where it outlives this process, that the attempt will have cost so much if it is lost from now on.
func (a *Attempt) Risk(ctx context.Context, most quantity.Money) {
	a.mu.Lock()
	a.state.Running = most
	a.mu.Unlock()
	if most > 0 {
		a.writeDown()
		beatNow(ctx, a.State())
	}
}

// accrual is what an attempt costs that ends with this process.
type accrual struct {
	cost  func(lasted time.Duration) quantity.Money // nil for another attempt
	began time.Time
	// lasted is how long it goes on at most if this process ends before the next heartbeat.
	lasted time.Duration
}

// Accrue is Risk for an attempt that begins now and ends with this process, if it has not ended before: cost says what
// it costs if it lasts so long. If it is lost, it has lasted until a heartbeat after the last at most.
func (a *Attempt) Accrue(ctx context.Context, cost func(lasted time.Duration) quantity.Money) {
	now := time.Now()
	a.mu.Lock()
	a.accrues = accrual{cost: cost, began: now}
	a.mu.Unlock()
	a.accrue(now)
	a.writeDown()
	beatNow(ctx, a.State())
}

// accrue notes what the attempt has cost if it is lost until the heartbeat after that at now.
func (a *Attempt) accrue(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.accrues.cost == nil {
		return
	}
	a.accrues.lasted = max(now.Sub(a.accrues.began), 0) + a.every
	a.state.Running = a.accrues.cost(a.accrues.lasted)
}

// Began notes that the user's code is about to run: until now the attempt has waited, as for room.
func (a *Attempt) Began(now time.Time) {
	a.keeping.Lock()
	defer a.keeping.Unlock()
	a.kept.Waits, a.kept.Waited = false, max(now.Sub(a.taken), 0)
	a.kept.Lived = max(now.Sub(a.taken), a.kept.Lived)
	a.journal.update(a.entry, a.kept)
}

// Rests takes Risk, Accrue and Began back: what was about to run the attempt has ended before it began, and it waits
// again at no cost.
func (a *Attempt) Rests() {
	a.mu.Lock()
	a.accrues, a.state.Running = accrual{}, 0
	a.mu.Unlock()
	a.keeping.Lock()
	defer a.keeping.Unlock()
	a.kept.Running, a.kept.Lasted, a.kept.Waits, a.kept.Waited = 0, 0, true, 0
	a.journal.update(a.entry, a.kept)
}

// writeDown notes in the journal what the attempt has cost, and for how long it goes on. It looks once nobody else
// writes: what it saw before would undo Rests.
func (a *Attempt) writeDown() {
	a.keeping.Lock()
	defer a.keeping.Unlock()
	a.mu.Lock()
	running, lasted := a.state.Running, a.accrues.lasted
	a.mu.Unlock()
	if a.kept.Running != running {
		a.kept.Running, a.kept.Lasted = running, lasted
	}
	a.kept.Lived = max(time.Since(a.taken), 0)
	a.journal.update(a.entry, a.kept)
}

type beaterKey struct{}

// beater sends heartbeats at once and ends the attempt's context when the answer asks for it.
type beater struct {
	client interface {
		RecordActivityHeartbeat(ctx context.Context, taskToken []byte, details ...any) error
	}
	cancel context.CancelCauseFunc
}

func withBeater(ctx context.Context, c client.Client, cancel context.CancelCauseFunc) context.Context {
	return context.WithValue(ctx, beaterKey{}, beater{client: c, cancel: cancel})
}

// beatNow sends state past the batching of Temporal's worker, which holds details back for up to 80% of the heartbeat
// timeout. A failure is of no consequence: the details go with the next heartbeat as well.
func beatNow(ctx context.Context, state wire.Heartbeat) (acknowledged bool) {
	b, ok := ctx.Value(beaterKey{}).(beater)
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	err := b.client.RecordActivityHeartbeat(ctx, activity.GetInfo(ctx).TaskToken, state)
	if cancelled, yes := errors.AsType[*temporal.CanceledError](err); yes {
		b.cancel(cancelled)
		return false
	}
	if err != nil {
		activity.GetLogger(ctx).Debug("the details go with the next heartbeat", "error", err)
	}
	return err == nil
}

// Stopped tells how an attempt ends whose context has ended, from the context's cause.
func Stopped(ctx context.Context) (predictor.Outcome, string) {
	cause := context.Cause(ctx)
	var cancelled *temporal.CanceledError
	var gone *serviceerror.NotFound
	switch {
	case cause == nil:
		return predictor.Lost, ""
	case errors.Is(cause, ErrInterrupted), errors.Is(cause, ErrFenced):
		return predictor.Lost, cause.Error()
	case errors.Is(cause, context.DeadlineExceeded):
		return predictor.TimedOut, "the attempt ran past the start-to-close timeout of its activity"
	case errors.As(cause, &cancelled), errors.As(cause, &gone), errors.Is(cause, context.Canceled):
		return predictor.Cancelled, wire.StoppedWithRun
	default:
		return predictor.Lost, "temporal gave the attempt up: " + cause.Error()
	}
}
