package agent

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/spawn"
)

const (
	// markTimeout is how long the end of an attempt's output is waited for; only a stage that has closed its own output
	// takes so long.
	markTimeout = time.Second
	// outputTimeout bounds how long output is made durable before the attempt's Record is.
	outputTimeout = 5 * time.Second
)

// output takes the standard output and error of a child: the last of both is kept for errors, and all of it goes to the
// attempt that runs.
type output struct{ out, err stream }

func newOutput(logger *slog.Logger) *output {
	o := &output{}
	o.out.tail, o.err.tail = spawn.NewTail(logger), spawn.NewTail(logger)
	o.out.ended, o.err.ended = make(chan struct{}, 1), make(chan struct{}, 1)
	return o
}

// text is the last of what was printed: that of the standard output first, because last words are on the other one.
func (o *output) text() string {
	text := o.out.tail.Text()
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + o.err.tail.Text()
}

// reset forgets what was printed.
func (o *output) reset() {
	o.out.tail.Reset()
	o.err.tail.Reset()
}

// attach sends what comes from now on to an attempt, and keeps none of the secrets that mask has.
func (o *output) attach(to activities.Output, mask *wire.Mask) {
	o.out.attach(to.Stdout(), mask)
	o.err.attach(to.Stderr(), mask)
}

// flush passes on what was held back.
func (o *output) flush() {
	o.out.flush()
	o.err.flush()
}

// drain waits until all that the attempt wrote has come, which the child marks, and detaches it.
func (o *output) drain() {
	timer := time.NewTimer(markTimeout)
	defer timer.Stop()
	for _, s := range []*stream{&o.out, &o.err} {
		select {
		case <-s.ended:
		case <-timer.C:
			timer.Reset(0)
		}
		s.attach(nil, nil)
	}
}

// closeOutput makes an attempt's output durable.
func closeOutput(ctx context.Context, to activities.Output) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outputTimeout)
	defer cancel()
	return to.Close(ctx)
}

// stream is one of the two.
type stream struct {
	tail  *spawn.Tail
	ended chan struct{}

	mu   sync.Mutex
	sink io.Writer  // nil while no attempt runs
	rest []byte     // what may be the beginning of a mark
	mask *wire.Mask // of the attempt's secrets
	held []byte     // what may be the beginning of one
}

func (s *stream) attach(sink io.Writer, mask *wire.Mask) {
	s.flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sink, s.rest, s.mask = sink, nil, mask
	select {
	case <-s.ended: // the mark of an attempt that nobody waited for
	default:
	}
}

// Write never fails. It takes the marks of ends out.
func (s *stream) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := slices.Concat(s.rest, data)
	s.rest = nil
	for {
		before, after, found := bytes.Cut(text, []byte(wire.OutputEnd))
		if !found {
			break
		}
		s.pass(before)
		select {
		case s.ended <- struct{}{}:
		default:
		}
		text = after
	}
	keep := beginning(text, wire.OutputEnd)
	s.pass(text[:len(text)-keep])
	s.rest = bytes.Clone(text[len(text)-keep:])
	return len(data), nil
}

// flush passes on what was held back: no more comes that would make a secret of it.
func (s *stream) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(s.held)
	s.held = nil
}

func (s *stream) pass(text []byte) {
	if s.mask != nil {
		text, s.held = s.mask.Cut(append(s.held, text...))
		s.held = bytes.Clone(s.held)
	}
	s.tell(text)
}

// tell hands on what nothing is to be taken out of any more.
func (s *stream) tell(text []byte) {
	if len(text) == 0 {
		return
	}
	_, _ = s.tail.Write(text) // it never fails, as an Output's writers
	if s.sink != nil {
		_, _ = s.sink.Write(text)
	}
}

// beginning is how many bytes at the end of text are the beginning of mark.
func beginning(text []byte, mark string) int {
	for n := min(len(text), len(mark)-1); n > 0; n-- {
		if string(text[len(text)-n:]) == mark[:n] {
			return n
		}
	}
	return 0
}

// discarded is the Output of an agent that nobody gave one.
type discarded struct{}

// Stdout discards.
func (discarded) Stdout() io.Writer { return io.Discard }

// Stderr discards.
func (discarded) Stderr() io.Writer { return io.Discard }

// Close does nothing.
func (discarded) Close(context.Context) error { return nil }
