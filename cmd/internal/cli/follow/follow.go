// Package follow shows a run while it goes on, and says how it has ended.
package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/predictor"
)

const (
	// RedrawEvery is how often the live display is drawn when nothing happens: the elapsed time moves.
	RedrawEvery = 250 * time.Millisecond
	// deadEvery is how often a run that has not started is looked for among the dead letters.
	deadEvery = 2 * time.Second
)

// View shows one run while it goes on. One goroutine calls it.
type View interface {
	// Take shows a message of the stream, redraw the state as time passes, and clear leaves the terminal to others.
	Take(message client.Message)
	Redraw()
	Clear()
	// Complete is told everything once the run has ended.
	Complete(model display.Model)
	// Known is what was told so far.
	Known() display.Model
}

// Viewer is a view of stages and decisions: redrawn in place on a terminal, as appended lines elsewhere.
type Viewer struct {
	tool   *tool.Tool
	out    io.Writer
	model  display.Model
	screen *display.Screen // nil when lines are appended
	log    *display.Log
	lines  int // how many were appended
}

// NewViewer returns a view that writes to out.
func NewViewer(t *tool.Tool, s *session.Session, out io.Writer) *Viewer {
	v := &Viewer{
		tool: t, out: out, log: display.NewRunLog(),
		model: display.Model{
			Now: time.Now(), Page: s.Stack.Addresses.HTTP, TemporalUI: s.Stack.Addresses.TemporalUI,
			HostPrice: s.Stack.HostPricePerHour(), Own: s.Engine != nil,
		},
	}
	if tool.IsTerminal(out) {
		v.screen = display.NewScreen(out)
	}
	return v
}

// Known is what was told so far.
func (v *Viewer) Known() display.Model { return v.model }

// said reports whether lines are left above what is written next.
func (v *Viewer) said() bool { return v.out == v.tool.Out && v.lines > 0 }

// Take shows a message of the stream.
func (v *Viewer) Take(message client.Message) {
	v.model.Away = message.Away
	switch {
	case message.Away && v.screen == nil:
		v.append(display.Away)
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
			v.append(v.log.Alert(*message.Alert)...)
		}
	}
}

// Complete says what the stream did not, because it ended with the run: late decisions, and the end.
func (v *Viewer) Complete(model display.Model) {
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

func (v *Viewer) append(lines ...string) {
	for _, line := range lines {
		display.Printf(v.out, "%s\n", display.Own(line))
		v.lines++
	}
}

// Redraw draws the run as it is now, on a terminal.
func (v *Viewer) Redraw() {
	v.model.Now = time.Now()
	if v.screen == nil || v.model.Run.Run == "" {
		return
	}
	style, height := v.tool.StyleOf(v.out)
	_ = v.screen.Draw(display.Live(v.model, style), height)
}

// Clear leaves the terminal to others.
func (v *Viewer) Clear() {
	if v.screen != nil {
		_ = v.screen.Clear()
	}
}

// errDetached says that the run goes on without us.
var errDetached = errors.New("interrupted")

// ToEnd shows the run that an event starts until it has ended, and returns everything about it.
func ToEnd(
	ctx context.Context, t *tool.Tool, s *session.Session, published web.Published, viewer View, interrupted OnInterrupt,
) (display.Model, error) {
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	messages, ended := make(chan client.Message, 64), make(chan error, 1)
	var working sync.WaitGroup
	working.Go(func() {
		ended <- s.Client.Follow(following, published.Run, func(message client.Message) error {
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

	loop := &followLoop{tool: t, session: s, published: published, viewer: viewer, interrupted: interrupted}
	err := loop.wait(ctx, messages)
	viewer.Clear()
	if err != nil {
		return display.Model{}, err
	}
	if err := <-ended; err != nil {
		return display.Model{}, unfollowed(published.Run, err)
	}
	model, err := Fetch(context.WithoutCancel(ctx), s, published.Run, viewer.Known())
	if err != nil {
		return display.Model{}, err
	}
	viewer.Complete(model)
	return model, nil
}

// unfollowed says of a run whose stack is gone that it is not lost.
func unfollowed(run string, err error) error {
	if !errors.Is(err, client.ErrUnreachable) {
		return err
	}
	return fault.Advise(fmt.Errorf("run %s cannot be followed any more: %w", run, err),
		fmt.Sprintf("it is not lost: start the stack again with `spillway dev` and it goes on; "+
			"`spillway show %s --follow` shows it", run))
}

// Fetch completes a model with what may have come after the last message.
func Fetch(ctx context.Context, s *session.Session, run string, model display.Model) (display.Model, error) {
	view, err := s.Client.Run(ctx, run)
	if err != nil {
		return model, err
	}
	decisions, err := s.Client.Decisions(ctx, run)
	if err != nil {
		return model, err
	}
	model.Now, model.Run, model.Decisions = time.Now(), view, decisions
	if view.State == predictor.RunSucceeded || view.State == predictor.RunRunning {
		if answer, err := s.Client.Frontier(ctx, run, nil); err == nil { // an older engine tells none
			model.WhatIf = &answer
		}
	}
	return model, nil
}

// followLoop waits for messages, interrupts and time.
type followLoop struct {
	tool      *tool.Tool
	session   *session.Session
	published web.Published
	viewer    View

	interrupted OnInterrupt
}

// OnInterrupt says what becomes of a run of a running stack when whoever follows it presses Ctrl-C.
type OnInterrupt bool

// What becomes of it: it goes on, or is cancelled.
const (
	Leave  OnInterrupt = false
	Cancel OnInterrupt = true
)

// wait shows messages until their channel is closed.
func (l *followLoop) wait(ctx context.Context, messages <-chan client.Message) error {
	redraw, dead := time.NewTicker(RedrawEvery), time.NewTicker(deadEvery)
	defer redraw.Stop()
	defer dead.Stop()
	var engineDone <-chan struct{}
	if l.session.Engine != nil {
		engineDone = l.session.Engine.Done()
	}
	var deadline <-chan time.Time
	interrupted := ctx.Done()
	for {
		select {
		case message, open := <-messages:
			if !open {
				return nil
			}
			l.viewer.Take(message)
			l.viewer.Redraw()
		case <-redraw.C:
			l.viewer.Redraw()
		case <-dead.C:
			if err := l.dead(ctx); err != nil {
				return err
			}
		case <-engineDone:
			return errors.Join(errors.New("the stack ended before the run"), l.session.Engine.Err())
		case <-interrupted:
			if err := l.interrupt(ctx); err != nil {
				return err
			}
			interrupted, deadline = nil, time.After(cancelLimit)
		case <-l.tool.Deps.Interrupted:
			return l.abandon()
		case <-deadline:
			return l.abandon()
		}
	}
}

// interrupt cancels the run of a stack of our own, which nobody else knows of, and those that end with whoever follows
// them.
func (l *followLoop) interrupt(ctx context.Context) error {
	if l.session.Engine == nil && l.interrupted == Leave {
		return l.abandon()
	}
	l.viewer.Clear()
	again := "stops at once"
	if l.session.Engine == nil {
		again = "does not wait for its end"
	}
	l.tool.Complain("cancelling run %s (Ctrl-C again %s)\n", l.published.Run, again)
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelLimit)
	defer cancel()
	if err := l.session.Client.Cancel(limited, l.published.Run); err != nil {
		return fmt.Errorf("cancel run %s: %w", l.published.Run, err)
	}
	return nil
}

func (l *followLoop) abandon() error {
	hint := fmt.Sprintf("it goes on; `spillway show %s --follow` shows it, `spillway cancel %s` ends it", l.published.Run,
		l.published.Run)
	if l.session.Engine != nil {
		hint = "it has not ended, and is cancelled when a stack is started on this state directory again"
	}
	return fault.Advise(fmt.Errorf("%w while run %s goes on", errDetached, l.published.Run), hint)
}

// dead returns an error when the event has not started the run because it is a dead letter.
func (l *followLoop) dead(ctx context.Context) error {
	if l.viewer.Known().Run.Run != "" || l.published.Event == "" {
		return nil
	}
	letters, err := l.session.Client.Dead(ctx, session.MostDead)
	if err != nil {
		return nil //nolint:nilerr // the stream tells when the engine is gone
	}
	for _, letter := range letters {
		if letter.Event == l.published.Event {
			return &fault.UsageError{
				Problem: "the event cannot start a run: " + letter.Reason,
				Hint:    "correct it; `spillway dead list` shows it",
			}
		}
	}
	return nil
}

// cancelLimit bounds how long a run of our own stack may take to end after it was cancelled: the usual grace of a
// command, and some more.
const cancelLimit = 15 * time.Second
