package engine

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/telemetry"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// lineOf is an event as it lies in the loop's stream.
func lineOf(sequence uint64, event predictor.Event) loop.Line {
	return loop.Line{Sequence: sequence, Stored: event.When(), Message: loopwire.Message{Event: event}}
}

// waits says what the observer waits for; empty when nothing.
func waits(o *observer) string {
	if err := o.starting(); err != nil {
		return err.Error()
	}
	return ""
}

func TestAnObserverIsReadyWhenItHasCaughtUpAndTheLeaderHasDecided(t *testing.T) {
	t.Parallel()
	type step struct {
		sequence uint64 // of a message; 0 for a plan that a new term claims
		leads    bool
		want     string // part of what is waited for then
	}
	for name, c := range map[string]struct {
		before extent
		steps  []step
	}{
		"an empty stream": {extent{}, []step{{want: "first plan"}, {leads: true}, {sequence: 1}}},
		"messages, a decision": {extent{11, 12}, []step{
			{sequence: 11, want: "1 of 2"},
			{sequence: 12, want: "first plan"},
			{want: "first plan"},
			{leads: true},
			{leads: true},
			{},
		}},
		"a decision, messages": {extent{1, 2}, []step{
			{leads: true, want: "0 of 2"},
			{sequence: 1, want: "1 of 2"},
			{sequence: 2},
			{sequence: 3},
		}},
		"the last message was deleted meanwhile": {extent{1, 12_345}, []step{
			{leads: true, want: "0 of 12,345"}, {sequence: 12_344, want: "12,344 of 12,345"}, {sequence: 12_346},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newObserver(telemetry.NewMetrics(), true, c.before, slog.New(slog.DiscardHandler))
			for _, s := range c.steps {
				if s.leads {
					o.taking()
				} else if s.sequence == 0 {
					o.obey(t.Context(), predictor.Plan{Term: 4})
				} else if err := o.apply(lineOf(s.sequence, predictor.RunStarted{Run: "r"})); err != nil {
					t.Fatal(err)
				}
				got := waits(o)
				if s.want == "" && got != "" || !strings.Contains(got, s.want) {
					t.Errorf("after %+v: waits for %q, want %q", s, got, s.want)
				}
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := o.whole(ended); err != nil {
				t.Errorf("whole, once all was taken in: %v", err)
			}
		})
	}
}

// TestSamplesMoveNoPosition hands an observer samples, which have the sequence of the message before them: 0 where
// there is none.
func TestSamplesMoveNoPosition(t *testing.T) {
	t.Parallel()
	o := newObserver(telemetry.NewMetrics(), true, extent{3, 4}, slog.New(slog.DiscardHandler))
	o.taking()
	sample := loopwire.Message{Event: predictor.Sampled{
		Run: "r", Stage: predictor.StageID{Name: "s"}, Task: "t",
		Attempt: 1, Step: 1,
	}}
	for _, c := range []struct {
		sequence uint64
		sample   uint64
		message  loopwire.Message
		current  bool
	}{
		{0, 1, sample, false},
		{0, 2, loopwire.Message{}, false},
		{3, 0, loopwire.Message{Event: predictor.RunStarted{Run: "r"}}, false},
		{3, 3, sample, false},
		{4, 0, loopwire.Message{}, true},
		{4, 4, sample, true},
	} {
		if err := o.apply(loop.Line{Sequence: c.sequence, Sample: c.sample, Message: c.message}); err != nil {
			t.Fatal(err)
		}
		if current := waits(o) == ""; current != c.current {
			t.Errorf("after %d, %+v: current %v, want %v", c.sequence, c.message, current, c.current)
		}
	}
	if got := o.reached(); got != 4 {
		t.Errorf("reached %d, want 4", got)
	}
}

// TestAnObserverLooksAtTrainingsOnceASecond has a training tell its loss, and then that it is no number.
func TestAnObserverLooksAtTrainingsOnceASecond(t *testing.T) {
	t.Parallel()
	o := newObserver(telemetry.NewMetrics(), false, extent{}, slog.New(slog.DiscardHandler))
	begin := time.Now().Add(-time.Minute)
	stage := predictor.StageID{App: "a", Build: "b", Name: "train"}
	sequence := uint64(0)
	tell := func(event predictor.Event) {
		t.Helper()
		sequence++
		if err := o.apply(lineOf(sequence, event)); err != nil {
			t.Fatal(err)
		}
	}
	learning := func() predictor.Learning {
		t.Helper()
		run, known := o.ledger.Snapshot("r")
		if !known {
			t.Fatal("the run is not known")
		}
		view := o.views(run)[0]
		if len(view.Learning) != 1 || len(o.learning("r")) != 1 {
			t.Fatalf("%d trainings are shown, want one", len(view.Learning))
		}
		return view.Learning[0]
	}
	tell(predictor.RunStarted{Run: "r", App: "a", Pipeline: "p", At: begin})
	tell(predictor.Scheduled{Run: "r", Stage: stage, Tasks: 1, At: begin})
	tell(predictor.AttemptStarted{
		Run: "r", Stage: stage, Task: "t", Attempt: 1, Venue: predictor.Pool, Host: "h", At: begin,
	})
	sample := predictor.Sampled{Run: "r", Stage: stage, Task: "t", Attempt: 1, Venue: predictor.Pool, Host: "h", Of: 40}
	for step := 1; step <= 20; step++ {
		sample.Step, sample.At = step, begin.Add(time.Duration(step)*time.Second)
		sample.Metrics = map[string]float64{"loss": 1 + 1/float64(step)}
		tell(sample)
	}
	if got := learning(); got.Final != nil || got.Step != 20 {
		t.Errorf("before its curve was fitted %+v is shown, want its step alone", got)
	}
	o.pass(begin.Add(21 * time.Second))
	if got := learning(); got.Phase != "learning" || got.Final == nil || got.Final.Low > 1.03 || got.Final.High < 1.02 {
		t.Errorf("%+v is shown, at its end %+v; want about 1.025", got, got.Final)
	}
	if ahead := o.learning("r")[0].Ahead; len(ahead) == 0 || ahead[len(ahead)-1].Step != 40 {
		t.Errorf("ahead of it are %+v, want steps to the 40th", ahead)
	}
	sample.Step, sample.Metrics, sample.NotFinite = 21, nil, []string{"loss"}
	tell(sample)
	if got := learning(); got.Phase != "diverged" || got.Value != nil {
		t.Errorf("of a loss that is no number %+v is shown, want that it has diverged", got)
	}
}

func TestASweepLooksAtAFewRunsInTurn(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	var runs []ledger.RunView
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		runs = append(runs, ledger.RunView{Run: name, StartedAt: begin})
	}
	looked := map[string]time.Time{}
	var order []string
	for range 5 {
		for _, run := range leastRecent(runs, func(run ledger.RunView) time.Time { return looked[run.Run] }, 2) {
			order = append(order, run.Run)
			looked[run.Run] = begin.Add(time.Duration(len(order)) * time.Second)
		}
	}
	if want := strings.Split("abcdeabcde", ""); !slices.Equal(want, order) {
		t.Errorf("looked at %v, want every run in turn: %v", order, want)
	}
}

func TestEventsCountAlsoAfterABindingWasRemoved(t *testing.T) {
	t.Parallel()
	binding := func(key string, started uint64) trigger.BindingStats {
		return trigger.BindingStats{Bound: trigger.Bound{Key: key}, Started: started}
	}
	counted := map[eventCount]uint64{}
	for _, c := range []struct {
		bindings []trigger.BindingStats
		want     int
	}{
		{[]trigger.BindingStats{binding("a", 5), binding("b", 1)}, 6},
		{[]trigger.BindingStats{binding("a", 5), binding("b", 1)}, 0},
		{[]trigger.BindingStats{binding("b", 3)}, 2}, // a is gone
		{[]trigger.BindingStats{binding("a", 6), binding("b", 3)}, 1},
	} {
		if got := len(grown(counted, eventTotals(trigger.Stats{Bindings: c.bindings}))); got != c.want {
			t.Errorf("%+v: %d more events, want %d", c.bindings, got, c.want)
		}
	}
}
