package autoscaler

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

const (
	// journalLimit bounds the decisions that wait to be stored; beyond it the oldest are lost.
	journalLimit = 10_000
	// journalRetry is the wait before a decision that was not acknowledged is published again, under the same ID.
	journalRetry = 200 * time.Millisecond
	// drainTimeout is how long the journal goes on after its term, to store what is left.
	drainTimeout = 500 * time.Millisecond
)

// journal stores decisions in the loop's stream, beside the leader, so that a slow disk does not slow decisions.
// Its methods are safe for concurrent use.
type journal struct {
	js     jetstream.JetStream
	logger *slog.Logger
	wake   chan struct{}

	mu      sync.Mutex
	waiting []predictor.Decision
}

func newJournal(js jetstream.JetStream, logger *slog.Logger) *journal {
	return &journal{js: js, logger: logger, wake: make(chan struct{}, 1)}
}

// add queues decisions; it never waits.
func (j *journal) add(decisions []predictor.Decision) {
	if len(decisions) == 0 {
		return
	}
	j.mu.Lock()
	j.waiting = append(j.waiting, decisions...)
	lost := max(len(j.waiting)-journalLimit, 0)
	j.waiting = j.waiting[lost:]
	j.mu.Unlock()
	if lost > 0 {
		j.logger.Warn("decisions are lost to the journal", "decisions", lost)
	}
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// tell publishes an event whose loss does no harm.
func (j *journal) tell(event predictor.Event) {
	kind, data, err := wire.EncodeEvent(event)
	if err == nil {
		err = j.js.Conn().Publish(wire.LoopSubject(kind), data)
	}
	if err != nil {
		j.logger.Debug("event is lost", "kind", kind, "error", err)
	}
}

// run stores decisions in order until ctx ends, and then for a moment those that are left.
func (j *journal) run(ctx context.Context) {
	for ctx.Err() == nil {
		j.store(ctx)
		select {
		case <-j.wake:
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	j.store(last)
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.waiting) > 0 {
		j.logger.WarnContext(last, "decisions are lost to the journal", "decisions", len(j.waiting))
	}
}

// store publishes what waits until nothing does or ctx ends.
func (j *journal) store(ctx context.Context) {
	for ctx.Err() == nil {
		j.mu.Lock()
		if len(j.waiting) == 0 {
			j.mu.Unlock()
			return
		}
		next := j.waiting[0]
		j.waiting = j.waiting[1:]
		j.mu.Unlock()
		err := j.storeOne(ctx, next)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			j.mu.Lock()
			j.waiting = append([]predictor.Decision{next}, j.waiting...)
			j.mu.Unlock()
		default:
			j.logger.WarnContext(ctx, "decision is lost to the journal", "id", next.ID, "error", err)
		}
	}
}

// storeOne publishes until the server acknowledges or ctx ends. Publishing again after a lost answer is harmless: the
// ID makes it the same line.
func (j *journal) storeOne(ctx context.Context, decision predictor.Decision) error {
	kind, data, err := wire.EncodeDecision(decision)
	if err != nil {
		return err
	}
	for {
		_, err := j.js.Publish(ctx, wire.LoopSubject(kind), data, jetstream.WithMsgID(decision.ID),
			jetstream.WithExpectStream(wire.LoopStream))
		if err == nil || ctx.Err() != nil {
			return err
		}
		if !wait.For(ctx, journalRetry) {
			return err
		}
	}
}
