package logs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// hold is how long a line waits for older ones of other attempts. It covers what the Writer waits, and the way to the
	// server.
	hold = 500 * time.Millisecond
	// stall is how long old messages may not come before they are asked for again.
	stall = 5 * time.Second
	// skew is how far the clocks of a host and of the server may be apart for Query.Since.
	skew = time.Minute
	// consumerIdle is when the server forgets a reader that went away.
	consumerIdle = 30 * time.Second
)

// Query selects lines. Zero fields but Run select all.
type Query struct {
	// Run is the run's ID; required.
	Run string
	// Stage and Task keep only lines of that stage and of the task with that ID.
	Stage, Task string
	// Attempt keeps only lines of attempts with that number.
	Attempt int
	// Since leaves out lines that are older.
	Since time.Time
	// From leaves out messages of the stream before this sequence: a Line's Resume.
	From uint64
	// Tail leaves out all but the last lines of those that there are at the beginning; 0 leaves out none. They are held in
	// memory.
	Tail int
	// Until makes Follow wait for new lines. Once it is closed, Follow hands out what is in the stream by then and
	// returns. Nil does not wait at all.
	Until <-chan struct{}
}

// Follow calls handle with the lines that query selects, one at a time. Those of one attempt come in the order in which
// they were printed, those of several by time as far as their hosts' clocks and the stream's delays allow. It returns
// nil when all are handed out, and otherwise when ctx ends or handle fails; it goes on where it was after a lost
// connection or a restarted server.
//
// What the stream has discarded is missing without a word. A message that this build cannot read is handed out as a
// note.
func Follow(ctx context.Context, js jetstream.JetStream, query Query, handle func(Line) error) error {
	if query.Run == "" {
		return errors.New("follow a log: the query names no run")
	}
	f := &follower{js: js, query: query, handle: handle, next: query.From, tailing: query.Tail > 0}
	err := f.follow(ctx)
	if failed, ok := errors.AsType[*handlerError](err); ok {
		err = failed.err
	}
	if err != nil {
		return fmt.Errorf("follow the log of run %s: %w", query.Run, err)
	}
	return nil
}

// follower is one call of Follow.
type follower struct {
	js      jetstream.JetStream
	query   Query
	handle  func(Line) error
	next    uint64 // the sequence of the next message; 0 before the first
	merge   merger
	tailing bool   // lines are collected in tail
	tail    []Line // the last lines so far; a ring once it is full
	oldest  int    // where the ring begins
}

// handlerError marks an error of the caller's function, which ends Follow.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }

// follow reads what is there, then what comes until the query's Until is closed, and then what is there by then.
func (f *follower) follow(ctx context.Context) error {
	if err := f.persist(ctx, f.history); err != nil || f.query.Until == nil {
		return err
	}
	live, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-f.query.Until:
			stop()
		case <-live.Done():
		}
	})
	err := f.persist(live, f.live)
	ended := live.Err() != nil && ctx.Err() == nil
	stop()
	watching.Wait()
	if _, failed := errors.AsType[*handlerError](err); failed || !ended {
		return err
	}
	return f.persist(ctx, f.history)
}

// persist calls read until it returns nil, however often the connection breaks, or no further call can help.
func (f *follower) persist(ctx context.Context, read func(context.Context) error) error {
	pause := retryLeast
	for {
		before := f.next
		err := read(ctx)
		_, failed := errors.AsType[*handlerError](err)
		switch {
		case err == nil || failed:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, nats.ErrConnectionClosed):
			return err
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return fmt.Errorf("%w: %s; it is created when the engine starts", err, wire.LogStream)
		}
		if f.next > before {
			pause = retryLeast
		}
		if !wait.For(ctx, pause) {
			return ctx.Err()
		}
		pause = min(2*pause, retryMost)
	}
}

// history hands out all that is in the stream now.
func (f *follower) history(ctx context.Context) error {
	stream, err := f.js.Stream(ctx, wire.LogStream)
	if err != nil {
		return err
	}
	if last := stream.CachedInfo().State.LastSeq; last >= max(f.next, 1) {
		if err := f.read(ctx, last); err != nil {
			return err
		}
	}
	if err := f.releaseAll(); err != nil {
		return err
	}
	return f.endTail()
}

// live hands out what comes; it never returns nil.
func (f *follower) live(ctx context.Context) error { return f.read(ctx, 0) }

// read takes messages with one consumer: up to the one with the sequence last, or without end when that is 0.
func (f *follower) read(ctx context.Context, last uint64) error {
	consumer, err := streams.Reader(ctx, f.js, wire.LogStream, f.position())
	if err != nil {
		return err
	}
	if last > 0 && consumer.CachedInfo().NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	patience := hold
	if last > 0 {
		patience = stall
	}
	for {
		message, err := next(ctx, messages, patience)
		switch {
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && last == 0:
			if err := f.releaseAll(); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		metadata, err := message.Metadata()
		if err != nil {
			return fmt.Errorf("read where a message is: %w", err)
		}
		if err := f.take(message.Data(), metadata); err != nil {
			return err
		}
		if last > 0 && (metadata.Sequence.Stream >= last || metadata.NumPending == 0) {
			return nil
		}
	}
}

func next(ctx context.Context, messages jetstream.MessagesContext, patience time.Duration) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return messages.Next(jetstream.NextContext(ctx))
}

func (f *follower) position() jetstream.OrderedConsumerConfig {
	config := jetstream.OrderedConsumerConfig{
		FilterSubjects:    []string{wire.LogFilter(f.query.Run, f.query.Stage, f.query.Task, f.query.Attempt)},
		InactiveThreshold: consumerIdle,
		DeliverPolicy:     jetstream.DeliverAllPolicy,
	}
	switch {
	case f.next > 0:
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, f.next
	case !f.query.Since.IsZero():
		from := f.query.Since.Add(-skew)
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &from
	}
	return config
}

// take handles one message, and hands out what nothing older can come before any more.
func (f *follower) take(data []byte, metadata *jetstream.MsgMetadata) error {
	sequence := metadata.Sequence.Stream
	if sequence < f.next {
		return nil // delivered again after a reset
	}
	f.next = sequence + 1
	f.merge.push(sequence, metadata.Timestamp, f.selected(sequence, metadata.Timestamp, data))
	return f.release(metadata.Timestamp.Add(-hold))
}

// selected returns the lines of a message that the query selects.
func (f *follower) selected(sequence uint64, stored time.Time, data []byte) []Line {
	message, err := wire.DecodeLogs(data)
	if err != nil {
		message = wire.Logs{
			Source: wire.LogSource{Run: f.query.Run, Stage: f.query.Stage, Task: f.query.Task, Attempt: f.query.Attempt},
			Lines: []wire.LogLine{{
				At: stored, Origin: wire.LogNote,
				Text: "lines left out that this version of spillway cannot read: " + err.Error(),
			}},
		}
	}
	source := message.Source
	if source.Run != f.query.Run || f.query.Stage != "" && source.Stage != f.query.Stage ||
		f.query.Task != "" && source.Task != f.query.Task {
		return nil // another name that makes the same subject
	}
	lines := make([]Line, 0, len(message.Lines))
	for i, line := range message.Lines {
		if !line.At.Before(f.query.Since) {
			lines = append(lines, Line{LogSource: source, LogLine: line, Sequence: sequence, Index: i})
		}
	}
	return lines
}

// releaseAll hands out all lines that are held.
func (f *follower) releaseAll() error {
	const always = 1 << 62 // nanoseconds: the year 2116, after every time of a message
	return f.release(time.Unix(0, always))
}

// release hands out the lines held up to a time.
func (f *follower) release(until time.Time) error {
	for {
		line, found := f.merge.pop(until)
		if !found {
			return nil
		}
		if !f.tailing {
			if err := f.handle(line); err != nil {
				return &handlerError{err}
			}
			continue
		}
		if len(f.tail) < f.query.Tail {
			f.tail = append(f.tail, line)
			continue
		}
		f.tail[f.oldest] = line
		f.oldest = (f.oldest + 1) % f.query.Tail
	}
}

// endTail hands out the lines that were collected.
func (f *follower) endTail() error {
	collected, oldest := f.tail, f.oldest
	f.tail, f.tailing = nil, false
	for i := range collected {
		if err := f.handle(collected[(oldest+i)%len(collected)]); err != nil {
			return &handlerError{err}
		}
	}
	return nil
}
