package logs

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/words"
)

// closeWait bounds Close when its context has no deadline.
const closeWait = 5 * time.Second

// Lines takes what one attempt prints. Its methods and those of its writers are safe for concurrent use.
//
// Printing never waits for the stream: what cannot be sent in time, or is more than the [WriterOptions] allow, is left
// out, and a line of its own says how much that was.
type Lines struct {
	writer  *Writer
	source  wire.LogSource
	subject string
	id      string
	proof   string // that this host was given the attempt; empty in the process of the engine
	cancel  context.CancelFunc
	full    chan struct{} // of length 1: there is enough for a message
	closing chan struct{}
	close   sync.Once
	done    chan struct{} // closed when nothing is sent any more
	lost    error         // why the last lines could not be sent; read after done is closed
	unsent  int           // how many those are

	mu       sync.Mutex // guards all below
	out, err splitter
	limit    limiter
	missing  missing
	ended    bool // it was said that nothing that follows is kept
	printed  bool // since the last tick
	closed   bool
	last     time.Time // the time of the newest line
	queue    []wire.LogLine
	held     int // bytes of queue and of what is being sent
	queued   int // bytes of queue
}

// Stdout returns the writer for the program's standard output. It never fails and never waits; after Close it takes and
// drops all.
func (l *Lines) Stdout() io.Writer { return printer{l, &l.out} }

// Stderr returns the writer for the program's standard error, and for the lines of the attempt's logger. It is as
// Stdout.
func (l *Lines) Stderr() io.Writer { return printer{l, &l.err} }

// Close sends what was printed, also a line without an end, until ctx ends or, when it has no deadline, for five
// seconds. An error says how many lines are lost. Whoever closes the Lines before telling of the attempt's end lets
// readers find all of them after it.
func (l *Lines) Close(ctx context.Context) error {
	l.close.Do(func() { close(l.closing) })
	defer l.cancel()
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, closeWait)
		defer cancel()
	}
	select {
	case <-l.done:
	case <-ctx.Done():
		l.cancel()
		<-l.done // soon, as its context has ended
	}
	if l.lost != nil {
		return fmt.Errorf("close the log of task %s, attempt %d: %s lost: %w", l.source.Task, l.source.Attempt,
			words.Count(l.unsent, "line"), l.lost)
	}
	return nil
}

// printer is one stream of the program.
type printer struct {
	lines *Lines
	split *splitter
}

func (p printer) Write(data []byte) (int, error) {
	l := p.lines
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return len(data), nil
	}
	p.split.write(data, time.Now(), l.add)
	if l.queued >= batchBytes {
		select {
		case l.full <- struct{}{}:
		default:
		}
	}
	return len(data), nil
}

// add keeps a line or counts it as missing.
func (l *Lines) add(line wire.LogLine) {
	l.printed = true
	cost := costOf(line)
	options := l.writer.options
	room := min(int(options.Burst)-l.held, int(options.Memory)-int(l.writer.held.Load()))
	admitted := l.limit.admit(cost, room, line.At)
	if admitted == kept {
		l.noteMissing(line.At)
		l.push(line)
		return
	}
	l.missing[admitted]++
	l.writer.dropped.Add(1)
	if admitted == tooMuch && !l.ended {
		l.noteMissing(line.At)
		l.ended = true
	}
}

// noteMissing says what was left out since the last note.
func (l *Lines) noteMissing(now time.Time) {
	if note := l.missing.note(l.writer.options); note != "" && !l.ended {
		l.push(wire.LogLine{At: now, Origin: wire.LogNote, Text: note})
	}
	l.missing = missing{}
}

func (l *Lines) push(line wire.LogLine) {
	line.At = line.At.Round(0).UTC()
	if line.At.Before(l.last) { // the host's clock was set back
		line.At = l.last
	}
	l.last = line.At
	cost := costOf(line)
	l.queue = append(l.queue, line)
	l.queued += cost
	l.held += cost
	l.writer.held.Add(int64(cost))
}

func costOf(line wire.LogLine) int { return len(line.Text) + lineOverhead }

// send publishes lines until Close, and then those that are left.
func (l *Lines) send(ctx context.Context) {
	defer close(l.done)
	ticker := time.NewTicker(l.writer.options.FlushEvery)
	defer ticker.Stop()
	number := 0
	for closing := false; !closing; {
		select {
		case <-ticker.C:
			l.tick(time.Now())
		case <-l.full:
		case <-l.closing:
			l.finish(time.Now())
			closing = true
		}
		for {
			batch, cost := l.take()
			if len(batch) == 0 {
				break
			}
			number++
			message := wire.Logs{Version: wire.Version, Source: l.source, Lines: batch}
			err := l.writer.publish(ctx, l.subject, messageID(l.id, number), l.proof, message)
			l.sent(len(batch), cost, err)
		}
	}
}

// tick tells what does not wait for the end of a line: redrawn ones, and what is missing when the program prints no
// more.
func (l *Lines) tick(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.printed {
		l.noteMissing(now)
	}
	l.printed = false
	l.out.tick(now, l.add)
	l.err.tick(now, l.add)
}

// finish takes the lines that have no end, and no more.
func (l *Lines) finish(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.out.finish(now, l.add)
	l.err.finish(now, l.add)
	l.noteMissing(now)
}

// take removes the lines of the next message from the queue.
func (l *Lines) take() (batch []wire.LogLine, cost int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for n < len(l.queue) && (n == 0 || cost+costOf(l.queue[n]) <= batchBytes) {
		cost += costOf(l.queue[n])
		n++
	}
	batch, l.queue = l.queue[:n:n], l.queue[n:]
	if len(l.queue) == 0 {
		l.queue = nil
	}
	l.queued -= cost
	return batch, cost
}

// sent gives the room of a message back; with an error its lines are missing.
func (l *Lines) sent(lines, cost int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held -= cost
	l.writer.held.Add(-int64(cost))
	if err == nil {
		return
	}
	l.writer.dropped.Add(uint64(lines))
	if l.closed {
		l.lost = err
		l.unsent += lines
		return
	}
	l.missing[noRoom] += lines
}
