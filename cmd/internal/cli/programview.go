package cli

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
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
)

// outputLimit bounds how long the rest of a program's output is waited for after its run has ended.
const outputLimit = 10 * time.Second

// programView is a view of one command: what the program prints, as it comes, on the streams on which it printed it. Whatever else there is
// to say goes to standard error.
type programView struct {
	tool    *tool
	client  *client.Client
	printer *programPrinter
	life    context.Context //nolint:containedctx // the log is followed from the first message of a run to close
	end     context.CancelFunc
	most    int // how often the command may fail
	model   display.Model
	working sync.WaitGroup
	told    chan error // how the log ended
}

func (t *tool) newProgramView(ctx context.Context, session *session, most int, asJSON bool) *programView {
	v := &programView{
		tool: t, client: session.client, most: most, told: make(chan error, 1),
		printer: &programPrinter{out: stream{t.out, isTerminal(t.out)}, err: stream{t.err, isTerminal(t.err)}},
	}
	if asJSON {
		v.printer.out = v.printer.err
	}
	v.life, v.end = context.WithCancel(context.WithoutCancel(ctx))
	return v
}

// take begins to follow the log with the run's first message, and says why an attempt is followed by another.
func (v *programView) take(message client.Message) {
	if message.Alert != nil && message.Alert.Run == v.model.Run.Run {
		v.note("alert: %s", display.CleanLine(message.Alert.Message))
	}
	if message.Run == nil {
		return
	}
	before := v.model.Run
	v.model.Run = *message.Run
	if before.Run == "" {
		v.note("run %s started", message.Run.Run)
		query := logs.Query{Run: message.Run.Run}
		v.working.Go(func() { v.told <- v.client.Logs(v.life, query, true, v.printer.show) })
	}
	if again := display.Retry(before, v.model.Run, v.most); again != "" {
		v.note("%s", again)
	}
}

func (v *programView) note(format string, args ...any) {
	if !v.tool.quiet {
		v.printer.note("spillway: " + fmt.Sprintf(format, args...))
	}
}

func (*programView) redraw() {}

func (v *programView) clear() { v.printer.finish() }

func (v *programView) known() display.Model { return v.model }

// complete waits for the rest of the output.
func (v *programView) complete(model display.Model) {
	v.model = model
	select {
	case err := <-v.told:
		if err != nil && !errors.Is(err, context.Canceled) {
			v.tool.complain("spillway: a part of the output is missing: %v; `spillway logs %s` shows what is kept\n", err, model.Run.Run)
		}
	case <-time.After(outputLimit):
		v.tool.complain("spillway: the rest of the output does not come; `spillway logs %s` shows it\n", model.Run.Run)
	}
	v.printer.finish()
}

// close ends what complete has not.
func (v *programView) close() {
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

// show writes one line. On a terminal a line that the program draws again and again is drawn again, and control characters are left out;
// elsewhere text is written as it came.
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
