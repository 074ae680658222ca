package runs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/follow"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

const (
	// pollEvery is how often is asked for what the stream does not tell: hosts, attempts, and what stages use.
	pollEvery = 2 * time.Second
	// measuredRuns is of how many runs, the newest, it is asked for.
	measuredRuns = 8
	// usePoints divides a run's time into points, of which the last one is shown as what is used now.
	usePoints = 300
	// toldAlerts is how many alerts are asked for.
	toldAlerts = 20
)

func topCommand(t *tool.Tool) *cobra.Command {
	var once, asJSON bool
	command := &cobra.Command{
		Use:   "top [FLAGS]",
		Short: "Watch the whole stack: hosts, runs, and their stages",
		Long: `Watch the running stack on the whole terminal: what each host has granted and what the attempts on
it have taken at most; each run that goes on, with its goal, when it is expected to end (counted
from its start), what it has cost and is expected to cost; and each of their stages with its queue,
its slots as pool+function, the size of one attempt, and what is used of what is granted. It is
drawn anew whenever something changes. q or Ctrl-C leaves; the terminal is then as it was before.

Where the output is no terminal, and with --once or --json, the state is printed once.

The exit code is 0, or 1 when no stack runs or it has ended.`,
		Example: `  spillway top
  spillway top --once
  spillway top --json | jq '.runs[] | {run, cost_picodollars: .totals.cost_picodollars}'`,
		Args: flag.Positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return top(cmd.Context(), t, once, asJSON) },
	}
	command.Flags().BoolVar(&once, "once", false, "print the state once and do not watch")
	command.Flags().BoolVar(&asJSON, "json", false, "print the state once, as JSON")
	return command
}

func top(ctx context.Context, t *tool.Tool, once, asJSON bool) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	overview, err := survey(ctx, s.Client)
	if err != nil {
		return err
	}
	style, height := t.StyleOf(t.Out)
	switch {
	case asJSON:
		return t.WriteJSON(overview)
	case once || height == 0:
		for _, line := range display.Top(overview, style) {
			t.Say("%s\n", display.Own(line))
		}
		return nil
	}
	return watchStack(ctx, t, s.Client, overview)
}

// survey asks the engine for everything that is shown.
func survey(ctx context.Context, calls *client.Client) (display.Overview, error) {
	o := display.Overview{Now: time.Now()}
	stack, err := calls.Stack(ctx)
	if err != nil {
		return o, err
	}
	o.Version, o.Hosts, o.Functions = stack.Version, stack.Hosts, stack.Functions
	if o.Runs, err = calls.Runs(ctx, web.RunQuery{State: predictor.RunRunning, Limit: session.MostRuns}); err != nil {
		return o, err
	}
	if o.Alerts, err = calls.Alerts(ctx, toldAlerts); err != nil {
		return o, err
	}
	o.Running, o.Use = map[string][]timeline.Attempt{}, map[string]map[string]timeline.Held{}
	for _, run := range o.Runs[:min(measuredRuns, len(o.Runs))] {
		attempts, err := calls.Attempts(ctx, web.AttemptQuery{Run: run.Run, Outcome: ledger.Running})
		if gone(err) {
			continue
		}
		if err != nil {
			return o, err
		}
		stages, err := calls.Allocation(ctx, run.Run, usePoints)
		if gone(err) {
			continue
		}
		if err != nil {
			return o, err
		}
		o.Running[run.Run], o.Use[run.Run] = attempts, lastUse(stages)
	}
	return o, nil
}

// gone reports whether the engine says that there is nothing: a run was forgotten between two questions.
func gone(err error) bool {
	refused, ok := errors.AsType[*web.Error](err)
	return ok && refused.Status == http.StatusNotFound && !refused.NoRoute
}

// lastUse is what each stage held and used in the last whole part of its time.
func lastUse(stages []timeline.Allocation) map[string]timeline.Held {
	use := map[string]timeline.Held{}
	for _, stage := range stages {
		if last := len(stage.Points) - 1; last >= 0 {
			use[stage.Stage] = stage.Points[last]
		}
	}
	return use
}

// watcher shows a stack on the whole terminal. One goroutine uses it.
type watcher struct {
	tool     *tool.Tool
	screen   *display.FullScreen
	overview display.Overview
	runs     map[string]ledger.RunView
}

// news is what the goroutines of a watcher tell it. Exactly one of the fields is set.
type news struct {
	message *client.Message
	survey  *display.Overview
	lost    error // the engine does not answer
}

// watchStack shows the stack until somebody leaves.
func watchStack(ctx context.Context, t *tool.Tool, calls *client.Client, first display.Overview) (err error) {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	restore, err := readKeys(ctx, t, leave)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, restore()) }()
	screen, err := display.NewFullScreen(t.Out)
	if err != nil {
		return fmt.Errorf("draw on the terminal: %w", err)
	}
	defer func() { err = errors.Join(err, screen.Leave()) }()

	told, followed := make(chan news, 64), make(chan error, 1)
	var working sync.WaitGroup
	defer working.Wait()
	defer leave()
	tell := func(one news) error {
		select {
		case told <- one:
			return nil
		case <-ctx.Done():
			return client.ErrStop
		}
	}
	working.Go(func() {
		followed <- calls.Follow(ctx, "", func(message client.Message) error { return tell(news{message: &message}) })
	})
	working.Go(func() { pollStack(ctx, calls, tell) })
	w := &watcher{tool: t, screen: screen, overview: first, runs: map[string]ledger.RunView{}}
	for _, run := range first.Runs {
		w.runs[run.Run] = run
	}
	return w.watch(ctx, told, followed)
}

// pollStack tells what the stream does not, until ctx ends.
func pollStack(ctx context.Context, calls *client.Client, tell func(news) error) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		one := news{}
		found, err := survey(ctx, calls)
		if err != nil {
			one.lost = err
		} else {
			one.survey = &found
		}
		if tell(one) != nil {
			return
		}
	}
}

// watch draws whenever something was told, the terminal has another size, or time has passed.
func (w *watcher) watch(ctx context.Context, told <-chan news, followed <-chan error) error {
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	defer signal.Stop(resized)
	redraw := time.NewTicker(follow.RedrawEvery)
	defer redraw.Stop()
	changed := true
	var drawn time.Time
	for {
		if changed || time.Since(drawn) >= time.Second {
			if err := w.draw(); err != nil {
				return fmt.Errorf("draw on the terminal: %w", err)
			}
			drawn = time.Now()
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-followed:
			if ctx.Err() != nil {
				return nil // whoever watches has left
			}
			return err
		case <-resized:
			changed = true
		case <-redraw.C: // changes between two ticks are drawn once
			changed = w.takeAll(told)
		}
	}
}

// takeAll takes what was told so far, and reports whether there was anything.
func (w *watcher) takeAll(told <-chan news) (found bool) {
	for {
		select {
		case one := <-told:
			w.take(one)
			found = true
		default:
			return found
		}
	}
}

func (w *watcher) take(one news) {
	switch {
	case one.lost != nil:
		w.overview.Lost = "this is how it was: " + one.lost.Error()
	case one.survey != nil:
		runs := w.runs
		w.overview, w.runs = *one.survey, map[string]ledger.RunView{}
		for _, run := range w.overview.Runs {
			w.runs[run.Run] = run
			if newer, known := runs[run.Run]; known && newer.Actual.Seconds > run.Actual.Seconds {
				w.runs[run.Run] = newer
			}
		}
	case one.message.Run != nil:
		if run := *one.message.Run; display.Ended(run) {
			delete(w.runs, run.Run)
		} else {
			w.runs[run.Run] = run
		}
	case one.message.Alert != nil:
		w.overview.Alerts = slices.Insert(w.overview.Alerts, 0, *one.message.Alert)
	}
}

func (w *watcher) draw() error {
	w.overview.Now = time.Now()
	w.overview.Runs = slices.SortedFunc(maps.Values(w.runs), func(a, b ledger.RunView) int {
		return b.StartedAt.Compare(a.StartedAt)
	})
	style, height := w.tool.StyleOf(w.tool.Out)
	return w.screen.Draw(display.Top(w.overview, style), height)
}
