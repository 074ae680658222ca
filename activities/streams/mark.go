package streams

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Mark is how far a stream was when somebody looked: the next look is compared with it. The zero Mark is of a stream
// that nobody has looked at.
type Mark struct {
	// First and Last are the sequences of the oldest message and of the newest that was ever stored.
	First, Last uint64
	// Missing is how many between the two are gone.
	Missing uint64
	// Bytes is what the messages take.
	Bytes uint64
	// FirstStored and LastStored are when the two were stored; the zero time where there was none.
	FirstStored, LastStored time.Time
}

// Loss is what a stream has lost between two looks, though neither its bound of age nor that of bytes took it.
type Loss struct {
	Stream string
	// Messages is how many there are of which that is certain.
	Messages uint64
	// Since and Until are between which times they were stored; the zero time is not known.
	Since, Until time.Time
}

// MarkOf is what an answer of the server says of a stream.
func MarkOf(info *jetstream.StreamInfo) Mark {
	state := info.State
	mark := Mark{
		First: state.FirstSeq, Last: state.LastSeq, Bytes: state.Bytes,
		FirstStored: state.FirstTime, LastStored: state.LastTime,
	}
	if state.FirstSeq > 0 && state.LastSeq >= state.FirstSeq {
		mark.Missing = state.LastSeq + 1 - state.FirstSeq - min(state.Msgs, state.LastSeq+1-state.FirstSeq)
	}
	return mark
}

// nearlyFull is the part of its bound of bytes from which a stream may have dropped its oldest messages for room.
const nearlyFull = 0.9

// lostSince is how many messages a stream has lost since a look at it. Messages that went because of its bounds are
// none; where some may have, only those count that cannot.
func lostSince(was Mark, info *jetstream.StreamInfo, now time.Time) (messages uint64) {
	if was.Last == 0 {
		return 0
	}
	is := MarkOf(info)
	if is.Last < was.Last {
		messages += was.Last - max(is.Last, was.First-min(was.First, 1))
	}
	config := info.Config
	old := was.FirstStored.IsZero() || config.MaxAge > 0 && now.Sub(was.FirstStored) >= config.MaxAge
	full := config.MaxBytes > 0 && float64(was.Bytes) >= nearlyFull*float64(config.MaxBytes)
	if is.First > was.First && is.Last >= was.Last && !old && !full {
		messages += min(is.First, was.Last+1) - was.First
	}
	messages += is.Missing
	return messages - min(messages, was.Missing) // those that were missing before, wherever they were
}

// Look compares a stream with what it was, and says what it is now. A stream that there is not has lost all that it
// had.
func Look(ctx context.Context, js jetstream.JetStream, name string, was Mark, now time.Time) (Mark, Loss, error) {
	stream, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		empty := &jetstream.StreamInfo{}
		return Mark{}, Loss{
			Stream: name, Messages: lostSince(was, empty, now), Since: was.FirstStored, Until: was.LastStored,
		}, nil
	}
	if err != nil {
		return Mark{}, Loss{}, fmt.Errorf("look at stream %s: %w", name, err)
	}
	info := stream.CachedInfo()
	loss := Loss{Stream: name, Messages: lostSince(was, info, now)}
	if loss.Messages > 0 {
		loss.Since, loss.Until = missingBetween(ctx, stream, was)
	}
	return MarkOf(info), loss, nil
}

// missingBetween is between which times the messages were stored that a stream has no more, as far as those that are
// left beside them tell.
func missingBetween(ctx context.Context, stream jetstream.Stream, was Mark) (since, until time.Time) {
	info, err := stream.Info(ctx, jetstream.WithDeletedDetails(true))
	if err != nil {
		return time.Time{}, time.Time{}
	}
	state := info.State
	if state.Msgs == 0 {
		return was.FirstStored, was.LastStored
	}
	storedAt := func(sequence uint64) time.Time {
		message, err := stream.GetMsg(ctx, sequence)
		if err != nil {
			return time.Time{}
		}
		return message.Time
	}
	switch deleted := state.Deleted; {
	case len(deleted) > 0:
		since, until = storedAt(slices.Min(deleted)-1), storedAt(slices.Max(deleted)+1)
	case state.FirstSeq > was.First:
		since, until = was.FirstStored, state.FirstTime
	default:
		since = state.LastTime
	}
	if until.IsZero() {
		until = was.LastStored
	}
	return since, until
}

// placeholders is how many are published at a time.
const placeholders = 1000

// GoOnBehind makes a stream that has lost its newest messages give the next one a sequence behind last: those that were
// given before are known elsewhere, and would name other messages. Subject is one that the stream captures and nobody
// reads. NATS can be told so only of an empty stream; so messages without content take the places, and are removed. A
// stream that there is not is left so.
func GoOnBehind(ctx context.Context, js jetstream.JetStream, name, subject string, last uint64) error {
	stream, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("let stream %s go on behind %d: %w", name, last, err)
	}
	if state := stream.CachedInfo().State; state.Msgs == 0 && state.LastSeq < last {
		if err := stream.Purge(ctx, jetstream.WithPurgeSequence(last+1)); err != nil {
			return fmt.Errorf("let stream %s go on behind %d: %w", name, last, err)
		}
		return nil
	}
	for at := stream.CachedInfo().State.LastSeq; at < last; {
		var sent jetstream.PubAckFuture
		for range min(last-at, placeholders) {
			if sent, err = js.PublishAsync(subject, nil); err != nil {
				return fmt.Errorf("let stream %s go on behind %d: %w", name, last, err)
			}
		}
		select {
		case <-js.PublishAsyncComplete():
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case err := <-sent.Err():
			return fmt.Errorf("let stream %s go on behind %d: %w", name, last, err)
		default:
		}
		if err := stream.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil {
			return fmt.Errorf("let stream %s go on behind %d: %w", name, last, err)
		}
		info, err := stream.Info(ctx)
		if err != nil {
			return fmt.Errorf("let stream %s go on behind %d: %w", name, last, err)
		}
		if info.State.LastSeq <= at {
			return fmt.Errorf("let stream %s go on behind %d: it stays at %d", name, last, at)
		}
		at = info.State.LastSeq
	}
	return nil
}
