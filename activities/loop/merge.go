package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// readAhead is how many messages of each stream are read before they are handed on.
	readAhead = 256
	// otherWait is how long a message waits for those of the other stream that are stored and do not come.
	otherWait = 2 * time.Second
	// openTries is how often it is looked up when the first message was stored, and samplesAgain how old the samples are
	// at most that are handed on without an answer: those that a leader needs who follows another.
	openTries    = 6
	samplesAgain = 3 * time.Minute
)

// source is one stream that is followed.
type source struct {
	name    string
	subject func(wire.Kind) string // where a message of a kind lies
	kinds   []wire.Kind            // those that are read; nil is all
	next    uint64                 // the sequence that is handed on next
	since   time.Time              // what was stored before is left out; the zero time leaves nothing out
	lines   chan Line
	ended   chan error

	// What follows is the merger's.
	head   *Line
	behind bool // messages are stored that have not come
}

// read hands the messages of the stream on, in order and each once, until ctx ends, hand fails or the connection was
// closed for good.
func (s *source) read(ctx context.Context, js jetstream.JetStream, hand func(Line) error, logger *slog.Logger) error {
	position := func() jetstream.OrderedConsumerConfig {
		if s.next == 1 && !s.since.IsZero() {
			return jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &s.since}
		}
		return jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: s.next}
	}
	return tail(ctx, js, s.name, position, func(raw jetstream.Msg) error {
		metadata, err := raw.Metadata()
		if err != nil {
			return fmt.Errorf("read where a message is: %w", err)
		}
		sequence := metadata.Sequence.Stream
		if sequence < s.next {
			return nil // delivered again after a reset
		}
		s.next = sequence + 1
		return hand(Line{
			Sequence: sequence, Stored: metadata.Timestamp, More: metadata.NumPending > 0, Message: s.decode(ctx, raw,
				sequence, logger),
		})
	}, logger)
}

// decode reads a message; the zero Message of one that is not wanted, or that cannot be read.
func (s *source) decode(ctx context.Context, raw jetstream.Msg, sequence uint64, logger *slog.Logger) wire.Message {
	if s.kinds != nil && !slices.ContainsFunc(s.kinds,
		func(kind wire.Kind) bool { return raw.Subject() == s.subject(kind) }) {
		return wire.Message{}
	}
	message, err := wire.DecodeMessage(raw.Data())
	if err == nil && raw.Subject() != s.subject(message.Kind()) { // the subject is what its sender had a right to
		err = fmt.Errorf("it says %s", message.Kind())
	}
	if err != nil {
		logger.DebugContext(ctx, "skip message", "sequence", sequence, "subject", raw.Subject(), "error", err)
		return wire.Message{}
	}
	return message
}

// merger hands on the messages of two streams in the order in which the server stored them.
type merger struct {
	facts, samples *source
	exact          bool   // it was said with which sample to begin
	before         uint64 // the sequence of the last message of the loop's stream that was handed on
	handle         func(Line) error
}

// newMerger returns a merger of facts and of the samples that are of these kinds; nil is all. Sample is the sequence of
// the first sample; 0 where the time of the first fact decides.
func newMerger(facts *source, sample uint64, kinds []wire.Kind) *merger {
	samples := &source{name: wire.SampleStream, next: max(sample, 1), subject: wire.FactSubject, kinds: kinds}
	return &merger{facts: facts, samples: samples, exact: sample > 0, before: facts.next - 1}
}

// read is that of a source, for both.
func (m *merger) read(ctx context.Context, js jetstream.JetStream, handle func(Line) error, logger *slog.Logger) error {
	reading, stop := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer stop()
	m.handle = handle
	m.open(ctx, js, logger)
	for _, s := range []*source{m.facts, m.samples} {
		s.lines, s.ended = make(chan Line, readAhead), make(chan error, 1)
		hand := func(next Line) error {
			select {
			case s.lines <- next:
				return nil
			case <-reading.Done():
				return reading.Err()
			}
		}
		readers.Go(func() { s.ended <- s.read(reading, js, hand, logger) })
	}
	return m.run(ctx)
}

// open looks up what is stored, and when the first message was that is to be handed on. Who begins at the oldest needs
// no answer; who goes on behind a checkpoint must not be handed the samples of hours again that are in it. So it is
// asked a few times, and without an answer samples begin samplesAgain ago.
func (m *merger) open(ctx context.Context, js jetstream.JetStream, logger *slog.Logger) {
	pause := retryLeast
	for try := 1; ; try++ {
		err := m.lookUp(ctx, js)
		if err == nil || m.facts.next == 1 {
			return
		}
		logger.DebugContext(ctx, "look up when a message was stored", "sequence", m.facts.next, "error", err)
		if try == openTries || !wait.For(ctx, pause) {
			m.begin(time.Now().Add(-samplesAgain))
			return
		}
		pause = min(2*pause, retryMost)
	}
}

// lookUp is one try of open.
func (m *merger) lookUp(ctx context.Context, js jetstream.JetStream) error {
	lines, err := js.Stream(ctx, m.facts.name)
	if err != nil {
		return err
	}
	info := lines.CachedInfo()
	m.facts.behind = info.State.LastSeq >= m.facts.next && info.State.Msgs > 0
	switch {
	case m.facts.next <= max(info.State.FirstSeq, 1):
	case !m.facts.behind:
		m.begin(info.TimeStamp)
	default:
		first, err := lines.GetMsg(ctx, m.facts.next, jetstream.WithGetMsgSubject(wire.LoopSubjects))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound): // those behind it were deleted
			m.facts.behind = false
			m.begin(info.TimeStamp)
		case err != nil:
			return err
		default:
			m.begin(first.Time)
		}
	}
	if samples, err := js.Stream(ctx, m.samples.name); err == nil { // without an answer nothing is waited for
		state := samples.CachedInfo().State
		m.samples.next = min(m.samples.next, state.LastSeq+1) // a server that lost the last gives their sequences anew
		m.samples.behind = state.Msgs > 0 && state.LastSeq >= m.samples.next && state.LastTime.After(m.samples.since)
	}
	return nil
}

// begin says that the samples begin with those that were stored at a time, unless it was said with which they do.
func (m *merger) begin(since time.Time) {
	if !m.exact {
		m.samples.since = since
	}
}

// run hands messages on until ctx ends, handle fails, or the loop's stream cannot be read any more; it returns why.
func (m *merger) run(ctx context.Context) error {
	patience := time.NewTimer(otherWait)
	defer patience.Stop()
	for {
		if s := m.due(); s != nil {
			if err := m.hand(s); err != nil {
				return err
			}
			patience.Reset(otherWait)
			continue
		}
		var facts, samples <-chan Line // whose message is there already is not read
		if m.facts.head == nil {
			facts = m.facts.lines
		}
		if m.samples.head == nil {
			samples = m.samples.lines
		}
		select {
		case next := <-facts:
			m.facts.head, m.facts.behind = &next, next.More
		case next := <-samples:
			m.samples.head, m.samples.behind = &next, next.More
		case <-patience.C:
			m.facts.behind, m.samples.behind = false, false
			patience.Reset(otherWait)
		case err := <-m.facts.ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// due is the source whose message is the next; nil while it is not known which one that is.
func (m *merger) due() *source {
	facts, samples := m.facts.head, m.samples.head
	switch {
	case facts != nil && samples != nil:
		if samples.Stored.Before(facts.Stored) {
			return m.samples
		}
		return m.facts
	case facts != nil && !m.samples.behind:
		return m.facts
	case samples != nil && !m.facts.behind:
		return m.samples
	default:
		return nil
	}
}

// hand hands on the message that has come from s.
func (m *merger) hand(s *source) error {
	next := *s.head
	s.head = nil
	if s == m.facts {
		m.before = next.Sequence
	}
	if s == m.samples {
		next.Sample = next.Sequence
	}
	next.Sequence = m.before
	return m.handle(next)
}
