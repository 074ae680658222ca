package trigger

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
)

// Options configures a Trigger.
type Options struct {
	// JetStream is where events come from. Required.
	JetStream jetstream.JetStream
	// Starter starts the runs. Required.
	Starter Starter
	// Scheduler keeps the schedules of bindings. Without one, bindings with a schedule are refused.
	Scheduler Scheduler
	// Wanted is told the subject of an event that no binding reads, before the event becomes a dead letter. It reports
	// whether the subject is that of a pipeline without a subject of its own which SetTargets knows by now; the event
	// then starts its run. Nil knows no other pipelines.
	Wanted func(ctx context.Context, subject string) bool
	// Check asks the code of a pipeline that Validates whether it takes the input of a run. An error that wraps
	// ErrRefused says that it does not, and why; after any other nothing is known, and it is asked again. Nil takes all
	// inputs.
	Check func(ctx context.Context, start Start) error
	// Permit refuses to start runs of a pipeline for who publishes an event; what comes on the stream is not asked about.
	// Nil permits all.
	Permit func(ctx context.Context, pipeline string) error
	// Lost is told the names of streams that were gone, with all that was in them, once they were made anew. Nil tells
	// nobody.
	Lost func(streams []string)
	// Restored is told the keys of bindings made by command that were gone from where they are kept, and were made again
	// from what their readers know of them. Nil tells nobody.
	Restored func(keys []string)
	// Leads says whether this trigger is the one of several, each of another server on the same streams, that takes events
	// and makes streams, readers and schedules. The others know what is bound, and keep what is bound by command: the one
	// that leads puts it into force. Nil is a trigger that is alone.
	Leads func() bool
	// Taking is told when Run has begun to take events; nil tells nobody.
	Taking func()
	// Logger takes the trigger's log; nil discards it.
	Logger *slog.Logger
	// AckWait is how long an event may be in hand without a sign of life before the server delivers it again; one that a
	// killed process had in hand is taken by the next at once. Default 30 s; at least 1 s.
	AckWait time.Duration
	// Remembered is for how long after their end the Starter knows of runs; 0 is for ever. An event that comes again and
	// is older becomes a dead letter, since it may have started a run that is forgotten.
	Remembered time.Duration
	// Hold is how long events of a pipeline that no app offers any more wait for the app to come back, before they become
	// dead letters. Default 2 min.
	Hold time.Duration
	// Replicas is how many NATS servers keep each stream that the trigger makes. Default 1; 3 in a cluster.
	Replicas int
}

// Trigger turns events into runs. Its methods may be called concurrently.
type Trigger struct {
	js        jetstream.JetStream
	starter   Starter
	scheduler Scheduler
	wanted    func(ctx context.Context, subject string) bool
	check     func(ctx context.Context, start Start) error
	permit    func(ctx context.Context, pipeline string) error
	lost      func(streams []string)
	restored  func(keys []string)
	several   bool        // Options.Leads says which of several takes events
	leads     func() bool // always where it is alone
	taking    func()
	log       *slog.Logger
	ackWait   time.Duration
	hold      time.Duration
	// remembered is for how long runs are known after their end; 0 is for ever
	remembered time.Duration
	replicas   int
	every      time.Duration // between looks at what changed outside
	admission  *admission
	before     uint64 // the newest event that an earlier trigger may have dealt with; set before anything is taken

	// applying is held while what is bound changes, on the server and here; it guards the five fields below.
	applying  sync.Mutex
	targets   []Target
	scheduled map[string]Schedule // what this process has put into force
	unsettled bool                // the schedules in force may not be those that are wanted
	created   time.Time           // when the stream of events was, at the last apply
	known     uint64              // the last change of what is bound by command that was taken in

	// mu guards the fields below.
	mu       sync.Mutex
	running  bool
	table    *table
	ready    bool                 // SetTargets was called
	absent   map[string]time.Time // since when a pipeline that is bound has been in no app
	gates    map[string]*gate
	counters map[string]*counters
	replayed uint64
	replays  map[string]replay // what becomes of dead letters that were just published again, by message ID

	changed         chan struct{} // told when the table changed
	consumerMissing atomic.Bool   // a feed has missed its consumer
}

// New returns a trigger that does nothing until SetTargets and Run are called.
func New(options Options) (*Trigger, error) {
	switch {
	case options.JetStream == nil || options.Starter == nil:
		return nil, errors.New("make trigger: JetStream and Starter are required")
	case options.AckWait != 0 && options.AckWait < time.Second:
		return nil, fmt.Errorf("make trigger: AckWait %s is too short: give at least 1s", options.AckWait)
	case options.Hold < 0 || options.Replicas < 0:
		return nil, fmt.Errorf("make trigger: Hold %s and Replicas %d must not be negative", options.Hold, options.Replicas)
	}
	log := options.Logger
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	wanted := options.Wanted
	if wanted == nil {
		wanted = func(context.Context, string) bool { return false }
	}
	check := options.Check
	if check == nil {
		check = func(context.Context, Start) error { return nil }
	}
	permit := options.Permit
	if permit == nil {
		permit = func(context.Context, string) error { return nil }
	}
	lost := options.Lost
	if lost == nil {
		lost = func([]string) {}
	}
	restored := options.Restored
	if restored == nil {
		restored = func([]string) {}
	}
	leads := options.Leads
	if leads == nil {
		leads = func() bool { return true }
	}
	taking := options.Taking
	if taking == nil {
		taking = func() {}
	}
	return &Trigger{
		several: options.Leads != nil, leads: leads, taking: taking,
		js: options.JetStream, starter: options.Starter, scheduler: options.Scheduler, wanted: wanted, check: check,
		permit: permit, lost: lost, restored: restored, log: log,
		ackWait: cmp.Or(options.AckWait, 30*time.Second),
		hold:    cmp.Or(options.Hold, 2*time.Minute), remembered: options.Remembered,
		replicas: cmp.Or(options.Replicas, 1),
		every:    2 * time.Second, admission: newAdmission(),
		table: &table{}, scheduled: map[string]Schedule{}, absent: map[string]time.Time{},
		gates: map[string]*gate{}, counters: map[string]*counters{}, replays: map[string]replay{},
		changed: make(chan struct{}, 1),
	}, nil
}

// SetTargets says which pipelines there are now: all of them, each of the newest build of its app. When it returns nil,
// events for them are taken, those that are taken from now on start runs of these builds, and bindings that a pipeline
// no longer declares are gone. It may be called before Run. When it fails, nothing has changed: a target is wrong or a
// subject is taken by another stream, which wraps ErrRefused, or NATS is away.
func (t *Trigger) SetTargets(ctx context.Context, targets []Target) error {
	t.applying.Lock()
	defer t.applying.Unlock()
	if _, err := newTable(targets, nil); err != nil {
		return Refuse("set targets: %w", err)
	}
	t.mu.Lock()
	before, wasReady := t.targets, t.ready
	t.ready = true
	t.mu.Unlock()
	t.targets = slices.Clone(targets)
	if err := t.apply(ctx); err != nil {
		t.targets = before
		t.mu.Lock()
		t.ready = wasReady
		t.mu.Unlock()
		return fmt.Errorf("set targets: %w", err)
	}
	return t.syncSchedules(ctx)
}

// Bind makes a binding by command, or changes the cap and the goal of the one with the same Key. It is kept across
// restarts. When it returns nil, events that are published from now on are taken. An unknown pipeline and whatever else
// is wrong is refused with ErrRefused, and then nothing is changed; only when Temporal is away while the schedule is
// made does it fail after the binding is kept, and the schedule then follows.
func (t *Trigger) Bind(ctx context.Context, binding wire.Binding) (Bound, error) {
	bound, err := asked(binding, Command)
	if err != nil {
		return Bound{}, Refuse("%w", err)
	}
	if err := t.checkValidates(ctx, t.snapshot(), bound); err != nil { // its worker may wait for another change
		return Bound{}, Refuse("bind: %w", err)
	}
	t.applying.Lock()
	defer t.applying.Unlock()
	now := t.snapshot()
	if _, known := now.pipelines[binding.Pipeline]; !known {
		return Bound{}, Refuse("bind %q: pipeline %q is unknown; %s", binding.Subject, binding.Pipeline,
			suggestion(binding.Pipeline, now.pipelineNames()))
	}
	if bound.Binding.Schedule != "" && t.scheduler == nil {
		return Bound{}, Refuse("bind pipeline %s to schedule %q: schedules are not available here", binding.Pipeline,
			binding.Schedule)
	}
	if err := now.checkScheduled(bound); err != nil {
		return Bound{}, Refuse("bind: %w", err)
	}
	if t.leads() {
		if err := t.ensureSubjects(ctx, now, bound.subjects()); err != nil {
			return Bound{}, fmt.Errorf("bind %q to pipeline %s: %w", binding.Subject, binding.Pipeline, err)
		}
	}
	if err := t.keep(ctx, bound); err != nil {
		return Bound{}, err
	}
	if err := t.awaitReader(ctx, bound.Key); err != nil {
		return Bound{}, fmt.Errorf("bind %q to pipeline %s: %w", binding.Subject, binding.Pipeline, err)
	}
	if err := t.apply(ctx); err != nil {
		return Bound{}, fmt.Errorf("bind %q to pipeline %s: %w", binding.Subject, binding.Pipeline, err)
	}
	return bound, t.syncSchedules(ctx)
}

// checkValidates refuses a schedule whose input the pipeline's own code refuses. Where nobody answers now, it is taken,
// and its events are checked when they come.
func (t *Trigger) checkValidates(ctx context.Context, now *table, bound Bound) error {
	if bound.Binding.Schedule == "" {
		return nil
	}
	start := now.decideScheduled(bound).start
	if !start.Validates {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, doorCheckLimit)
	defer cancel()
	err := t.check(ctx, start)
	if errors.Is(err, ErrRefused) {
		return startsNothing(bound, err.Error())
	}
	if err != nil {
		t.log.WarnContext(ctx, "the input of a schedule is not checked by the pipeline's code", "binding", bound.Key,
			"error", err)
	}
	return nil
}

// Errors of Unbind.
var (
	// ErrNoBinding says that there is none with the key.
	ErrNoBinding = errors.New("there is no binding")
	// ErrDeclared says that the binding was not made by command.
	ErrDeclared = errors.New("the binding was not made by command")
)

// Unbind removes the binding with this key that was made by command. Events that it has read but not started become
// dead letters. An error may wrap ErrNoBinding or ErrDeclared.
func (t *Trigger) Unbind(ctx context.Context, key string) error {
	t.applying.Lock()
	defer t.applying.Unlock()
	bound, found := t.snapshot().bounds[key]
	switch {
	case !found:
		return fmt.Errorf("%w %q", ErrNoBinding, key)
	case bound.Origin != Command:
		return fmt.Errorf("unbind %q: %w: it is %s in the app of pipeline %s", key, ErrDeclared, bound.Origin,
			bound.Binding.Pipeline)
	}
	bucket, err := t.bucket(ctx)
	if err != nil {
		return fmt.Errorf("unbind %q: %w", key, err)
	}
	if err := bucket.Delete(ctx, key); err != nil {
		return fmt.Errorf("unbind %q: %w", key, err)
	}
	if err := t.apply(ctx); err != nil {
		return fmt.Errorf("unbind %q: %w", key, err)
	}
	return t.syncSchedules(ctx)
}

// Bindings returns the bindings in force, sorted by pipeline and key.
func (t *Trigger) Bindings() []Bound {
	var bounds []Bound
	for _, bound := range t.snapshot().bounds {
		bounds = append(bounds, bound)
	}
	slices.SortFunc(bounds, func(a, b Bound) int {
		return cmp.Or(strings.Compare(a.Binding.Pipeline, b.Binding.Pipeline), strings.Compare(a.Key, b.Key))
	})
	return bounds
}

// Run takes events until ctx ends; it then waits for the events in hand and returns nil. It fails when NATS is away at
// the start, and when it is already running.
func (t *Trigger) Run(ctx context.Context) error {
	t.mu.Lock()
	already := t.running
	t.running = true
	t.mu.Unlock()
	if already {
		return errors.New("run trigger: it is already running")
	}
	defer func() {
		t.mu.Lock()
		t.running = false
		t.mu.Unlock()
	}()
	err := t.begin(ctx)
	if err == nil {
		err = t.takeBack(ctx)
	}
	if err != nil && ctx.Err() != nil {
		return nil // told to stop while starting
	}
	if err != nil {
		return fmt.Errorf("run trigger: %w", err)
	}
	stopWatching, err := t.watchDone()
	if err != nil {
		return fmt.Errorf("run trigger: %w", err)
	}
	defer stopWatching()
	t.taking()

	feeds := map[string]*feed{}
	defer func() {
		for _, w := range feeds {
			w.cancel()
		}
		for _, w := range feeds {
			<-w.done
		}
	}()
	tick := time.NewTicker(t.every)
	defer tick.Stop()
	for {
		t.reconcileFeeds(ctx, feeds)
		select {
		case <-ctx.Done():
			return nil
		case <-t.changed:
		case <-tick.C:
			t.recreateMissing(ctx)
			t.retry(ctx)
		}
	}
}

// recreateMissing makes streams and consumers anew that somebody has deleted; what waited in them is lost.
func (t *Trigger) recreateMissing(ctx context.Context) {
	gone, err := t.gone(ctx)
	if err != nil {
		return
	}
	t.applying.Lock()
	defer t.applying.Unlock()
	// Whoever publishes makes the stream as well, without its readers.
	events, err := t.js.Stream(ctx, wire.EventStream)
	another := err == nil && t.madeAnew(events.CachedInfo())
	if missing := t.consumerMissing.Swap(false); len(gone) == 0 && !another && !missing {
		return
	}
	err = t.apply(ctx)
	if ctx.Err() != nil {
		return
	}
	t.log.ErrorContext(ctx, "streams or readers of events were gone, with the events that waited; they are made anew",
		"streams", gone, "error", err)
	if another && !slices.Contains(gone, wire.EventStream) {
		gone = append(gone, wire.EventStream)
	}
	if err == nil && len(gone) > 0 {
		t.lost(gone)
	}
}

// gone names the streams that the trigger needs and that there are not.
func (t *Trigger) gone(ctx context.Context) ([]string, error) {
	there := t.js.StreamNames(ctx)
	gone := []string{wire.EventStream, wire.DeadStream, wire.DoneStream}
	for name := range there.Name() {
		gone = slices.DeleteFunc(gone, func(wanted string) bool { return wanted == name })
	}
	return gone, there.Err()
}

// retry does again what could not be done.
func (t *Trigger) retry(ctx context.Context) {
	t.applying.Lock()
	defer t.applying.Unlock()
	if !t.unsettled {
		return
	}
	if err := t.syncSchedules(ctx); err != nil && ctx.Err() == nil {
		t.log.WarnContext(ctx, "schedules are not in force yet", "error", err)
	}
}

// watchDone learns from completion events which runs are over.
func (t *Trigger) watchDone() (stop func(), err error) {
	subscription, err := t.js.Conn().Subscribe(wire.DoneSubjects, func(message *nats.Msg) { t.ended(message.Data) })
	if err != nil {
		return nil, fmt.Errorf("watch completions: %w", err)
	}
	return func() {
		if err := subscription.Unsubscribe(); err != nil {
			t.log.Debug("completions are still watched", "error", err)
		}
	}, nil
}

// ended counts a run no longer, whichever binding started it.
func (t *Trigger) ended(data []byte) {
	var done wire.Done
	if err := json.Unmarshal(data, &done); err != nil || done.Run == "" {
		t.log.Warn("a completion event cannot be read", "error", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, gate := range t.gates {
		gate.end(done.Run)
	}
}

// snapshot is what is bound now.
func (t *Trigger) snapshot() *table {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table
}

// isHeld reports whether events of a binding wait because its pipeline is in no app, and may come back.
func (t *Trigger) isHeld(pipeline string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ready {
		return true
	}
	since, absent := t.absent[pipeline]
	return absent && time.Since(since) < t.hold
}
