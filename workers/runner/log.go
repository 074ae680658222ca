package runner

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/spawn"
)

const (
	// noteEvery is how many bytes of output may come between two notes: the last 4 KiB of a function's log, which are all
	// that its caller gets, then always have one.
	noteEvery = 2 << 10
	// noteAfter is for how long progress is not told again: a program may report each row.
	noteAfter = time.Second
	// tailBytes is how much of a program's output is looked at when it has failed.
	tailBytes = 32 << 10
)

// log is the function's log as a program writes it, with notes of what it has reported between the lines. It keeps what
// was printed, by stream, for the answer: of the log itself nobody gets more than its end.
type log struct {
	mu     sync.Mutex
	kept   []wire.Printed
	bytes  int // that kept takes in an answer
	lost   int // bytes that were kept no longer
	out    io.Writer
	tail   *spawn.LastBytes
	note   wire.FunctionNote
	trail  predictor.Trail // of the metric of its training
	since  int             // bytes that were printed after the last note
	inLine bool            // the last byte was no end of a line
	noted  time.Time
}

func newLog(out io.Writer) *log { return &log{out: out, tail: spawn.NewLastBytes(tailBytes)} }

// stream is one of the two that a program prints to.
type stream struct {
	log   *log
	error bool // it is the standard error
}

// Write never fails: a log that is lost stops no program.
func (s stream) Write(p []byte) (int, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.log.keep(p, s.error)
	s.log.print(p)
	return len(p), nil
}

// room is what is kept may take in an answer: as much as MaxPrinted of one stream.
var room = base64.StdEncoding.EncodedLen(wire.MaxPrinted)

// partOverhead is what a part takes in an answer beside its text.
const partOverhead = len(`{"error":true,"text":""},`)

// encoded is what a part takes in an answer: JSON has bytes in base64.
func encoded(part wire.Printed) int {
	return base64.StdEncoding.EncodedLen(len(part.Text)) + partOverhead
}

// keep keeps a part for the answer, and drops the first ones that there is no room for. The caller holds mu.
func (l *log) keep(p []byte, isError bool) {
	if last := len(l.kept) - 1; last >= 0 && l.kept[last].Error == isError && len(l.kept[last].Text) < noteEvery {
		l.bytes -= encoded(l.kept[last])
		l.kept[last].Text = append(l.kept[last].Text, p...)
	} else {
		l.kept = append(l.kept, wire.Printed{Error: isError, Text: bytes.Clone(p)})
	}
	for l.bytes += encoded(l.kept[len(l.kept)-1]); l.bytes > room; l.kept = l.kept[1:] {
		l.bytes -= encoded(l.kept[0])
		l.lost += len(l.kept[0].Text)
	}
}

// printed is what was printed, with a word on what is missing.
func (l *log) printed() []wire.Printed {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == 0 {
		return l.kept
	}
	missing := fmt.Sprintf("spillway: the first %s of the output are not kept: a function returns the last %s at most\n",
		quantity.Bytes(l.lost), quantity.Bytes(wire.MaxPrinted))
	return append([]wire.Printed{{Error: true, Text: []byte(missing)}}, l.kept...)
}

// print writes to the function's log. The caller holds mu.
func (l *log) print(p []byte) {
	_, _ = l.tail.Write(p)
	for rest := p; len(rest) > 0; {
		part := rest[:min(len(rest), noteEvery-l.since)]
		if end := bytes.LastIndexByte(part, '\n'); end >= 0 && len(rest) > len(part) {
			part = part[:end+1] // a note comes between lines where there are any
		}
		_, _ = l.out.Write(part)
		rest = rest[len(part):]
		l.inLine = part[len(part)-1] != '\n'
		if l.since += len(part); l.since >= noteEvery || l.since >= noteEvery/2 && !l.inLine {
			l.write()
		}
	}
}

// curve is how the metric of its training went.
func (l *log) curve() *predictor.Curve {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trail.Curve()
}

// progress notes a step.
func (l *log) progress(p wire.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note.Progress = &p
	l.trail.Tell(p.Step, p.Metrics, p.NotFinite, predictor.MostTrail)
	if time.Since(l.noted) >= noteAfter {
		l.write()
	}
}

// checkpoint notes a checkpoint, at once.
func (l *log) checkpoint(ref activities.Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note.Checkpoint = &ref
	l.write()
}

// write writes the note, if there is anything to tell. The caller holds mu.
func (l *log) write() {
	l.since = 0
	if l.note == (wire.FunctionNote{}) {
		return
	}
	line := l.note.Line()
	if l.inLine {
		line, l.inLine = "\n"+line, false
	}
	_, _ = io.WriteString(l.out, line)
	l.noted = time.Now()
}

// last is what was noted.
func (l *log) last() wire.FunctionNote {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.note
}
