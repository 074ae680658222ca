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
