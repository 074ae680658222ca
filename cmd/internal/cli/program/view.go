package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// outputLimit bounds how long the rest of a program's output is waited for after its run has ended.
const outputLimit = 10 * time.Second

// waitLimit is how long a command may wait for its first attempt before that is worth a word.
const waitLimit = 10 * time.Second

// lookLimit bounds how long the display waits for why an attempt was lost.
const lookLimit = 2 * time.Second

// View is a view of one command: what the program prints, as it comes, on the streams on which it printed it. Whatever
// else there is to say goes to standard error.
type View struct {
	tool    *tool.Tool
	client  *client.Client
	printer *programPrinter
	life    context.Context //nolint:containedctx // the log is followed from the first message of a run to close
	end     context.CancelFunc
	most    int // how often the command may fail
	model   display.Model
	since   time.Time // the run's first message came
	waits   bool      // it was said that no attempt has begun
	// expected says that it was said when the run is expected to end.
	expected bool
	misses   display.Misses
	retries  display.Retries
	working  sync.WaitGroup
	told     chan error // how the log ended
}

// NewView returns the view of a command that may fail most times; with asJSON, standard output is left to the report.
func NewView(ctx context.Context, t *tool.Tool, s *session.Session, most int, asJSON bool) *View {
	v := &View{
		tool: t, client: s.Client, most: most, told: make(chan error, 1),
		printer: &programPrinter{out: stream{t.Out, tool.IsTerminal(t.Out)}, err: stream{t.Err, tool.IsTerminal(t.Err)}},
	}
	if asJSON {
		v.printer.out = v.printer.err
	}
	v.life, v.end = context.WithCancel(context.WithoutCancel(ctx))
	return v
}

// Take begins to follow the log with the run's first message, and says once when the run is expected to end and for how
// much, and why an attempt is followed by another.
func (v *View) Take(message client.Message) {
	if message.Alert != nil && message.Alert.Run == v.model.Run.Run && v.misses.News(*message.Alert) {
		v.note("alert: %s", display.CleanLine(message.Alert.Message))
	}
	if message.Away {
		v.note("%s", display.Away)
	}
	if message.Run == nil {
		return
	}
	before := v.model.Run
	v.model.Run = *message.Run
	if before.Run == "" {
		v.since = time.Now()
		v.note("run %s started", message.Run.Run)
		query := logs.Query{Run: message.Run.Run}
		v.working.Go(func() { v.told <- v.client.Logs(v.life, query, true, v.printer.show) })
	}
	var lost timeline.Attempt
	if display.Lost(before, v.model.Run) {
		lost = v.lost()
	}
	for _, again := range v.retries.Tell(before, v.model.Run, v.most, lost) {
		v.note("%s", again)
	}
	if !v.expected && !display.Ended(v.model.Run) {
		lines := v.misses.Expected(v.model.Run)
		v.expected = len(lines) > 0
		for _, line := range lines {
			v.note("%s", line)
		}
	}
}

// lost is the attempt that was lost last; the zero Attempt when the engine does not tell.
func (v *View) lost() timeline.Attempt {
	ctx, cancel := context.WithTimeout(v.life, lookLimit)
	defer cancel()
	lost, err := v.client.Attempts(ctx, web.AttemptQuery{Run: v.model.Run.Run, Outcome: string(predictor.Lost)})
	if err != nil || len(lost) == 0 {
		return timeline.Attempt{}
	}
	return lost[len(lost)-1]
}

func (v *View) note(format string, args ...any) {
	if !v.tool.Quiet {
		v.printer.note("spillway: " + fmt.Sprintf(format, args...))
	}
}

// Redraw says once that the command waits, where it does for long: what a program prints is shown once, too.
func (v *View) Redraw() {
	if v.waits || !display.Waits(v.model.Run) || time.Since(v.since) < waitLimit {
		return
	}
	v.waits = true
	v.note("no attempt has begun yet; `spillway show %s --why` says what it waits for", v.model.Run.Run)
}

// Clear ends a line that has no end.
func (v *View) Clear() { v.printer.finish() }

// Known is what was told so far.
func (v *View) Known() display.Model { return v.model }

// Complete waits for the rest of the output.
func (v *View) Complete(model display.Model) {
	v.model = model
	select {
	case err := <-v.told:
		if err != nil && !errors.Is(err, context.Canceled) {
			v.tool.Complain("spillway: a part of the output is missing: %v; `spillway logs %s` shows what is kept\n", err,
				model.Run.Run)
		}
	case <-time.After(outputLimit):
		v.tool.Complain("spillway: the rest of the output does not come; `spillway logs %s` shows it\n", model.Run.Run)
	}
	v.printer.finish()
}

// Close ends what complete has not.
func (v *View) Close() {
	v.end()
	v.working.Wait()
}

// stream is one of our own.
type stream struct {
	io.Writer

	terminal bool
}

// programPrinter writes lines of a program to the streams on which it has printed them. It may be used concurrently.
type programPrinter struct {
	mutex    sync.Mutex
	out, err stream
	open     *stream // has a line without its end: the state of a progress bar; nil when none has
}

// show writes one line. On a terminal a line that the program draws again and again is drawn again, and control
// characters are left out; elsewhere text is written as it came.
func (p *programPrinter) show(line logs.Line) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	to := &p.out
	text := line.Text
	switch line.Origin {
	case wire.LogErr:
		to = &p.err
	case wire.LogNote:
		to, text = &p.err, "spillway: "+text
	case wire.LogOut:
	}
	if line.Cut {
		text += " (cut)"
	}
	if !to.terminal {
		return p.write(to, text+"\n")
	}
	text = display.CleanLine(text)
	if line.Redrawn {
		if p.open != to {
			p.endLine()
		}
		p.open = to
		return p.write(to, "\r\x1b[K"+text)
	}
	p.endLine()
	return p.write(to, text+"\n")
}

// note writes a line of ours.
func (p *programPrinter) note(text string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.endLine()
	_ = p.write(&p.err, text+"\n") // a display that is gone stops no run
}

// finish ends a line that has no end.
func (p *programPrinter) finish() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.endLine()
}

func (p *programPrinter) endLine() {
	if p.open != nil {
		_ = p.write(p.open, "\n") // a display that is gone stops no run
		p.open = nil
	}
}

func (p *programPrinter) write(to *stream, text string) error {
	_, err := io.WriteString(to, text)
	return err
}
