package space

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
)

// kept is a message that names artifacts.
type kept struct {
	subject string
	at      time.Time
	names   []retention.Digest
}

// tail remembers which messages of a stream name artifacts, and reads only those that came since. One goroutine at a
// time uses it.
type tail struct {
	stream  string
	made    time.Time // the stream
	next    uint64    // the first sequence that was not read
	kept    map[uint64]kept
	newest  map[string]uint64 // by subject, where a stream keeps one message of each
	lastOne bool
}

func newTail(stream string) *tail {
	return &tail{stream: stream, kept: map[uint64]kept{}, newest: map[string]uint64{}}
}

// read brings what is remembered to what is in the stream now. A stream that is not there has nothing.
func (t *tail) read(ctx context.Context, js jetstream.JetStream) error {
	stream, err := js.Stream(ctx, t.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		*t = *newTail(t.stream)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", t.stream, err)
	}
	info := stream.CachedInfo()
	if !info.Created.Equal(t.made) || info.State.LastSeq+1 < t.next {
		*t = *newTail(t.stream)
		t.made = info.Created
	}
	t.lastOne = info.Config.MaxMsgsPerSubject == 1
	for sequence := range t.kept {
		if sequence < info.State.FirstSeq {
			t.drop(sequence)
		}
	}
	if info.State.LastSeq < max(t.next, 1) {
		return nil
	}
	if err := t.readOn(ctx, js, info.State.LastSeq); err != nil {
		return fmt.Errorf("read %s: %w", t.stream, err)
	}
	t.next = info.State.LastSeq + 1
	return nil
}

// readFor bounds one reading: messages that it waits for may be deleted meanwhile.
const readFor = 2 * time.Minute

// readOn takes in the messages up to last.
func (t *tail) readOn(ctx context.Context, js jetstream.JetStream, last uint64) error {
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	consumer, err := streams.Reader(ctx, js, t.stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(t.next, 1),
	})
	if err != nil {
		return err
	}
	if info, err := consumer.Info(ctx); err != nil || info.NumPending == 0 { // the last ones were deleted
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		message, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		metadata, err := message.Metadata()
		if err != nil {
			return err
		}
		t.take(metadata.Sequence.Stream, kept{message.Subject(), metadata.Timestamp, namesOf(message)})
		t.next = metadata.Sequence.Stream + 1 // from where another reading goes on if this one ends early
		if metadata.NumPending == 0 || metadata.Sequence.Stream >= last {
			return nil
		}
	}
}

// namesOf returns the digests in a message.
func namesOf(message jetstream.Msg) []retention.Digest {
	var scanner retention.Scanner
	_, _ = scanner.Write(message.Data()) // it never fails
	for _, values := range message.Headers() {
		for _, value := range values {
			_, _ = scanner.Write([]byte("\x00" + value))
		}
	}
	return scanner.Names()
}

func (t *tail) take(sequence uint64, one kept) {
	if t.lastOne {
		if older, replaced := t.newest[one.subject]; replaced {
			t.drop(older)
		}
	}
	if len(one.names) == 0 {
		return
	}
	t.kept[sequence] = one
	if t.lastOne {
		t.newest[one.subject] = sequence
	}
}

func (t *tail) drop(sequence uint64) {
	if one := t.kept[sequence]; t.newest[one.subject] == sequence {
		delete(t.newest, one.subject)
	}
	delete(t.kept, sequence)
}

// readers returns the first sequence of a stream that one of its consumers has not dealt with, and the digests in what
// is noted with them. The first is 0 where the stream has no consumers, since nobody has dealt with anything.
func readers(ctx context.Context, js jetstream.JetStream, name string) (
	first uint64, noted []retention.Digest, err error,
) {
	stream, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, fmt.Errorf("look what waits in %s: %w", name, err)
	}
	consumers, some := stream.ListConsumers(ctx), false
	var scanner retention.Scanner
	for info := range consumers.Info() {
		for _, value := range info.Config.Metadata {
			_, _ = scanner.Write([]byte(value + "\x00")) // it never fails
		}
		// An acknowledgement floor stands still where nothing that the consumer wants has come since.
		waits := info.AckFloor.Stream + 1
		if info.NumPending == 0 && info.NumAckPending == 0 {
			waits = max(waits, info.Delivered.Stream+1, stream.CachedInfo().State.LastSeq+1)
		}
		if !some || waits < first {
			first, some = waits, true
		}
	}
	if err := consumers.Err(); err != nil {
		return 0, nil, fmt.Errorf("look what waits in %s: %w", name, err)
	}
	return first, scanner.Names(), nil
}

// forget removes the results on these subjects: nobody takes them any more, and their artifacts may go.
func forget(ctx context.Context, js jetstream.JetStream, subjects string) error {
	stream, err := js.Stream(ctx, wire.ResultStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(subjects))
	}
	if err != nil {
		return fmt.Errorf("forget the results on %s: %w", subjects, err)
	}
	return nil
}
