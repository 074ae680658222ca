package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// consumerIdle is when the server forgets a reader that went away.
	consumerIdle = 30 * time.Second
	// retryLeast and retryMost bound the wait between two tries to reach JetStream.
	retryLeast = 50 * time.Millisecond
	retryMost  = 2 * time.Second
)

// Line is one message of the loop's stream as it lies there, or a sample between two of them.
type Line struct {
	// Sequence is its own in the loop's stream; of a sample that has a stream of its own that of the message before it, 0
	// where there is none.
	Sequence uint64
	// Sample is the sequence of a sample in the stream of its own; 0 of all other messages.
	Sample uint64
	// Stored is when the server stored it, by its clock.
	Stored time.Time
	// More says that others are stored behind it in its stream.
	More bool
	// Message is the zero Message where the reader does not want it, or this build cannot read it.
	Message wire.Message
}

// FollowOptions is what a reader wants. The zero value is for one that wants everything.
type FollowOptions struct {
	// Kinds are the messages that are wanted; others come as the zero Message, so that the reader sees how far it is, and
	// are not decoded. Nil means all.
	Kinds []wire.Kind
	// NoSamples leaves out the samples that have a stream of their own.
	NoSamples bool
	// Samples is the sequence, in the stream of their own, of the first sample that is wanted, for a reader who goes on
	// where it was. At 0 it is decided by the time of the first message.
	Samples uint64
	// Logger is told of messages that cannot be read, at debug level. Nil discards.
	Logger *slog.Logger
}

// Follow calls handle with every message of the loop's stream from sequence from on (0 and 1 both mean the oldest), in
// order, one at a time and each once, and then waits for new ones, until ctx ends or handle returns an error. It goes
// on where it was after a lost connection or a restarted server. Nil options are the zero ones.
//
// The samples that have a stream of their own come between them, by when the server stored them: those that were stored
// after the message at from was, or since now where there is none yet, or those from options.Samples on. A sample may
// be lost, and may come beside its place while both are told; nothing in the loop's stream waits for it for long.
//
// A message that this build cannot read, or that says something else than its subject, is handed on as the zero
// Message, so that the caller sees its sequence: Metrics counts it, all others ignore it. Sequences may have gaps where
// old messages were discarded.
func Follow(
	ctx context.Context, js jetstream.JetStream, from uint64, options *FollowOptions, handle func(Line) error,
) error {
	var o FollowOptions
	if options != nil {
		o = *options
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	facts := &source{name: wire.LoopStream, next: max(from, 1), subject: wire.LoopSubject, kinds: o.Kinds}
	follow := facts.read
	if !o.NoSamples {
		follow = newMerger(facts, o.Samples, o.Kinds).read
	}
	return fmt.Errorf("follow %s: %w", wire.LoopStream, follow(ctx, js, handle, o.Logger))
}

// Extent returns the sequences of the oldest and of the newest message that the loop's stream holds now; both are 0
// when it holds none. The newest may be far before the last that was ever stored: others were deleted, or are lost.
func Extent(ctx context.Context, js jetstream.JetStream) (first, last uint64, err error) {
	stream, err := js.Stream(ctx, wire.LoopStream)
	if err != nil {
		return 0, 0, fmt.Errorf("look up stream %s: %w", wire.LoopStream, err)
	}
	state := stream.CachedInfo().State
	if state.Msgs == 0 {
		return 0, 0, nil
	}
	newest, err := stream.GetLastMsgForSubject(ctx, wire.LoopSubjects)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the newest message of stream %s: %w", wire.LoopStream, err)
	}
	return state.FirstSeq, newest.Sequence, nil
}

// tail calls handle with the messages that position asks for, and asks again at the position of then whenever the
// reader breaks. It returns when ctx ends, when handle fails, or when the connection was closed for good; never nil.
func tail(ctx context.Context, js jetstream.JetStream, stream string, position func() jetstream.OrderedConsumerConfig,
	handle func(jetstream.Msg) error, logger *slog.Logger,
) error {
	pause := retryLeast
	for {
		config := position()
		config.InactiveThreshold = consumerIdle
		read, err := drain(ctx, js, stream, config, handle)
		var final *handlerError
		switch {
		case errors.As(err, &final):
			return final.err
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, nats.ErrConnectionClosed):
			return err
		}
		if read {
			pause = retryLeast
		}
		logger.DebugContext(ctx, "read stream again", "stream", stream, "wait", pause, "error", err)
		if !wait.For(ctx, pause) {
			return ctx.Err()
		}
		pause = min(2*pause, retryMost)
	}
}

// handlerError marks an error of the caller's function, which ends a tail.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }

// drain reads with one consumer until something breaks; read tells whether it got anything at all.
func drain(
	ctx context.Context, js jetstream.JetStream, stream string, config jetstream.OrderedConsumerConfig,
	handle func(jetstream.Msg) error,
) (read bool, err error) {
	consumer, err := streams.Reader(ctx, js, stream, config)
	if err != nil {
		return false, err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return false, err
	}
	defer messages.Stop()
	for {
		message, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return read, err
		}
		read = true
		if err := handle(message); err != nil {
			return read, &handlerError{err}
		}
	}
}

// Has reports whether the loop's stream had the message of a sequence, stored at a time, as its last or before it. It
// is false where it has another one there, or has none yet: then it is another stream, or one that has lost its end, as
// after a power cut, and gives the sequences anew. A message that was discarded since is taken to have been there.
func Has(ctx context.Context, js jetstream.JetStream, sequence uint64, stored time.Time) (bool, error) {
	stream, err := js.Stream(ctx, wire.LoopStream)
	if err != nil {
		return false, fmt.Errorf("look up stream %s: %w", wire.LoopStream, err)
	}
	if sequence == 0 || stream.CachedInfo().State.LastSeq < sequence {
		return sequence == 0, nil
	}
	there, err := stream.GetMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up message %d of stream %s: %w", sequence, wire.LoopStream, err)
	}
	return there.Time.Equal(stored), nil
}
