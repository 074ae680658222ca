package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// consumerIdle is when the server forgets a reader that went away.
	consumerIdle = 30 * time.Second
	// retryLeast and retryMost bound the wait between two tries to reach JetStream.
	retryLeast = 50 * time.Millisecond
	retryMost  = 2 * time.Second
)

// Follow calls handle with every message of the loop's stream from sequence from on (0 and 1 both mean the oldest), in order, one at a
// time and each once, and then waits for new ones, until ctx ends or handle returns an error. It goes on where it was after a lost
// connection or a restarted server.
//
// A message that this build cannot read, or that says something else than its subject, is logged at debug level and handed on as the zero Message, so that the caller sees its
// sequence: Metrics counts it, all others ignore it. Sequences may have gaps where old messages were discarded. A nil logger discards.
func Follow(ctx context.Context, js jetstream.JetStream, from uint64, handle func(sequence uint64, message wire.Message) error, logger *slog.Logger) error {
	logger = orDiscard(logger)
	next := max(from, 1)
	position := func() jetstream.OrderedConsumerConfig {
		return jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: next}
	}
	err := tail(ctx, js, wire.LoopStream, position, func(raw jetstream.Msg) error {
		metadata, err := raw.Metadata()
		if err != nil {
			return fmt.Errorf("read where a message is: %w", err)
		}
		sequence := metadata.Sequence.Stream
		if sequence < next {
			return nil // delivered again after a reset
		}
		message, err := wire.DecodeMessage(raw.Data())
		if err == nil && raw.Subject() != wire.LoopSubject(message.Kind()) { // the subject is what its sender had a right to
			err = fmt.Errorf("it says %s", message.Kind())
		}
		if err != nil {
			logger.DebugContext(ctx, "skip message", "sequence", sequence, "subject", raw.Subject(), "error", err)
			message = wire.Message{}
		}
		next = sequence + 1
		return handle(sequence, message)
	}, logger)
	return fmt.Errorf("follow %s: %w", wire.LoopStream, err)
}

// maxDeleted bounds how many messages in a row may have been deleted by hand at the end of the stream.
const maxDeleted = 1000

// Extent returns the sequences of the oldest and of the newest message that the loop's stream holds now; both are 0 when it holds none.
func Extent(ctx context.Context, js jetstream.JetStream) (first, last uint64, err error) {
	stream, err := js.Stream(ctx, wire.LoopStream)
	if err != nil {
		return 0, 0, fmt.Errorf("look up stream %s: %w", wire.LoopStream, err)
	}
	state := stream.CachedInfo().State
	for last = state.LastSeq; state.Msgs > 0 && last >= max(state.FirstSeq, 1) && last+maxDeleted > state.LastSeq; last-- {
		_, err := stream.GetMsg(ctx, last)
		if err == nil {
			return state.FirstSeq, last, nil
		}
		if !errors.Is(err, jetstream.ErrMsgNotFound) {
			return 0, 0, fmt.Errorf("read message %d of stream %s: %w", last, wire.LoopStream, err)
		}
	}
	return 0, 0, nil
}

// tail calls handle with the messages that position asks for, and asks again at the position of then whenever the reader breaks.
// It returns when ctx ends, when handle fails, or when the connection was closed for good; never nil.
func tail(ctx context.Context, js jetstream.JetStream, stream string, position func() jetstream.OrderedConsumerConfig,
	handle func(jetstream.Msg) error, logger *slog.Logger,
) error {
	wait := retryLeast
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
			wait = retryLeast
		}
		logger.DebugContext(ctx, "read stream again", "stream", stream, "wait", wait, "error", err)
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, retryMost)
	}
}

// handlerError marks an error of the caller's function, which ends a tail.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }

// drain reads with one consumer until something breaks; read tells whether it got anything at all.
func drain(ctx context.Context, js jetstream.JetStream, stream string, config jetstream.OrderedConsumerConfig, handle func(jetstream.Msg) error) (read bool, err error) {
	consumer, err := js.OrderedConsumer(ctx, stream, config)
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

// sleep waits for d, or returns why ctx ended before.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func orDiscard(logger *slog.Logger) *slog.Logger {
	if logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return logger
}
