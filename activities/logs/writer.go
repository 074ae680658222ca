package logs

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	usualFlush      = 200 * time.Millisecond
	usualRate       = quantity.MiB
	usualBurst      = 4 * quantity.MiB
	usualPerAttempt = 64 * quantity.MiB
	usualMemory     = 64 * quantity.MiB
	// leastBurst holds the longest line even if every other byte of it was no UTF-8 and became a character of three.
	leastBurst = 4 * maxLine
	// batchBytes is the most text in one message. Encoded as JSON it is at most six times as long, below NATS's usual
	// limit of 1 MiB.
	batchBytes = 64 << 10
	// ackWait is how long one try to publish waits for its acknowledgement.
	ackWait = 5 * time.Second
	// retryLeast and retryMost bound the wait between two tries to reach JetStream.
	retryLeast = 50 * time.Millisecond
	retryMost  = 2 * time.Second
)

// WriterOptions bounds what attempts can print. The zero value is the default. Each line counts as its text and 64
// bytes.
type WriterOptions struct {
	// FlushEvery is how long lines wait for others to share a message; 0 means 200 ms. A message is also sent when it has
	// 64 KiB.
	FlushEvery time.Duration
	// Rate is how much an attempt may print per second for long, and Burst how much beyond that at once; 0 means 1 MiB and
	// 4 MiB. A Burst is at least 64 KiB, and is also the most memory that one attempt's lines take.
	Rate, Burst quantity.Bytes
	// PerAttempt is how much of an attempt's output is kept; 0 means 64 MiB. It ends with a line that says so.
	PerAttempt quantity.Bytes
	// Memory is the most that the lines of all attempts take while they wait to be sent; 0 means 64 MiB.
	Memory quantity.Bytes
	// Proof returns what shows that this host was given the attempt (wire.ProofHeader), empty where nothing does; nil
	// shows nothing, as in the process of the engine.
	Proof func(run, task string, attempt int) string
	// Logger takes debug lines; nil discards them.
	Logger *slog.Logger
}

func (o WriterOptions) orUsual() WriterOptions {
	if o.FlushEvery <= 0 {
		o.FlushEvery = usualFlush
	}
	for _, bound := range []struct {
		value *quantity.Bytes
		usual quantity.Bytes
	}{{&o.Rate, usualRate}, {&o.Burst, usualBurst}, {&o.PerAttempt, usualPerAttempt}, {&o.Memory, usualMemory}} {
		if *bound.value <= 0 {
			*bound.value = bound.usual
		}
	}
	o.Burst = max(o.Burst, leastBurst)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return o
}

// Writer publishes what the attempts of one process print. Its methods are safe for concurrent use.
type Writer struct {
	js      jetstream.JetStream
	options WriterOptions
	held    atomic.Int64 // bytes of all lines that are not sent yet
	dropped atomic.Uint64
	failed  atomic.Uint64
}

// NewWriter returns a Writer that publishes through js. It holds nothing that has to be closed but the Lines that it
// gives out.
func NewWriter(js jetstream.JetStream, options WriterOptions) *Writer {
	return &Writer{js: js, options: options.orUsual()}
}

// Attempt returns the Lines of one attempt. The caller closes them.
func (w *Writer) Attempt(source wire.LogSource) *Lines {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Lines{
		writer: w, source: source, subject: wire.LogSubject(source), id: rand.Text(), cancel: cancel,
		full: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
		out: splitter{origin: wire.LogOut}, err: splitter{origin: wire.LogErr},
		limit: newLimiter(w.options.Rate, w.options.Burst, w.options.PerAttempt, time.Now()),
	}
	if w.options.Proof != nil {
		l.proof = w.options.Proof(source.Run, source.Task, source.Attempt)
	}
	go l.send(ctx)
	return l
}

// Dropped returns how many lines were left out so far: printed too fast, too many, or not sent in time.
func (w *Writer) Dropped() uint64 { return w.dropped.Load() }

// Failed returns how many tries to publish have failed so far; most are followed by one that does not.
func (w *Writer) Failed() uint64 { return w.failed.Load() }

// publish makes a message durable. It tries again, ever more slowly, until ctx ends or no further try can help.
func (w *Writer) publish(ctx context.Context, subject, id, proof string, message wire.Logs) error {
	data, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode logs: %w", err)
	}
	for pause := retryLeast; ; pause = min(2*pause, retryMost) {
		err := w.publishOnce(ctx, subject, id, proof, data)
		if err == nil {
			return nil
		}
		w.failed.Add(1)
		w.options.Logger.DebugContext(ctx, "publish logs", "subject", subject, "id", id, "error", err)
		if streams.IsFinal(err) {
			return err
		}
		if !wait.For(ctx, pause) {
			return err
		}
	}
}

// publishOnce asks for an acknowledgement, which holds an attempt's next message back: so the messages stay in order.
// While there is no connection it does not try, because the connection's own buffer is for what matters more.
func (w *Writer) publishOnce(ctx context.Context, subject, id, proof string, data []byte) error {
	switch connection := w.js.Conn(); {
	case connection.IsClosed():
		return nats.ErrConnectionClosed
	case !connection.IsConnected():
		return nats.ErrDisconnected
	}
	ctx, cancel := context.WithTimeout(ctx, ackWait)
	defer cancel()
	message := &nats.Msg{Subject: subject, Data: data}
	if proof != "" {
		message.Header = nats.Header{wire.ProofHeader: {proof}}
	}
	_, err := w.js.PublishMsg(ctx, message, jetstream.WithMsgID(id), jetstream.WithExpectStream(wire.LogStream))
	return err
}

// messageID names the message with this number of an attempt's Lines.
func messageID(lines string, number int) string { return lines + "/" + strconv.Itoa(number) }
