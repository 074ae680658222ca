package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/telemetry"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/words"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// observer follows the loop's stream and keeps what people ask for: the ledger, the metrics and the feed of the page.
type observer struct {
	metrics *telemetry.Metrics
	counts  bool // metrics are wanted
	feed    web.Feed
	logger  *slog.Logger

	// before is what happened before this process began: it is taken in, and nobody is told of it again.
	before   extent
	began    time.Time     // when it began to take in messages
	caughtUp chan struct{} // closed once all that happened before was taken in
	planned  chan struct{} // closed once this server leads and takes events, or another is seen to lead

	mu     sync.Mutex
	led    bool            // guarded by mu: planned is closed
	ledger *ledger.Ledger  // guarded by mu
	state  predictor.State // guarded by mu: forecasts come from the same fold that decides
	plan   predictor.Plan  // guarded by mu; state obeys it from when all that happened before was taken in
	at     position        // guarded by mu: how far it is
}

// extent is a part of the loop's stream, by its first and last sequence; both are 0 when it is empty.
type extent struct{ first, last uint64 }

// progress is how many messages of the extent have been taken in once sequence seen was, and how many there are.
func (x extent) progress(seen uint64) (done, all uint64) {
	if x.last == 0 {
		return 0, 0
	}
	done = min(max(seen+1, x.first), x.last+1) - x.first
	return done, x.last + 1 - x.first
}

// newObserver returns an observer that tells of nothing that is in the extent before.
func newObserver(metrics *telemetry.Metrics, counts bool, before extent, logger *slog.Logger) *observer {
	o := &observer{
		metrics: metrics, counts: counts, logger: logger, ledger: ledger.New(), before: before, began: time.Now(),
		caughtUp: make(chan struct{}), planned: make(chan struct{}),
	}
	if before.last == 0 {
		close(o.caughtUp)
	}
	return o
}

// apply takes in one message, as loop.Follow hands it on.
func (o *observer) apply(line loop.Line) error {
	message, sequence := line.Message, line.Sequence
	run := runOf(message.Event)
	o.mu.Lock()
	defer o.mu.Unlock()
	news, sample := sequence > o.before.last, line.Sample > 0
	if sample { // it has the sequence of the message before it
		news = o.current()
	} else {
		o.reach(max(sequence, 1) - 1) // where the last message of before has been deleted meanwhile
	}
	if o.counts && news {
		o.metrics.Apply(message)
	} else if o.counts {
		o.metrics.Replay(message)
	}
	if !news {
		o.state = predictor.Pass(o.state, line.Stored) // later pass does
	}
	if message.Event != nil {
		o.ledger.Apply(message.Event)
		o.state = predictor.Fold(o.state, message.Event)
		o.forecast(message.Event)
	}
	if message.Decision != nil {
		o.ledger.Decided(*message.Decision)
	}
	if sample {
		o.at.Sample = max(o.at.Sample, line.Sample)
	} else if sequence > o.at.Sequence {
		o.at.Stored = line.Stored
		o.reach(sequence)
	}
	if !news {
		return nil
	}
	// The feed is told while nobody can look: what a stream that opens now is shown, it is not told again.
	if run != "" {
		o.feed.RunChanged(run)
	}
	if message.Decision != nil {
		o.feed.Decided(*message.Decision)
	}
	return nil
}

// pass says what time it is, and looks at what trainings have told since, once all that happened before was taken in.
func (o *observer) pass(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.current() {
		o.state = predictor.Learn(predictor.Pass(o.state, now), now)
	}
}

// learning is how the trainings of a run go, and are expected to go on.
func (o *observer) learning(run string) []predictor.Learning {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state.LearningAhead(run)
}

// reach says that all messages up to sequence were taken in. The caller holds mu.
func (o *observer) reach(sequence uint64) {
	was := o.at.Sequence
	o.at.Sequence = max(o.at.Sequence, sequence)
	if was < o.before.last && o.at.Sequence >= o.before.last {
		o.state = predictor.Obey(o.state, o.plan)
		_, all := o.before.progress(o.at.Sequence)
		o.logger.Info("caught up with what happened before", "messages", all, "took", time.Since(o.began))
		close(o.caughtUp)
	}
}

// reached is the last sequence that was taken in, or is to be because it was there before.
func (o *observer) reached() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return max(o.at.Sequence, o.before.last)
}

// current reports whether all that happened before was taken in. The caller holds mu.
func (o *observer) current() bool { return o.at.Sequence >= o.before.last }

// whole waits until all that happened before was taken in; it says how far it is when ctx ends first.
func (o *observer) whole(ctx context.Context) error {
	select {
	case <-o.caughtUp:
		return nil
	default:
	}
	select {
	case <-o.caughtUp:
		return nil
	case <-ctx.Done():
		return o.starting()
	}
}

// starting says what is waited for before the engine is ready; nil once nothing is.
func (o *observer) starting() error {
	select {
	case <-o.caughtUp:
	default:
		o.mu.Lock()
		done, all := o.before.progress(o.at.Sequence)
		o.mu.Unlock()
		return web.Starting("catching up with what happened before: %s of %s messages", words.Grouped(done),
			words.Grouped(all))
	}
	select {
	case <-o.planned:
		return nil
	default:
		return web.Starting("waiting for the first plan of the leader")
	}
}

// forecast asks what is expected of a run, as long as nothing is and it has taken a step that tells more; from then on
// readings does. The caller holds mu.
func (o *observer) forecast(event predictor.Event) {
	switch event.(type) {
	case predictor.RunStarted, predictor.Scheduled:
	default:
		return
	}
	run := runOf(event)
	if o.ledger.Expected(run) {
		return
	}
	if forecast, known := o.state.Forecast(run, event.When()); known {
		o.ledger.Forecast(run, event.When(), forecast)
	}
}

// reconciled takes in the end of a run. Where the stream told it before, and a late word has opened the run again
// since, it tells it no more; where it tells it yet, that is nothing new. The state is left as it is: it knows so late
// a run by its name only, and what it is told twice it would take for two runs.
func (o *observer) reconciled(over runs.Ended) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ledger.Apply(over.Started)
	o.ledger.Apply(over.Ended)
	o.feed.RunChanged(over.Ended.Run)
}

// silent lists the runs that seem to go on and of which nothing was heard since, the oldest first.
func (o *observer) silent(since time.Time) []ledger.RunView {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ledger.Silent(since)
}

// obey takes a new plan.
func (o *observer) obey(_ context.Context, plan predictor.Plan) {
	if o.counts {
		o.metrics.ApplyPlan(plan)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.plan = plan
	o.ledger.SetPlan(plan)
	if o.current() { // the plan of now says nothing about the past that is folded before
		o.state = predictor.Obey(o.state, plan)
		o.feed.Planned(plan)
	}
}

// leading is told when this server begins and ends to lead.
func (o *observer) leading(leads bool) {
	o.metrics.SetLeader(leads)
}

// taking is told that this server, which leads, has begun to take events.
func (o *observer) taking() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.plans()
}

// following is told that another server leads.
func (o *observer) following() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.plans()
}

// plans says that somebody leads. The caller holds mu.
func (o *observer) plans() {
	if !o.led {
		o.led = true
		close(o.planned)
	}
}

// runOf is the run that an event is about; empty when it is about none.
func runOf(event predictor.Event) string {
	switch e := event.(type) {
	case predictor.RunStarted:
		return e.Run
	case predictor.RunEnded:
		return e.Run
	case predictor.GoalChanged:
		return e.Run
	case predictor.Scheduled:
		return e.Run
	case predictor.AttemptStarted:
		return e.Run
	case predictor.Sampled:
		return e.Run
	case predictor.Record:
		return e.Run
	case predictor.Reused:
		return e.Run
	default:
		return ""
	}
}
