package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

const (
	// defaultBuffer holds the samples of 1,000 attempts for four seconds without a connection.
	defaultBuffer = 4096
	// ackWait is how long one try to publish a Record waits for its acknowledgement.
	ackWait = 5 * time.Second
	// answerWait is how long the sender waits for the acknowledgements of facts, where they are asked for: a server that
	// is up remembers as long whom to answer (see natsaccess), and one that is not ends the wait.
	answerWait = 30 * time.Second
	// flushWait bounds Close when its context has no deadline, and the flush in any case.
	flushWait = 5 * time.Second
)

// RecorderOptions configures a Recorder. The zero value is the default.
type RecorderOptions struct {
	// Buffer is how many facts Tell keeps while they cannot be sent; 0 means 4,096.
	Buffer int
	// Acknowledged has Tell's facts sent again that came too fast for the server, which costs an acknowledgement each. It
	// is for who tells little, and where each counts.
	Acknowledged bool
	// Dropped is called once for every fact that Tell drops; nil ignores it. It must not block.
	Dropped func()
	// Proof returns what shows that this host was given an attempt (wire.ProofHeader), empty where nothing does; nil shows
	// nothing, as in the process of the engine.
	Proof func(run, task string, attempt int) string
	// Logger takes debug lines, and warnings of facts that are Acknowledged and refused; nil discards them.
	Logger *slog.Logger
}

// Recorder publishes what venues have to tell the loop. Its methods are safe for concurrent use.
type Recorder struct {
	js      jetstream.JetStream
	options RecorderOptions
	facts   chan fact
	closing chan struct{}
	close   sync.Once
	abandon context.CancelFunc // ends send, whatever is left
	done    chan struct{}
	dropped atomic.Uint64

	opening sync.Mutex
	ends    *endsBook // nil until it is open

	starts starts
}

var _ activities.Recorder = (*Recorder)(nil)

// fact is one encoded event on its way out.
type fact struct {
	subject string
	data    []byte
	proof   string
	ordered bool // of its kind the last one holds: one that is sent again must not come after a newer
	start   *start
}

// NewRecorder returns a Recorder that publishes through js; nil options are the defaults. The caller closes it.
func NewRecorder(js jetstream.JetStream, options *RecorderOptions) *Recorder {
	r := &Recorder{js: js, closing: make(chan struct{}), done: make(chan struct{})}
	sending, abandon := context.WithCancel(context.Background())
	r.abandon = abandon
	if options != nil {
		r.options = *options
	}
	if r.options.Buffer <= 0 {
		r.options.Buffer = defaultBuffer
	}
	r.options.Logger = cmp.Or(r.options.Logger, slog.New(slog.DiscardHandler))
	r.facts = make(chan fact, r.options.Buffer)
	go r.send(sending)
	return r
}

// Record makes the line about a finished attempt durable and returns once the server has acknowledged it. It tries
// again, ever more slowly, until ctx ends; it gives up at once only when no further try can help. The same line may be
// recorded again without effect.
func (r *Recorder) Record(ctx context.Context, record predictor.Record) error {
	kind, data, err := wire.EncodeEvent(record)
	if err != nil {
		return fmt.Errorf("record attempt: %w", err)
	}
	id, proof := wire.RecordID(record), r.proof(record)
	for pause := retryLeast; ; pause = min(2*pause, retryMost) {
		err := r.publish(ctx, wire.LoopStream, id, message(wire.LoopSubject(kind), data, proof))
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || streams.IsFinal(err) || streams.IsRefused(err) {
			return fmt.Errorf("record attempt %s: %w", id, err)
		}
		r.options.Logger.DebugContext(ctx, "record attempt again", "id", id, "wait", pause, "error", err)
		if !wait.For(ctx, pause) {
			return fmt.Errorf("record attempt %s: %w", id, errors.Join(err, ctx.Err()))
		}
	}
}

// Held makes the line about the time for which a host was held durable, and tries once: whoever tells it tells the rest
// the next time.
func (r *Recorder) Held(ctx context.Context, held predictor.HostHeld) error {
	if err := r.once(ctx, wire.HostHeldID(held), held); err != nil {
		return fmt.Errorf("record that host %s was held: %w", held.Host, err)
	}
	return nil
}

// Started makes it durable that a supervisor has started anew, and tries once.
func (r *Recorder) Started(ctx context.Context, started predictor.HostStarted) error {
	if err := r.once(ctx, wire.HostStartedID(started), started); err != nil {
		return fmt.Errorf("record that host %s has started: %w", started.Host, err)
	}
	return nil
}

// once tries once to make an event durable.
func (r *Recorder) once(ctx context.Context, id string, event predictor.Event) error {
	kind, data, err := wire.EncodeEvent(event)
	if err != nil {
		return err
	}
	return r.publish(ctx, wire.LoopStream, id, message(wire.LoopSubject(kind), data, r.proof(event)))
}

// proof shows that this host was given the attempt that an event is of; empty where it is of none.
func (r *Recorder) proof(event predictor.Event) string {
	if r.options.Proof == nil {
		return ""
	}
	switch event := event.(type) {
	case predictor.Record:
		return r.options.Proof(event.Run, event.Task, event.Attempt)
	case predictor.AttemptStarted:
		return r.options.Proof(event.Run, event.Task, event.Attempt)
	case predictor.Sampled:
		return r.options.Proof(event.Run, event.Task, event.Attempt)
	default:
		return ""
	}
}

// message is what is published on a subject, with a proof where there is one.
func message(subject string, data []byte, proof string) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: data}
	if proof != "" {
		m.Header = nats.Header{wire.ProofHeader: {proof}}
	}
	return m
}

// Tell hands a fact to the sender and returns at once. A fact that finds the buffer full, that cannot be encoded or
// that comes after Close is dropped and counted.
func (r *Recorder) Tell(event predictor.Event) {
	kind, data, err := wire.EncodeEvent(event)
	if err != nil {
		r.drop("encode", err)
		return
	}
	select {
	case <-r.closing:
		r.drop(string(kind), errors.New("recorder is closed"))
		return
	default:
	}
	next := fact{wire.FactSubject(kind), data, r.proof(event), kind == wire.KindGoalChanged, r.starts.add(event)}
	select {
	case r.facts <- next:
	default:
		r.starts.remove(next.start)
		r.drop(string(kind), errors.New("buffer is full"))
	}
}

// Dropped returns how many facts Tell has dropped so far.
func (r *Recorder) Dropped() uint64 { return r.dropped.Load() }

// Close sends what Tell was given and flushes the connection, until ctx ends or, when it has no deadline, for five
// seconds; to flush it, which waits while the server is away, it takes no longer than that in any case. It leaves the
// connection open: it is the caller's.
func (r *Recorder) Close(ctx context.Context) error {
	r.close.Do(func() { close(r.closing) })
	brief, cancel := context.WithTimeout(ctx, flushWait)
	defer cancel()
	if _, bounded := ctx.Deadline(); !bounded {
		ctx = brief
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		r.abandon()
		<-r.done
		return fmt.Errorf("close recorder: %w", ctx.Err())
	}
	r.abandon()
	if r.options.Acknowledged { // what is acknowledged needs no flush
		return nil
	}
	if err := r.js.Conn().FlushWithContext(brief); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("close recorder: %w", err)
	}
	return nil
}

func (r *Recorder) publish(ctx context.Context, stream, id string, m *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, ackWait)
	defer cancel()
	return streams.Patiently(ctx, func() error {
		_, err := r.js.PublishMsg(ctx, m, jetstream.WithMsgID(id), jetstream.WithExpectStream(stream))
		return err
	})
}

// send publishes facts until Close, and then those that are left. JetStream stores what is published on the stream's
// subjects whether or not the sender asks for an acknowledgement; not asking is what keeps samples cheap.
func (r *Recorder) send(ctx context.Context) {
	defer close(r.done)
	for {
		select {
		case next := <-r.facts:
			r.sendSome(ctx, next)
		case <-r.closing:
			for {
				select {
				case next := <-r.facts:
					r.sendSome(ctx, next)
				default:
					return
				}
			}
		}
	}
}

// mostUnacknowledged is how many facts are sent before one is acknowledged, where that is asked for.
const mostUnacknowledged = 256

// sendSome sends a fact, and where they are acknowledged those that wait behind it as well.
func (r *Recorder) sendSome(ctx context.Context, next fact) {
	if !r.options.Acknowledged {
		if err := r.starts.publish(next.start, func() error {
			return r.js.Conn().PublishMsg(message(next.subject, next.data, next.proof))
		}); err != nil {
			r.drop(next.subject, err)
		}
		r.starts.remove(next.start)
		return
	}
	facts := []fact{next}
	for !next.ordered && len(facts) < mostUnacknowledged && len(r.facts) > 0 { // nobody else takes them
		next = <-r.facts
		facts = append(facts, next)
	}
	for pause := retryLeast; ; pause = min(2*pause, retryMost) {
		if facts = r.sendAll(ctx, facts); len(facts) == 0 {
			return
		}
		if !wait.For(ctx, pause) {
			break
		}
	}
	for _, lost := range facts {
		r.starts.remove(lost.start)
		r.drop(lost.subject, ctx.Err())
	}
}

// sendAll sends facts and returns those that came too fast for the server. One whose acknowledgement does not come may
// have been stored, and counts as sent: told twice, some would count twice.
func (r *Recorder) sendAll(ctx context.Context, facts []fact) (tooFast []fact) {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	futures := make([]jetstream.PubAckFuture, len(facts))
	for i, next := range facts {
		if err := r.starts.publish(next.start, func() (err error) {
			futures[i], err = r.js.PublishMsgAsync(message(next.subject, next.data, next.proof))
			return err
		}); err != nil {
			r.drop(next.subject, err)
		}
	}
	for i, next := range facts {
		var err error
		if futures[i] != nil {
			err = acknowledgement(ctx, futures[i])
		}
		if streams.IsTooFast(err) {
			tooFast = append(tooFast, next)
			continue
		}
		r.starts.remove(next.start)
		if refused, is := errors.AsType[*jetstream.APIError](err); is {
			r.options.Logger.WarnContext(ctx, "NATS refuses a fact", "subject", next.subject, "error", refused)
			r.drop(next.subject, err)
		}
	}
	return tooFast
}

// acknowledgement waits for what the server says of a fact, at most until ctx ends; nil when it says nothing by then.
func acknowledgement(ctx context.Context, future jetstream.PubAckFuture) error {
	select {
	case err := <-future.Err(): // also when ctx has ended
		return err
	default:
	}
	select {
	case <-future.Ok():
		return nil
	case err := <-future.Err():
		return err
	case <-ctx.Done():
		return nil
	}
}

func (r *Recorder) drop(what string, err error) {
	r.dropped.Add(1)
	r.options.Logger.Debug("drop fact", "what", what, "error", err)
	if r.options.Dropped != nil {
		r.options.Dropped()
	}
}
