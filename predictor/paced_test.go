package predictor_test

import (
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// told is one look at an attempt that says how far it is.
func told(run, stage string, task, step, of int, at float64) predictor.Sampled {
	begun := start(run, stage, task, at)
	return predictor.Sampled{
		Run: run, Stage: begun.Stage, Task: begun.Task, Attempt: 1, Venue: predictor.Pool, Host: "laptop",
		Step: step, Of: of, At: after(at),
	}
}

// firstRun is a state in which the first run ever has called its only stage, some of whose tasks have begun.
func firstRun(tasks, begun int) predictor.State {
	only := started("now", 0, predictor.Goal{})
	only.Stages = []string{"train"}
	state := fold(predictor.State{}, only, hint("now", "train", tasks, 0))
	for task := range begun {
		state = fold(state, start("now", "train", task, 0))
	}
	return state
}

// steady lets an attempt of 100 seconds report each tenth of a second as far as it has come.
func steady(state predictor.State, task int, until float64) predictor.State {
	for at := 0.1; at <= until+1e-9; at += 0.1 {
		state = fold(state, told("now", "train", task, int(math.Round(10*at)), 1000, at))
	}
	return state
}

// TestProgressTellsWhenAFirstAttemptEnds has the first attempt of anything: what it has not done yet may go otherwise
// than what it has, so the interval is wide first, and holds the end all along.
func TestProgressTellsWhenAFirstAttemptEnds(t *testing.T) {
	t.Parallel()
	if got, known := firstRun(1, 1).Forecast("now", after(10)); known {
		t.Errorf("without a word of its progress %+v is expected, want nothing", got)
	}
	last := math.Inf(1)
	for _, at := range []float64{1, 5, 20, 50, 90} {
		got, known := steady(firstRun(1, 1), 0, at).Forecast("now", after(at))
		left := 100 - at
		if !known || got.Finish.Low > left || got.Finish.High < left || !about(got.Finish, left, 1) {
			t.Errorf("at %v of 100 s: %+v known %v, want about %v s", at, got.Finish, known, left)
			continue
		}
		if wide := got.Finish.High - got.Finish.Low; wide >= last {
			t.Errorf("at %v of 100 s the interval is %.1f s wide, want less than the %.1f s of before", at, wide, last)
		} else {
			last = wide
		}
		if got.Runs != 0 || !strings.Contains(got.Basis, "progress") || strings.Contains(got.Basis, "earlier run") {
			t.Errorf("it rests on %q and %d runs, want its progress alone", got.Basis, got.Runs)
		}
		if got.Cost != (predictor.Interval{}) {
			t.Errorf("a cost of %+v is expected, of which nothing is known", got.Cost)
		}
	}
	early, _ := steady(firstRun(1, 1), 0, 1).Forecast("now", after(1))
	if early.Finish.High < 2*early.Finish.Mid {
		t.Errorf("at the first hundredth %+v is expected, want to twice as long at least", early.Finish)
	}
	if late, _ := steady(firstRun(1, 1), 0, 90).Forecast("now", after(90)); late.Finish.High > 20 {
		t.Errorf("ten seconds before its end %+v is expected, want 20 s at most", late.Finish)
	}
}

// TestWhatFollowsIsUnknownWhereNobodySaidWhatARunCalls has the same attempt in a run that may call more.
func TestWhatFollowsIsUnknownWhereNobodySaidWhatARunCalls(t *testing.T) {
	t.Parallel()
	for name, stages := range map[string][]string{
		"nobody says what it calls": nil, "another follows": {"train", "score"},
	} {
		first := started("now", 0, predictor.Goal{})
		first.Stages = stages
		state := fold(predictor.State{}, first, hint("now", "train", 1, 0), start("now", "train", 0, 0))
		if got, known := steady(state, 0, 50).Forecast("now", after(50)); known {
			t.Errorf("%s: %+v is expected", name, got)
		}
	}
}

// TestTasksOfAStageAreExpectedToTakeWhatTheFirstSay has four tasks of which two run, and one of these says how far it
// is: the one that says nothing, and those that wait, are taken for alike.
func TestTasksOfAStageAreExpectedToTakeWhatTheFirstSay(t *testing.T) {
	t.Parallel()
	state := steady(firstRun(4, 2), 0, 50)
	got, known := state.Forecast("now", after(50))
	if !known || !about(got.Finish, 150, 0.5) || got.Finish.High < 160 {
		t.Errorf("two of 100 s run for 50 s on two slots, two wait: %+v known %v, want about 150 s", got.Finish, known)
	}
	out := state.Outlook("now", predictor.Goal{Deadline: 2 * time.Minute}, laptop(50, 2))
	if out.Known || !strings.Contains(out.Why, "what a task costs") {
		t.Errorf("its outlook is known: %v, because %q; want that nobody knows what a task costs", out.Known, out.Why)
	}
	plan, _ := predictor.Decide(state, laptop(50, 2))
	if why := strings.Join(reasons(plan), "\n"); !strings.Contains(why, "by their progress") ||
		strings.Contains(why, "no attempt has ended yet") {
		t.Errorf("want a decision by the progress of those that run:\n%s", why)
	}
}

// TestRoomIsAwaitedByTheProgressOfAFirstAttempt has a host that the first attempt of its stage fills.
func TestRoomIsAwaitedByTheProgressOfAFirstAttempt(t *testing.T) {
	t.Parallel()
	begun := start("now", "train", 0, 0)
	begun.Grant = quantity.Size{CPU: quantity.Core, Memory: 4 * quantity.GiB}
	state := fold(predictor.State{}, started("now", 0, predictor.Goal{}), hint("now", "train", 2, 0), begun)
	plan, _ := predictor.Decide(steady(state, 0, 90), laptop(90, 1))
	if why := strings.Join(reasons(plan), "\n"); !strings.Contains(why, "have room for one more in 1") &&
		!strings.Contains(why, "have room for one more in 9") {
		t.Errorf("want room in about 10 s:\n%s", why)
	}
}

// TestProgressIsToldOfRunningAttempts has one that says how far it is and how much there is, one that says no more than
// its steps, one that says nothing, and one that has ended.
func TestProgressIsToldOfRunningAttempts(t *testing.T) {
	t.Parallel()
	state := steady(firstRun(4, 3), 0, 50)
	state = fold(state, told("now", "train", 1, 7, 0, 50), started("other", 0, predictor.Goal{}),
		hint("other", "train", 1, 0), start("other", "train", 0, 0), told("other", "train", 0, 1, 2, 50))
	got := twinOf(t, state).Progress(after(50), "now")
	if len(got) != 1 || len(got["now"]) != 2 {
		t.Fatalf("got %+v, want two attempts of the run that was asked for", got)
	}
	first, second := got["now"][0], got["now"][1]
	if first.Task != "train-0" || first.Attempt != 1 || first.Step != 500 || first.Of != 1000 ||
		!about(first.Left, 50, 0.2) || first.Left.Low >= 45 || first.Left.High <= 55 {
		t.Errorf("got %+v, want 500 of 1000 and about 50 s", first)
	}
	if second.Task != "train-1" || second.Step != 7 || second.Of != 0 || second.Left != (predictor.Interval{}) {
		t.Errorf("got %+v, want 7 steps and no end", second)
	}
	ended := fold(state, record("now", "train", 0, 100, 100))
	if got := ended.Progress(after(100), "now"); len(got["now"]) != 1 {
		t.Errorf("once one has ended: %+v, want the other", got)
	}
	if got := state.Progress(after(50)); len(got) != 0 {
		t.Errorf("of no run: %+v", got)
	}
}

// TestRatesAreToldAsTheyWereToldLast has an attempt that tells them with two of its steps, and one metric that is none.
func TestRatesAreToldAsTheyWereToldLast(t *testing.T) {
	t.Parallel()
	state := firstRun(4, 1)
	for step, metrics := range []map[string]float64{
		1: {"samples_per_second": 12, "tokens_per_second": 800, "loss": 3},
		2: {"samples_per_second": 16, "steps_per_second": math.Inf(1), "_per_second": 1, "x_per_second": -1},
		3: {"loss": 2},
	} {
		if step > 0 {
			sample := told("now", "train", 0, step, 10, float64(step))
			sample.Metrics = metrics
			state = fold(state, sample)
		}
	}
	want := map[string]float64{"samples": 16}
	for name, state := range map[string]predictor.State{"folded": state, "read from a checkpoint": twinOf(t, state)} {
		got := state.Progress(after(4), "now")["now"]
		if len(got) != 1 || !maps.Equal(got[0].PerSecond, want) {
			t.Errorf("%s: got %+v, want %v", name, got, want)
		}
	}
}

// TestRunTimesAtFunctionsAreExpectedByThoseThatEndedThere has functions with one core that take half as long again as
// the pool with one: the first of them is a draw, of many it is half as long again.
func TestRunTimesAtFunctionsAreExpectedByThoseThatEndedThere(t *testing.T) {
	t.Parallel()
	atFunctions := func(ended int) float64 {
		state := predictor.State{}
		for i := range 10 {
			line := record("earlier", "score", i, -1000+float64(i), 10)
			line.Grant = quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}
			state = fold(state, line)
		}
		for i := range ended {
			line := record("earlier", "score", 100+i, -900+float64(i), 15)
			line.Venue, line.Grant = predictor.Function, quantity.Size{CPU: quantity.Core, Memory: 1769 * quantity.MiB}
			state = fold(state, line)
		}
		state = fold(state, started("now", 0, predictor.Goal{}), hint("now", "score", 1, 0))
		plan, _ := predictor.Decide(state, laptop(1, 4))
		if len(plan.Sizings) != 1 {
			t.Fatalf("got %d sizings", len(plan.Sizings))
		}
		return plan.Sizings[0].AtFunctions
	}
	if none, one, many := atFunctions(0), atFunctions(1), atFunctions(30); none != 0 || one < 1.1 || one > 1.2 ||
		many < 1.4 || many > 1.52 {
		t.Errorf("after none, one and thirty: %v, %v and %v times as long; want 0, about 1.14 and nearly 1.5", none, one,
			many)
	}
}
