package loop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
)

// scan calls visit with the messages that a stream holds now and that config selects, until it wants no more.
func scan(
	ctx context.Context, js jetstream.JetStream, stream string, config jetstream.ConsumerConfig,
	visit func(jetstream.Msg, *jetstream.MsgMetadata) (more bool),
) (err error) {
	config.AckPolicy, config.InactiveThreshold, config.MemoryStorage = jetstream.AckNonePolicy, consumerIdle, true
	var consumer jetstream.Consumer
	err = streams.Patiently(ctx, func() (err error) { // a build may have only so many at a time
		consumer, err = js.CreateConsumer(ctx, stream, config)
		return err
	})
	if err != nil {
		return fmt.Errorf("look into stream %s: %w", stream, err)
	}
	info := consumer.CachedInfo()
	defer func() { err = errors.Join(err, js.DeleteConsumer(context.WithoutCancel(ctx), stream, info.Name)) }()
	if info.NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	defer messages.Stop()
	for {
		message, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("read stream %s: %w", stream, err)
		}
		metadata, err := message.Metadata()
		if err != nil {
			return fmt.Errorf("read where a message of stream %s is: %w", stream, err)
		}
		if !visit(message, metadata) || metadata.NumPending == 0 {
			return nil
		}
	}
}

// ForgottenError says that the loop's stream has no more all that it told of a run.
type ForgottenError struct {
	Run string
	// Since is of when the oldest message is that the stream has; the zero time where it has none.
	Since time.Time
}

func (e *ForgottenError) Error() string {
	if e.Since.IsZero() {
		return fmt.Sprintf("stream %s tells nothing of run %q any more", wire.LoopStream, e.Run)
	}
	return fmt.Sprintf("stream %s goes back to %s, and run %q began before", wire.LoopStream, e.Since.Format(time.RFC3339),
		e.Run)
}

// OfRun returns what the streams tell of a run between two messages of the loop's stream, both included, in the order
// in which it was stored, with the samples that are left. It returns a ForgottenError where the loop's stream has not
// all of it.
func OfRun(ctx context.Context, js jetstream.JetStream, run string, first, last uint64) ([]wire.Message, error) {
	stream, err := js.Stream(ctx, wire.LoopStream)
	if err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", wire.LoopStream, err)
	}
	if state := stream.CachedInfo().State; state.Msgs == 0 || state.FirstSeq > first || state.LastSeq < last {
		return nil, &ForgottenError{Run: run, Since: state.FirstTime}
	}
	name, err := json.Marshal(run)
	if err != nil {
		return nil, err
	}
	about := slices.Concat([]byte(`"run":`), name) // as all messages are encoded: the others need not be decoded
	var found []Line
	var begun, ended time.Time
	err = scan(ctx, js, wire.LoopStream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(first, 1),
	}, func(message jetstream.Msg, metadata *jetstream.MsgMetadata) bool {
		if metadata.Sequence.Stream <= last {
			ended = metadata.Timestamp
		}
		if begun.IsZero() {
			begun = metadata.Timestamp
		}
		if metadata.Sequence.Stream <= last && bytes.Contains(message.Data(), about) {
			found = keepLine(found, message, metadata, wire.LoopSubject)
		}
		return metadata.Sequence.Stream < last
	})
	if err != nil {
		return nil, err
	}
	err = scan(ctx, js, wire.SampleStream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &begun,
	}, func(message jetstream.Msg, metadata *jetstream.MsgMetadata) bool {
		if metadata.Timestamp.After(ended) {
			return false
		}
		if bytes.Contains(message.Data(), about) {
			found = keepLine(found, message, metadata, wire.FactSubject)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(found, func(a, b Line) int { return a.Stored.Compare(b.Stored) })
	messages := make([]wire.Message, len(found))
	for i, line := range found {
		messages[i] = line.Message
	}
	return messages, nil
}

// keepLine appends a message, where this build can read it and it says what its subject does.
func keepLine(
	lines []Line, message jetstream.Msg, metadata *jetstream.MsgMetadata, subject func(wire.Kind) string,
) []Line {
	decoded, err := wire.DecodeMessage(message.Data())
	if err != nil || message.Subject() != subject(decoded.Kind()) {
		return lines
	}
	return append(lines, Line{Sequence: metadata.Sequence.Stream, Stored: metadata.Timestamp, Message: decoded})
}
