package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
)

const (
	// redrawEvery is how often the live display is drawn when nothing happens: the elapsed time moves.
	redrawEvery = 250 * time.Millisecond
	// deadEvery is how often a run that has not started is looked for among the dead letters.
	deadEvery = 2 * time.Second
)

// view shows one run while it goes on. One goroutine calls it.
type view interface {
	// take shows a message of the stream, redraw the state as time passes, and clear leaves the terminal to others.
	take(message client.Message)
	redraw()
	clear()
	// complete is told everything once the run has ended.
	complete(model display.Model)
	// known is what was told so far.
	known() display.Model
}

// viewer is a view of stages and decisions: redrawn in place on a terminal, as appended lines elsewhere.
type viewer struct {
	tool   *tool
	out    io.Writer
	model  display.Model
	screen *display.Screen // nil when lines are appended
	log    *display.Log
	lines  int // how many were appended
}

func (t *tool) newViewer(session *session, out io.Writer) *viewer {
	v := &viewer{
		tool: t, out: out, log: display.NewRunLog(),
		model: display.Model{
			Now: time.Now(), Page: session.stack.Addresses.HTTP, TemporalUI: session.stack.Addresses.TemporalUI, HostPrice: session.stack.HostPricePerHour(),
		},
	}
	if isTerminal(out) {
		v.screen = display.NewScreen(out)
	}
	return v
}

func (v *viewer) known() display.Model { return v.model }

// said reports whether lines are left above what is written next.
func (v *viewer) said() bool { return v.out == v.tool.out && v.lines > 0 }

// take shows a message of the stream.
func (v *viewer) take(message client.Message) {
	switch {
	case message.Run != nil:
		v.model.Run = *message.Run
		if v.screen == nil && !display.Ended(*message.Run) { // complete says the end, after all decisions
			v.append(v.log.Run(*message.Run)...)
		}
	case message.Decision != nil:
		v.model.Decisions = append(v.model.Decisions, *message.Decision)
		if v.screen == nil {
			v.append(v.log.Decision(*message.Decision))
		}
	case message.Alert != nil && message.Alert.Run == v.model.Run.Run:
		v.model.Alerts = append(v.model.Alerts, *message.Alert)
		if v.screen == nil {
			v.append(v.log.Alert(*message.Alert))
		}
	}
}

// complete says what the stream did not, because it ended with the run: late decisions, and the end.
func (v *viewer) complete(model display.Model) {
	seen := map[string]bool{}
	for _, decision := range v.model.Decisions {
		seen[decision.ID] = true
	}
	v.model = model
	if v.screen != nil {
		return
	}
	lines := v.log.Run(model.Run)
	last := max(len(lines)-1, 0)
	v.append(lines[:last]...)
	for _, decision := range model.Decisions {
		if !seen[decision.ID] {
			v.append(v.log.Decision(decision))
		}
	}
	v.append(lines[last:]...)
}

func (v *viewer) append(lines ...string) {
	for _, line := range lines {
		printf(v.out, "%s\n", own(line))
		v.lines++
	}
}

func (v *viewer) redraw() {
	v.model.Now = time.Now()
	if v.screen == nil || v.model.Run.Run == "" {
		return
	}
	style, height := v.tool.styleOf(v.out)
	_ = v.screen.Draw(display.Live(v.model, style), height)
}

func (v *viewer) clear() {
	if v.screen != nil {
		_ = v.screen.Clear()
	}
}

// errDetached says that the run goes on without us.
var errDetached = errors.New("interrupted")

// followToEnd shows the run that an event starts until it has ended, and returns everything about it.
func (t *tool) followToEnd(ctx context.Context, session *session, published web.Published, viewer view, interrupted onInterrupt) (display.Model, error) {
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	messages, ended := make(chan client.Message, 64), make(chan error, 1)
	var working sync.WaitGroup
	working.Go(func() {
		ended <- session.client.Follow(following, published.Run, func(message client.Message) error {
			select {
			case messages <- message:
			case <-following.Done():
				return client.ErrStop
			}
			if message.Run != nil && display.Ended(*message.Run) {
				return client.ErrStop
			}
			return nil
		})
		close(messages)
	})
	defer working.Wait()
	defer stop()

	loop := &followLoop{tool: t, session: session, published: published, viewer: viewer, interrupted: interrupted}
	err := loop.wait(ctx, messages)
	viewer.clear()
	if err != nil {
		return display.Model{}, err
	}
	if err := <-ended; err != nil {
		return display.Model{}, err
	}
	model, err := t.fetch(context.WithoutCancel(ctx), session, published.Run, viewer.known())
	if err != nil {
		return display.Model{}, err
	}
	viewer.complete(model)
	return model, nil
}

// fetch completes a model with what may have come after the last message.
func (t *tool) fetch(ctx context.Context, session *session, run string, model display.Model) (display.Model, error) {
	view, err := session.client.Run(ctx, run)
	if err != nil {
		return model, err
	}
	decisions, err := session.client.Decisions(ctx, run)
	if err != nil {
		return model, err
	}
	model.Now, model.Run, model.Decisions = time.Now(), view, decisions
	return model, nil
}

// followLoop waits for messages, interrupts and time.
type followLoop struct {
	tool      *tool
	session   *session
	published web.Published
	viewer    view

	interrupted onInterrupt
}

// onInterrupt says what becomes of a run of a running stack when whoever follows it presses Ctrl-C.
type onInterrupt bool

const (
	leave     onInterrupt = false
	cancelRun onInterrupt = true
)

// wait shows messages until their channel is closed.
func (l *followLoop) wait(ctx context.Context, messages <-chan client.Message) error {
	redraw, dead := time.NewTicker(redrawEvery), time.NewTicker(deadEvery)
	defer redraw.Stop()
	defer dead.Stop()
	var engineDone <-chan struct{}
	if l.session.engine != nil {
		engineDone = l.session.engine.Done()
	}
	var deadline <-chan time.Time
	interrupted := ctx.Done()
	for {
		select {
		case message, open := <-messages:
			if !open {
				return nil
			}
			l.viewer.take(message)
			l.viewer.redraw()
		case <-redraw.C:
			l.viewer.redraw()
		case <-dead.C:
			if err := l.dead(ctx); err != nil {
				return err
			}
		case <-engineDone:
			return errors.Join(errors.New("the stack ended before the run"), l.session.engine.Err())
		case <-interrupted:
			if err := l.interrupt(ctx); err != nil {
				return err
			}
			interrupted, deadline = nil, time.After(cancelLimit)
		case <-l.tool.deps.Interrupted:
			return l.abandon()
		case <-deadline:
			return l.abandon()
		}
	}
}

// interrupt cancels the run of a stack of our own, which nobody else knows of, and those that end with whoever follows them.
func (l *followLoop) interrupt(ctx context.Context) error {
	if l.session.engine == nil && l.interrupted == leave {
		return l.abandon()
	}
	l.viewer.clear()
	again := "stops at once"
	if l.session.engine == nil {
		again = "does not wait for its end"
	}
	l.tool.complain("cancelling run %s (Ctrl-C again %s)\n", l.published.Run, again)
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelLimit)
	defer cancel()
	if err := l.session.client.Cancel(limited, l.published.Run); err != nil {
		return fmt.Errorf("cancel run %s: %w", l.published.Run, err)
	}
	return nil
}

func (l *followLoop) abandon() error {
	hint := fmt.Sprintf("it goes on; `spillway show %s --follow` shows it, `spillway cancel %s` ends it", l.published.Run, l.published.Run)
	if l.session.engine != nil {
		hint = "it has not ended, and is cancelled when a stack is started on this state directory again"
	}
	return &advised{fmt.Errorf("%w while run %s goes on", errDetached, l.published.Run), hint}
}

// dead returns an error when the event has not started the run because it is a dead letter.
func (l *followLoop) dead(ctx context.Context) error {
	if l.viewer.known().Run.Run != "" || l.published.Event == "" {
		return nil
	}
	letters, err := l.session.client.Dead(ctx, deadListed)
	if err != nil {
		return nil //nolint:nilerr // the stream tells when the engine is gone
	}
	for _, letter := range letters {
		if letter.Event == l.published.Event {
			return &usage{problem: "the event cannot start a run: " + letter.Reason, hint: "correct it; `spillway dead list` shows it"}
		}
	}
	return nil
}
