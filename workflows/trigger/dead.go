package trigger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
)

// cutBody is what is kept of the body of a dead letter that is too large to be stored with its reason, in bytes.
const cutBody = 64 << 10

// Dead is an event that could not start a run.
type Dead struct {
	// Sequence names the dead letter in Replay.
	Sequence uint64
	// Event is the ID of the event.
	Event string
	// Pipeline is the pipeline that the event was meant for; empty when no binding read it.
	Pipeline string
	// Subject and EventSequence are where the event was published.
	Subject       string
	EventSequence uint64
	// Reason says what was wrong and what to do.
	Reason string
	// Body is the body of the event as it came.
	Body []byte
	// At is when the event became a dead letter.
	At time.Time
}

// publishDead publishes the dead letter of e and returns when it is stored. Its message ID makes a second dead letter
// of the same event by the same binding one dead letter.
func (t *Trigger) publishDead(ctx context.Context, key, pipeline string, e event, reason string) error {
	message := nats.NewMsg(wire.DeadSubject(pipeline))
	message.Header = carried(e.header)
	message.Header.Set(wire.ReasonHeader, oneLine(reason))
	message.Header.Set(wire.SubjectHeader, e.subject)
	message.Header.Set(wire.SequenceHeader, strconv.FormatUint(e.sequence, 10))
	message.Header.Set(wire.IDHeader, e.id)
	message.Header.Set(wire.PipelineHeader, pipeline)
	message.Data = e.body
	id := fmt.Sprintf("dead-%d-%s", e.sequence, key)
	_, err := t.js.PublishMsg(ctx, message, jetstream.WithMsgID(id))
	if errors.Is(err, nats.ErrMaxPayload) {
		message.Data = e.body[:min(len(e.body), cutBody)]
		message.Header.Set(wire.ReasonHeader, oneLine(reason+"; the body kept here is cut"))
		_, err = t.js.PublishMsg(ctx, message, jetstream.WithMsgID(id))
	}
	if err != nil {
		return fmt.Errorf("publish the dead letter of event %s: %w", e.id, err)
	}
	return nil
}

// carried copies the headers that an event brought, without those that steer NATS.
func carried(header nats.Header) nats.Header {
	kept := nats.Header{}
	for name, values := range header {
		if !strings.HasPrefix(strings.ToLower(name), "nats-") {
			kept[name] = slices.Clone(values)
		}
	}
	return kept
}

// oneLine makes a text fit for a header.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	return text[:min(len(text), 4<<10)]
}

// DeadLetters returns the newest dead letters, at most limit, the newest first.
func (t *Trigger) DeadLetters(ctx context.Context, limit int) ([]Dead, error) {
	if limit < 1 {
		return nil, fmt.Errorf("list dead letters: limit %d is below 1", limit)
	}
	stream, sequences, err := t.deadSequences(ctx)
	if err != nil {
		return nil, err
	}
	var dead []Dead
	for _, sequence := range slices.Backward(sequences) {
		if len(dead) == limit {
			break
		}
		message, err := stream.GetMsg(ctx, sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // replayed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read dead letter %d: %w", sequence, err)
		}
		dead = append(dead, newDead(message))
	}
	return dead, nil
}

func newDead(message *jetstream.RawStreamMsg) Dead {
	sequence, err := strconv.ParseUint(message.Header.Get(wire.SequenceHeader), 10, 64)
	if err != nil {
		sequence = 0 // a dead letter that Spillway did not write
	}
	return Dead{
		Sequence: message.Sequence, Event: message.Header.Get(wire.IDHeader),
		Pipeline: message.Header.Get(wire.PipelineHeader),
		Subject:  message.Header.Get(wire.SubjectHeader), EventSequence: sequence,
		Reason: message.Header.Get(wire.ReasonHeader),
		Body:   message.Data, At: message.Time,
	}
}

// deadSequences are the sequences of all dead letters, the oldest first.
func (t *Trigger) deadSequences(ctx context.Context) (jetstream.Stream, []uint64, error) {
	stream, err := t.ensureStream(ctx, wire.DeadStream, []string{wire.DeadSubjects}, deadDuplicates)
	if err != nil {
		return nil, nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithDeletedDetails(true))
	if err != nil {
		return nil, nil, fmt.Errorf("look at stream %s: %w", wire.DeadStream, err)
	}
	if info.State.Msgs == 0 {
		return stream, nil, nil
	}
	gone := map[uint64]bool{}
	for _, sequence := range info.State.Deleted {
		gone[sequence] = true
	}
	var sequences []uint64
	for sequence := info.State.FirstSeq; sequence <= info.State.LastSeq; sequence++ {
		if !gone[sequence] {
			sequences = append(sequences, sequence)
		}
	}
	return stream, sequences, nil
}

// Replay publishes a dead letter again where its event was published first, under the same event ID: a run that the
// event has started meanwhile is not started twice, and one that it never started is. The dead letter is then deleted.
// An event that is still wrong becomes a new dead letter.
func (t *Trigger) Replay(ctx context.Context, sequence uint64) error {
	stream, err := t.ensureStream(ctx, wire.DeadStream, []string{wire.DeadSubjects}, deadDuplicates)
	if err != nil {
		return fmt.Errorf("replay dead letter %d: %w", sequence, err)
	}
	raw, err := stream.GetMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("replay dead letter %d: there is none with this number: %w", sequence, err)
	}
	if err != nil {
		return fmt.Errorf("replay dead letter %d: %w", sequence, err)
	}
	dead := newDead(raw)
	if dead.Subject == "" || dead.Event == "" {
		return fmt.Errorf("replay dead letter %d: it does not say where it came from: header %s or %s is missing", sequence,
			wire.SubjectHeader, wire.IDHeader)
	}
	message := nats.NewMsg(dead.Subject)
	message.Header = carried(raw.Header)
	for _, name := range []string{wire.ReasonHeader, wire.SubjectHeader, wire.SequenceHeader, wire.PipelineHeader} {
		message.Header.Del(name)
	}
	message.Data = dead.Body
	// The message ID is new, since JetStream would drop the first one for two minutes; the event ID is in wire.IDHeader.
	id := fmt.Sprintf("replay-%d-%d", sequence, dead.At.UnixNano())
	_, err = t.js.PublishMsg(ctx, message, jetstream.WithMsgID(id), jetstream.WithExpectStream(wire.EventStream))
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("replay dead letter %d: nothing takes events on subject %s any more: bind it first: %w", sequence,
			dead.Subject, err)
	}
	if err != nil {
		return fmt.Errorf("replay dead letter %d: %w", sequence, err)
	}
	if err := stream.DeleteMsg(ctx, sequence); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("delete dead letter %d after its replay: %w", sequence, err)
	}
	t.mu.Lock()
	t.replayed++
	t.mu.Unlock()
	return nil
}

// ReplayAll replays the dead letters that there are now, the oldest first, and returns how many. It goes on after one
// that cannot be replayed.
func (t *Trigger) ReplayAll(ctx context.Context) (replayed int, err error) {
	_, sequences, err := t.deadSequences(ctx)
	if err != nil {
		return 0, fmt.Errorf("replay all: %w", err)
	}
	var problems []error
	for _, sequence := range sequences {
		err := t.Replay(ctx, sequence)
		switch {
		case err == nil:
			replayed++
		case errors.Is(err, jetstream.ErrMsgNotFound): // another has replayed it
		case ctx.Err() != nil:
			return replayed, errors.Join(append(problems, err)...)
		default:
			problems = append(problems, err)
		}
	}
	return replayed, errors.Join(problems...)
}
