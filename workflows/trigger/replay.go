package trigger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
)

// Outcome is what became of a dead letter that was published again. Where neither Run nor Refused says anything, it
// waits still, or the filters of the bindings that read it do not want it.
type Outcome struct {
	// Sequence named the dead letter.
	Sequence uint64
	// Run is the run that the event has started, by now or before.
	Run string
	// Refused is why the event is a dead letter again.
	Refused string
}

// became tells whoever has published a dead letter again what became of it. What other pipelines that read its subject
// make of it is not asked.
func (t *Trigger) became(e event, pipeline string, outcome Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting, found := t.replays[e.header.Get(wire.MessageIDHeader)]
	if found && (waiting.pipeline == pipeline || waiting.pipeline == "") {
		select {
		case waiting.outcome <- outcome:
		default: // another binding has told
		}
	}
}

// replay is one that is waited for.
type replay struct {
	pipeline string // that it was meant for; empty when no binding had read it
	outcome  chan<- Outcome
}

// outcomeWait is for how long it is waited what becomes of dead letters that are published again.
const outcomeWait = 5 * time.Second

// Replay publishes a dead letter again where its event was published first, under the same event ID: a run that the
// event has started meanwhile is not started twice, and one that it never started is. The dead letter is then deleted.
// An event that is still wrong becomes a new dead letter. It waits for a few seconds for what becomes of it.
func (t *Trigger) Replay(ctx context.Context, sequence uint64) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, outcomeWait+ackLimit)
	defer cancel()
	sent, err := t.resend(ctx, sequence)
	if err != nil {
		return Outcome{}, err
	}
	limit := time.NewTimer(outcomeWait)
	defer limit.Stop()
	return sent.wait(limit.C), nil
}

// resent is a dead letter that was published again.
type resent struct {
	sequence uint64
	outcome  <-chan Outcome
	forget   func()
}

// wait waits for what becomes of it, until limit.
func (s resent) wait(limit <-chan time.Time) Outcome {
	defer s.forget()
	outcome := Outcome{}
	select {
	case outcome = <-s.outcome:
	default:
		select {
		case outcome = <-s.outcome:
		case <-limit:
		}
	}
	outcome.Sequence = s.sequence
	return outcome
}

// resend publishes a dead letter again and deletes it.
func (t *Trigger) resend(ctx context.Context, sequence uint64) (sent resent, err error) {
	stream, err := t.ensureStream(ctx, wire.DeadStream, []string{wire.DeadSubjects}, deadDuplicates)
	if err != nil {
		return sent, fmt.Errorf("replay dead letter %d: %w", sequence, err)
	}
	raw, err := stream.GetMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return sent, fmt.Errorf("replay dead letter %d: there is none with this number: %w", sequence, err)
	}
	if err != nil {
		return sent, fmt.Errorf("replay dead letter %d: %w", sequence, err)
	}
	dead := newDead(raw)
	if dead.Subject == "" || dead.Event == "" {
		return sent, fmt.Errorf("replay dead letter %d: it does not say where it came from: header %s or %s is missing",
			sequence, wire.SubjectHeader, wire.IDHeader)
	}
	message := nats.NewMsg(dead.Subject)
	message.Header = carried(raw.Header)
	for _, name := range []string{wire.ReasonHeader, wire.SubjectHeader, wire.SequenceHeader, wire.PipelineHeader} {
		message.Header.Del(name)
	}
	message.Data = dead.Body
	// The message ID is new, since JetStream would drop the first one for two minutes; the event ID is in wire.IDHeader.
	id := fmt.Sprintf("replay-%d-%d", sequence, dead.At.UnixNano())
	outcome := make(chan Outcome, 1)
	t.mu.Lock()
	t.replays[id] = replay{pipeline: dead.Pipeline, outcome: outcome}
	t.mu.Unlock()
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.replays, id)
	}
	defer func() {
		if err != nil {
			forget()
		}
	}()
	_, err = t.js.PublishMsg(ctx, message, jetstream.WithMsgID(id), jetstream.WithExpectStream(wire.EventStream))
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) {
		return sent, fmt.Errorf("replay dead letter %d: nothing takes events on subject %s any more: bind it first: %w",
			sequence, dead.Subject, err)
	}
	if err != nil {
		return sent, fmt.Errorf("replay dead letter %d: %w", sequence, err)
	}
	if err := stream.DeleteMsg(ctx, sequence); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return sent, fmt.Errorf("delete dead letter %d after its replay: %w", sequence, err)
	}
	t.mu.Lock()
	t.replayed++
	t.mu.Unlock()
	return resent{sequence: sequence, outcome: outcome, forget: forget}, nil
}

// ReplayAll replays the dead letters that there are now, the oldest first, and returns what became of them. It goes on
// after one that cannot be replayed.
func (t *Trigger) ReplayAll(ctx context.Context) (outcomes []Outcome, err error) {
	_, sequences, err := t.deadSequences(ctx)
	if err != nil {
		return nil, fmt.Errorf("replay all: %w", err)
	}
	var problems []error
	var all []resent
	for _, sequence := range sequences {
		sent, err := t.resend(ctx, sequence)
		switch {
		case err == nil:
			all = append(all, sent)
		case errors.Is(err, jetstream.ErrMsgNotFound): // another has replayed it
		default:
			problems = append(problems, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	limit, cancel := context.WithTimeout(ctx, outcomeWait)
	defer cancel()
	passed := make(chan time.Time)
	defer context.AfterFunc(limit, func() { close(passed) })()
	for _, sent := range all {
		outcomes = append(outcomes, sent.wait(passed))
	}
	return outcomes, errors.Join(problems...)
}
