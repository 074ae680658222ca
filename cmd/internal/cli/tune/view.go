package tune

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/workflows/runs"
)

const (
	// askEvery is how often the engine is asked how the tuning stands, and askShare the most part of the time that it may
	// spend on answers: thousands of trials are told as a whole.
	askEvery = time.Second
	askShare = 0.1
	// sayEvery is how often lines that are appended say it, besides a best trial that is new.
	sayEvery = 10 * time.Second
	// mostFailures is how many failed trials are told one by one: where many fail, they fail alike.
	mostFailures = 3
)

// view shows a tuning while it goes on: redrawn in place on a terminal, as appended lines elsewhere.
type view struct {
	tool   *tool.Tool
	client *client.Client
	out    io.Writer
	screen *display.Screen // nil where lines are appended
	model  display.Model
	misses display.Misses

	life     context.Context //nolint:containedctx // the engine is asked from the first message of a run to close
	end      context.CancelFunc
	working  sync.WaitGroup
	news     chan runs.Tuning // holds the newest answer
	now      runs.Tuning
	said     time.Time // when a line said how it stands
	line     string    // what that was
	best     string
	failed   map[int]bool // trials whose failure was told; nil before the first answer
	expected bool
}

func newView(ctx context.Context, t *tool.Tool, s *session.Session, out io.Writer) *view {
	v := &view{tool: t, client: s.Client, out: out, news: make(chan runs.Tuning, 1)}
	if tool.IsTerminal(out) {
		v.screen = display.NewScreen(out)
	}
	v.life, v.end = context.WithCancel(context.WithoutCancel(ctx))
	return v
}

// Take begins to ask how the tuning stands with the run's first message.
func (v *view) Take(message client.Message) {
	if message.Alert != nil && message.Alert.Run == v.model.Run.Run && v.misses.News(*message.Alert) {
		v.say("alert: " + display.CleanLine(message.Alert.Message))
	}
	if message.Away {
		v.say(display.Away)
	}
	if message.Run == nil {
		return
	}
	first := v.model.Run.Run == ""
	v.model.Run = *message.Run
	if first {
		v.say("run " + message.Run.Run + " started")
		run := message.Run.Run
		v.working.Go(func() { v.ask(run) })
	}
	if !v.expected && !display.Ended(v.model.Run) {
		lines := v.misses.Expected(v.model.Run)
		v.expected = len(lines) > 0
		v.say(lines...)
	}
}

// ask keeps the newest answer in news, until the view is closed.
func (v *view) ask(run string) {
	for {
		asked := time.Now()
		found, err := v.client.Tunings(v.life, run)
		if err == nil && len(found) > 0 { // else it has not begun, or is asked again
			select {
			case <-v.news: // older
			default:
			}
			v.news <- found[0]
		}
		pause := max(askEvery, time.Duration(float64(time.Since(asked))/askShare))
		if !wait.For(v.life, pause) {
			return
		}
	}
}

// Redraw shows what is new.
func (v *view) Redraw() {
	select {
	case v.now = <-v.news:
		v.tell(time.Now())
	default:
	}
	if v.screen == nil || v.now.Begun == 0 {
		return
	}
	style, height := v.tool.StyleOf(v.out)
	_ = v.screen.Draw(display.TuningLive(v.now, style), height)
}

// tell says what is new in lines: failures, a best trial, and now and then how it stands. On a terminal the last two
// are drawn.
func (v *view) tell(at time.Time) {
	if v.failed == nil {
		v.failed = map[int]bool{}
		v.say(display.TuningPlan(v.now))
	}
	for _, trial := range v.now.Trials {
		if trial.State == runs.TrialFailed && !v.failed[trial.Number] && len(v.failed) < mostFailures {
			v.failed[trial.Number] = true
			v.say(display.TrialFailed(trial))
		}
	}
	if v.screen != nil {
		return
	}
	if best := display.TuningBest(v.now); best != v.best {
		v.best = best
		v.say("best so far: " + best)
	}
	if line := display.TuningNow(v.now); line != v.line && at.Sub(v.said) >= sayEvery {
		v.line, v.said = line, at
		v.say(line)
	}
}

// say appends lines, above what is drawn.
func (v *view) say(lines ...string) {
	v.Clear()
	for _, line := range lines {
		display.Printf(v.out, "%s\n", line)
	}
}

// Clear leaves the terminal to others.
func (v *view) Clear() {
	if v.screen != nil {
		_ = v.screen.Clear()
	}
}

// Complete is told everything once the run has ended.
func (v *view) Complete(model display.Model) {
	v.close()
	v.model = model
}

// Known is what was told so far.
func (v *view) Known() display.Model { return v.model }

func (v *view) close() {
	v.end()
	v.working.Wait()
}
