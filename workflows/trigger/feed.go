package trigger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// startTimeout bounds one call of the Starter, from its admission on. The Temporal client repeats a request within it
	// after ten seconds.
	startTimeout = 30 * time.Second
	// ackLimit bounds an acknowledgement, also after the trigger was told to stop.
	ackLimit = 5 * time.Second
	// firstDelay and lastDelay are the bounds of the back-off of redelivery.
	firstDelay = 100 * time.Millisecond
	lastDelay  = 30 * time.Second
	// unboundKey stands for the feed that reads every event and makes dead letters of those that no binding reads.
	unboundKey = ""
)

// feed reads the events of one binding.
type feed struct {
	key      string
	bound    Bound // as it was when the feed was started; only what identifies the binding is used
	consumer string
	gate     *gate
	cancel   context.CancelFunc
	done     chan struct{} // closed when no event is in hand and no goroutine is left
}

// reconcileFeeds starts and stops feeds until there is one for each binding, and one for events without a binding.
func (t *Trigger) reconcileFeeds(ctx context.Context, feeds map[string]*feed) {
	now := t.snapshot()
	for key, w := range feeds {
		bound, wanted := now.bounds[key]
		if key == unboundKey || wanted && bound.Binding.MaxRuns == w.bound.Binding.MaxRuns &&
			(bound.Origin == Removed) == (w.bound.Origin == Removed) {
			continue
		}
		w.cancel()
		<-w.done
		delete(feeds, key)
	}
	if feeds[unboundKey] == nil {
		feeds[unboundKey] = t.startFeed(ctx, Bound{Key: unboundKey}, unboundConsumer)
	}
	for key, bound := range now.bounds {
		if feeds[key] == nil {
			feeds[key] = t.startFeed(ctx, bound, consumerPrefix+key)
		}
	}
}

// startFeed starts a feed. A gate that it replaces hands over the runs that it counts.
func (t *Trigger) startFeed(ctx context.Context, bound Bound, consumer string) *feed {
	maxRuns := bound.Binding.MaxRuns
	if bound.Origin == Removed {
		maxRuns = 0 // it starts nothing
	}
	w := &feed{key: bound.Key, bound: bound, consumer: consumer, gate: newGate(maxRuns), done: make(chan struct{})}
	t.mu.Lock()
	if old := t.gates[w.key]; old != nil && maxRuns > 0 {
		for _, run := range old.handedOver() {
			w.gate.runs[run] = true
		}
	}
	t.gates[w.key] = w.gate
	t.mu.Unlock()
	own, cancel := context.WithCancel(ctx)
	w.cancel = cancel
	go func() {
		defer close(w.done)
		defer cancel()
		t.read(own, w)
	}()
	return w
}

// read takes events until ctx ends.
func (t *Trigger) read(ctx context.Context, w *feed) {
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	if w.gate.max > 0 {
		if !t.countRunning(ctx, w) {
			return
		}
		inFlight.Go(func() { t.reconcileRuns(ctx, w.gate) })
	}
	for trouble := 0; ctx.Err() == nil; {
		err := t.fetch(ctx, w, &inFlight)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			trouble = 0
		default:
			trouble++
			t.log.WarnContext(ctx, "events cannot be read", "binding", w.key, "error", err)
			wait.For(ctx, backoff(trouble))
		}
	}
}

// countRunning counts the runs of a capped binding that go on from an earlier life of this process. It reports false
// when ctx has ended.
func (t *Trigger) countRunning(ctx context.Context, w *feed) bool {
	for attempt := 1; ; attempt++ {
		runs, err := t.starter.Running(ctx, w.bound.Binding.Pipeline, w.key)
		if err == nil {
			for _, run := range runs {
				w.gate.begin(run)
				w.gate.handOver(run)
			}
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		t.log.WarnContext(ctx, "runs that go on cannot be counted", "binding", w.key, "error", err)
		wait.For(ctx, backoff(attempt))
	}
}

// reconcileRuns asks the Starter about the runs that are counted: a completion event may be lost.
func (t *Trigger) reconcileRuns(ctx context.Context, gate *gate) {
	for wait.For(ctx, t.every) {
		for _, run := range gate.handedOver() {
			_, going, err := t.starter.Find(ctx, run)
			if err != nil {
				t.log.DebugContext(ctx, "a run cannot be looked up", "run", run, "error", err)
				break
			}
			if !going {
				gate.end(run)
			}
		}
	}
}

// fetch waits for room, takes as many events as there is room for, and handles each in a goroutine of its own.
func (t *Trigger) fetch(ctx context.Context, w *feed, inFlight *sync.WaitGroup) error {
	if t.isHeld(w.bound.Binding.Pipeline) {
		wait.For(ctx, min(t.every, 200*time.Millisecond))
		return nil
	}
	consumer, err := t.js.Consumer(ctx, wire.EventStream, w.consumer)
	if err != nil {
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.consumerMissing.Store(true)
		}
		return fmt.Errorf("find consumer %s: %w", w.consumer, err)
	}
	fetch, cancel := context.WithCancel(ctx)
	defer cancel()
	removed := w.bound.Origin == Removed
	if removed {
		if err := t.fixLastSequence(ctx, w.key); err != nil {
			return err
		}
		fetch, cancel = context.WithTimeout(ctx, t.every)
		defer cancel()
	}
	room, err := w.gate.wait(ctx)
	if err != nil {
		return err
	}
	batch, err := consumer.Fetch(room, jetstream.FetchContext(fetch))
	if err != nil {
		return fmt.Errorf("fetch from consumer %s: %w", w.consumer, err)
	}
	taken := 0
	for message := range batch.Messages() {
		taken++
		w.gate.take()
		inFlight.Go(func() {
			defer w.gate.release()
			t.handle(ctx, w, message)
		})
	}
	if err := batch.Error(); err != nil && fetch.Err() == nil {
		return fmt.Errorf("fetch from consumer %s: %w", w.consumer, err)
	}
	if removed && taken == 0 && ctx.Err() == nil {
		return t.deleteIfDrained(ctx, w.key, consumer)
	}
	return nil
}

// deleteIfDrained ends a removed binding when it has nothing left. It is called after a fetch that found nothing: the
// server's count of what is pending trails the stream and would not do alone.
func (t *Trigger) deleteIfDrained(ctx context.Context, key string, consumer jetstream.Consumer) error {
	info, err := consumer.Info(ctx)
	if err != nil {
		return fmt.Errorf("look at consumer %s: %w", consumerPrefix+key, err)
	}
	if info.NumPending > 0 || info.NumAckPending > 0 {
		return nil
	}
	if err := t.deleteConsumer(ctx, key); err != nil {
		return err
	}
	wait.For(ctx, t.every) // until the feed is told to stop
	return nil
}

// handle does with one event what its binding says, and acknowledges it when that is done.
func (t *Trigger) handle(ctx context.Context, w *feed, message jetstream.Msg) {
	stop := t.keepAlive(message)
	defer stop()
	metadata, err := message.Metadata()
	if err != nil {
		t.log.ErrorContext(ctx, "an event has no metadata", "subject", message.Subject(), "error", err)
		return // it is redelivered
	}
	e := newEvent(metadata.Stream, metadata.Sequence.Stream, message.Subject(), message.Headers(), message.Data())
	e.at = metadata.Timestamp
	e.stale = isStale(metadata.NumDelivered, time.Since(e.at), t.remembered)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case w.key == unboundKey:
		err = t.handleUnbound(ctx, w, e)
	default:
		err = t.handleBound(ctx, w, e)
	}
	if err == nil {
		acking, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackLimit)
		defer cancel()
		if err := message.DoubleAck(acking); err != nil {
			t.log.WarnContext(ctx, "an event is not acknowledged and comes again", "event", e.id, "sequence", e.sequence,
				"error", err)
		}
		return
	}
	delay := backoff(int(min(metadata.NumDelivered, 20)))
	if ctx.Err() != nil {
		delay = 0
	} else {
		t.log.WarnContext(ctx, "an event waits", "event", e.id, "sequence", e.sequence, "binding", w.key, "delay", delay,
			"error", err)
	}
	if err := message.NakWithDelay(delay); err != nil {
		t.log.DebugContext(ctx, "an event is not given back and comes again later", "event", e.id, "error", err)
	}
}

// isStale reports whether an event that is delivered for the so many'th time may have started a run that nobody knows
// of any more: runs are remembered for so long after their end, 0 for ever.
func isStale(deliveries uint64, age, remembered time.Duration) bool {
	return remembered > 0 && deliveries > 1 && age > remembered
}

// handleBound carries out the decision about an event that a binding has read. An error means: later again.
func (t *Trigger) handleBound(ctx context.Context, w *feed, e event) error {
	now := t.snapshot()
	bound, found := now.bounds[w.key]
	if !found {
		return fmt.Errorf("binding %s is gone", w.key)
	}
	decision := now.decide(bound, e)
	counts := t.count(w.key)
	switch decision.disposition {
	case skip:
		counts.skipped.Add(1)
		return nil
	case deadLetter:
		exists, err := t.wasStarted(ctx, bound.Binding.Pipeline, e)
		if err != nil {
			return err
		}
		if exists {
			counts.duplicate.Add(1)
			return nil
		}
		return t.deadLetter(ctx, w.key, bound.Binding.Pipeline, e, decision.reason)
	case startRun:
	}
	run := decision.start.Run
	if e.stale {
		switch exists, _, err := t.starter.Find(ctx, run); {
		case err != nil:
			return err
		case !exists:
			return t.deadLetter(ctx, w.key, bound.Binding.Pipeline, e, fmt.Sprintf("the event comes again %s after it was "+
				"published, and may have started run %s before: runs are known for %s after their end; look whether its work was "+
				"done, and replay it if it was not", time.Since(e.at).Round(time.Second), run, t.remembered))
		}
	}
	w.gate.begin(run)
	started, err := t.start(ctx, w.key, decision.start)
	w.gate.handOver(run)
	switch {
	case errors.Is(err, ErrRefused):
		w.gate.end(run)
		return t.deadLetter(ctx, w.key, bound.Binding.Pipeline, e, err.Error())
	case err != nil:
		return err
	case started:
		counts.started.Add(1)
		t.log.InfoContext(ctx, "run started", "run", run, "event", e.id, "binding", w.key, "build", decision.start.Build)
		t.became(e, bound.Binding.Pipeline, Outcome{Run: run})
		return nil
	}
	if w.gate.max > 0 {
		if _, going, err := t.starter.Find(ctx, run); err == nil && !going {
			w.gate.end(run)
		}
	}
	switch err := t.starter.Conflict(ctx, decision.start); {
	case errors.Is(err, ErrRefused):
		return t.deadLetter(ctx, w.key, bound.Binding.Pipeline, e, err.Error())
	case err != nil:
		return err
	}
	counts.duplicate.Add(1)
	t.became(e, bound.Binding.Pipeline, Outcome{Run: run})
	return nil
}

// wasStarted reports whether an event that would be dead now has started its run before: it comes again after a crash,
// when what the table holds may be another.
func (t *Trigger) wasStarted(ctx context.Context, pipeline string, e event) (bool, error) {
	named := checkID(e.id) == nil
	if e.sequence > t.before || !named {
		return false, nil
	}
	exists, _, err := t.starter.Find(ctx, RunID(pipeline, e.id))
	return exists, err
}

// start starts a run whose input its pipeline takes, when it is the binding's turn.
func (t *Trigger) start(ctx context.Context, key string, run Start) (bool, error) {
	if run.Validates {
		checking, cancel := context.WithTimeout(ctx, startTimeout)
		err := t.check(checking, run)
		cancel()
		if errors.Is(err, ErrRefused) {
			// The event may have started its run before a crash, when an earlier build took the input.
			if exists, _, unknown := t.starter.Find(ctx, run.Run); exists || unknown != nil {
				return false, unknown
			}
		}
		if err != nil {
			return false, err
		}
	}
	admitted, err := t.admission.enter(ctx, key)
	if err != nil {
		return false, err
	}
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	started, err := t.starter.Start(limited, run)
	admitted.leave(err != nil && !errors.Is(err, ErrRefused))
	return started, err
}

// handleUnbound makes a dead letter of an event that no binding reads, unless its pipeline is served now that it is
// wanted: the binding reads what came after the event, so the event itself is dealt with here. While bindings change it
// waits, so that no event has a dead letter and a run.
func (t *Trigger) handleUnbound(ctx context.Context, w *feed, e event) error {
	if t.snapshot().isBound(e) {
		return nil
	}
	t.applying.Lock()
	now := t.snapshot()
	t.applying.Unlock()
	if now.isBound(e) {
		return nil
	}
	if t.wanted(ctx, e.subject) {
		now = t.snapshot()
		if bound, found := now.implicit(e.subject); found {
			return t.handleBound(ctx, &feed{key: bound.Key, bound: bound, gate: w.gate}, e)
		}
	}
	return t.deadLetter(ctx, unboundKey, "", e, now.unbound(e.subject))
}

func (t *Trigger) deadLetter(ctx context.Context, key, pipeline string, e event, reason string) error {
	if err := t.publishDead(ctx, key, pipeline, e, reason); err != nil {
		return err
	}
	t.count(key).dead.Add(1)
	t.became(e, pipeline, Outcome{Refused: reason})
	t.log.WarnContext(ctx, "event is dead", "event", e.id, "subject", e.subject, "sequence", e.sequence, "reason", reason)
	return nil
}

// keepAlive tells the server that an event is being worked on, until stop is called.
func (t *Trigger) keepAlive(message jetstream.Msg) (stop func()) {
	done := make(chan struct{})
	var loop sync.WaitGroup
	loop.Go(func() {
		tick := time.NewTicker(t.ackWait / 3)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if err := message.InProgress(); err != nil {
					return // it is acknowledged, or NATS is away and the event comes again
				}
			}
		}
	})
	return func() {
		close(done)
		loop.Wait()
	}
}

// backoff is the delay before attempt number n+1, from 100 ms, doubling, at most 30 s.
func backoff(n int) time.Duration {
	return min(firstDelay<<min(max(n-1, 0), 20), lastDelay)
}
