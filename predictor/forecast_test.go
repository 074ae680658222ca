package predictor_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// finished is a run that began at and took so many seconds for two stages, the first of which it may have reused, and
// of which it may have waited some seconds for the first slot.
func finished(state predictor.State, id string, at, waited, took float64, reused bool) predictor.State {
	state = fold(state, started(id, at, predictor.Goal{}))
	begun := at + waited
	if reused {
		state = fold(state, predictor.Reused{Run: id, Stage: stageNamed("prep"), Tasks: 1, From: "other", At: after(at)})
	} else {
		first := start(id, "prep", 0, begun)
		first.Queue = time.Duration(waited * float64(time.Second))
		state = fold(state, hint(id, "prep", 1, at), first, record(id, "prep", 0, begun+took/2, took/2))
	}
	return fold(
		state, hint(id, "train", 1, begun+took/2), start(id, "train", 0, begun+took/2),
		record(id, "train", 0, begun+took, took/2),
		predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(begun + took)},
	)
}

// TestARunThatReusedResultsIsNoSampleOfOneThatDoesNot: it took a tenth of the time.
func TestARunThatReusedResultsIsNoSampleOfOneThatDoesNot(t *testing.T) {
	t.Parallel()
	var state predictor.State
	state = finished(state, "one", -10000, 0, 100, false)
	state = finished(state, "two", -9000, 0, 100, false)
	for i, id := range []string{"three", "four", "five", "six"} {
		state = finished(state, id, -8000+float64(i)*1000, 0, 10, true)
	}
	state = fold(state, started("now", 0, predictor.Goal{}))
	if got, known := state.Forecast("now", after(1)); !known || got.Runs != 2 || !about(got.Finish, 99, 0.05) {
		t.Errorf("before anything is called: %+v known %v, want about 99 s as the two runs that did all of it", got, known)
	}
	state = fold(state, hint("now", "prep", 1, 1), start("now", "prep", 0, 1))
	if got, known := state.Forecast("now", after(2)); !known || got.Runs != 2 || !about(got.Finish, 98, 0.05) {
		t.Errorf("once it has called its first stage: %+v known %v, want about 98 s as the two runs", got, known)
	}
	state = fold(
		state, started("again", 10, predictor.Goal{}),
		predictor.Reused{Run: "again", Stage: stageNamed("prep"), Tasks: 1, From: "one", At: after(10)},
	)
	if got, known := state.Forecast("again", after(11)); !known || got.Runs != 4 || !about(got.Finish, 9, 0.1) {
		t.Errorf("once it has reused its first stage: %+v known %v, want about 9 s as the four runs that did so", got, known)
	}
}

// TestTheWaitForTheFirstSlotIsNoPartOfWhatARunTakes: other runs had the pool meanwhile.
func TestTheWaitForTheFirstSlotIsNoPartOfWhatARunTakes(t *testing.T) {
	t.Parallel()
	var state predictor.State
	for i, id := range []string{"one", "two", "three"} {
		state = finished(state, id, -9000+float64(i)*2000, 600*float64(i), 100, false)
	}
	state = fold(state, started("now", 0, predictor.Goal{}), hint("now", "prep", 1, 0))
	if got, known := state.Forecast("now", after(50)); !known || !about(got.Finish, 100, 0.05) {
		t.Errorf("while it waits: %+v known %v, want about 100 s from its first attempt", got.Finish, known)
	}
	first := start("now", "prep", 0, 3660) // by a clock that is an hour off
	first.Queue = time.Minute
	state = fold(state, first)
	if got, known := state.Forecast("now", after(90)); !known || !about(got.Finish, 70, 0.05) {
		t.Errorf("30 s after its first attempt began: %+v known %v, want 70 s", got.Finish, known)
	}
	// A State that another has folded half-way knows it as well.
	if got, known := twinOf(t, state).Forecast("now", after(90)); !known || !about(got.Finish, 70, 0.05) {
		t.Errorf("after a checkpoint: %+v known %v, want 70 s", got.Finish, known)
	}
}

// TestARunThatReusedLittleIsNoSampleOfOneThatReusedNearlyAll: what is left to run differs by the hundredfold.
func TestARunThatReusedLittleIsNoSampleOfOneThatReusedNearlyAll(t *testing.T) {
	t.Parallel()
	mapped := func(state predictor.State, id string, at float64, reused, ran int) predictor.State {
		return fold(
			state, started(id, at, predictor.Goal{}),
			predictor.Reused{Run: id, Stage: stageNamed("score"), Tasks: reused, From: "other", At: after(at)},
			hint(id, "score", ran, at), start(id, "score", 0, at),
		)
	}
	// ended runs the tasks one after another, all together for so long.
	ended := func(state predictor.State, id string, at float64, ran int, took float64) predictor.State {
		each := took / float64(ran)
		for i := range ran {
			state = fold(state, start(id, "score", i, at+each*float64(i)), record(id, "score", i, at+each*float64(i+1), each))
		}
		return fold(state, predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(at + took)})
	}
	var state predictor.State
	for i, c := range []struct {
		id          string
		reused, ran int
		took        float64
	}{{"little", 1, 99, 990}, {"most", 99, 1, 10}, {"nearly", 98, 2, 12}} {
		at := -10000 + 2000*float64(i)
		state = ended(mapped(state, c.id, at, c.reused, c.ran), c.id, at, c.ran, c.took)
	}
	state = mapped(state, "now", 0, 198, 2)
	if got, known := state.Forecast("now", after(1)); !known || got.Runs != 2 || got.Finish.High > 40 {
		t.Errorf("two of two hundred tasks run: %+v known %v, want less than 40 s as the two runs like it", got, known)
	}
	state = mapped(state, "half", 10, 100, 100)
	if got, known := state.Forecast("half", after(11)); !known || got.Runs != 1 || !about(got.Finish, 989, 0.15) {
		t.Errorf("half of two hundred tasks run: %+v known %v, want about 989 s as the one run like it", got, known)
	}
}

// fedRun is a run that began at with an input, whose stage "map" has a task of 10 s for each GiB of it and whose stage
// "reduce" takes 2 s for each, one after another; it is ended where whole.
func fedRun(state predictor.State, id, pipeline string, at float64, gibs int, whole bool) predictor.State {
	begins := started(id, at, predictor.Goal{})
	begins.Pipeline, begins.InputBytes = pipeline, quantity.Bytes(gibs)*quantity.GiB
	mapped := hint(id, "map", gibs, at)
	mapped.Input = quantity.GiB
	state = fold(state, begins, mapped)
	if !whole {
		return state
	}
	run := func(stage string, task int, from, wall float64, input quantity.Bytes) {
		begun, line := start(id, stage, task, from), record(id, stage, task, from+wall, wall)
		line.Usage.Input, line.Cost = input, quantity.USD/1000*quantity.Money(wall)
		state = fold(state, begun, line)
	}
	for i := range gibs {
		run("map", i, at+10*float64(i), 10, quantity.GiB)
	}
	at += 10 * float64(gibs)
	reduced := hint(id, "reduce", 1, at)
	reduced.Input = quantity.Bytes(gibs) * quantity.GiB
	state = fold(state, reduced)
	run("reduce", 0, at, 2*float64(gibs), reduced.Input)
	return fold(state, predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(at + 2*float64(gibs))})
}

// Runs of 2 to 16 GiB took 24 to 192 s; one of 32 GiB takes 384 s, and not what they did.
func TestARunTakesWhatItsInputTakes(t *testing.T) {
	t.Parallel()
	var state predictor.State
	for i, gibs := range []int{4, 2, 16, 8} {
		state = fedRun(state, fmt.Sprintf("past-%d", i), "p", -4000+1000*float64(i), gibs, true)
	}
	state = fedRun(state, "now", "p", 0, 32, false)
	got, known := state.Forecast("now", after(0))
	if !known || !about(got.Finish, 384, 0.2) || got.Runs != 4 || got.Basis != "its own tasks and 4 earlier runs" {
		t.Errorf("%+v known %v, want about 384 s from four runs", got, known)
	}
	small := fedRun(twinOf(t, state), "small", "p", 0, 2, false)
	if got, known = small.Forecast("small", after(0)); !known || !about(got.Finish, 24, 0.3) {
		t.Errorf("%+v known %v, want about 24 s", got, known)
	}
}

// spreadRun is a run that began at, of tasks that take 10 s each, a GiB of input for each of them, on two slots of the
// pool and six functions, which take 5 s to start. It is folded until so many seconds have passed, and takes the
// seconds that are returned.
func spreadRun(state predictor.State, id string, at float64, tasks int, until float64) (predictor.State, float64) {
	begins := started(id, at, predictor.Goal{})
	begins.InputBytes = quantity.Bytes(tasks) * quantity.GiB
	hinted := hint(id, "map", tasks, at)
	hinted.Input = quantity.GiB
	type told struct {
		at    float64
		event predictor.Event
	}
	events := []told{{at, begins}, {at, hinted}}
	free, end := make([]float64, 8), 0.0
	for task := range tasks {
		slot := 0
		for i := range free {
			if free[i] < free[slot] {
				slot = i
			}
		}
		begun, cold := free[slot], 0.0
		if slot >= 2 && begun == 0 {
			cold = 5
		}
		free[slot] = begun + cold + 10
		end = max(end, free[slot])
		first, line := start(id, "map", task, at+begun), record(id, "map", task, at+free[slot], 10)
		if slot >= 2 {
			first.Venue, line.Venue = predictor.Function, predictor.Function
			line.Start, line.Cold = time.Duration(cold*float64(time.Second)), cold > 0
		}
		line.Usage.Input = quantity.GiB
		events = append(events, told{at + begun, first}, told{at + free[slot], line})
	}
	over := predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(at + end)}
	events = append(events, told{at + end, over})
	slices.SortStableFunc(events, func(a, b told) int { return cmp.Compare(a.at, b.at) })
	for _, one := range events {
		if one.at <= at+until {
			state = fold(state, one.event)
		}
	}
	return state, end
}

// Functions count as the slots that they are, and what they take to start as the time that it takes.
func TestARunThatIsSpreadOverPoolAndFunctionsIsForecastOnBoth(t *testing.T) {
	t.Parallel()
	var state predictor.State
	for i, tasks := range []int{32, 64, 48} {
		state, _ = spreadRun(state, fmt.Sprintf("past-%d", i), -4000+1000*float64(i), tasks, 1e6)
	}
	for _, passed := range []float64{0, 4, 12, 40} {
		asked, took := spreadRun(twinOf(t, state), "now", 0, 96, passed)
		if got, known := asked.Forecast("now", after(passed)); !known || !about(got.Finish, took-passed, 0.15) {
			t.Errorf("after %v s: %+v known %v, want about %v s", passed, got.Finish, known, took-passed)
		}
	}
}

// The tasks that are left take what their inputs take: a run whose small tasks come first is not forecast by those.
func TestTasksThatAreLeftTakeWhatTheirInputsTake(t *testing.T) {
	t.Parallel()
	var state predictor.State
	ran := func(id string, task int, from, gibs float64) float64 { // 10 s for each GiB, one after another
		begun, line := start(id, "map", task, from), record(id, "map", task, from+10*gibs, 10*gibs)
		line.Usage.Input = quantity.Bytes(gibs * float64(quantity.GiB))
		state = fold(state, begun, line)
		return from + 10*gibs
	}
	hinted := func(id string, tasks int, at, gibs float64) {
		more := hint(id, "map", tasks, at)
		more.Input = quantity.Bytes(gibs * float64(quantity.GiB))
		state = fold(state, more)
	}
	for i := range 3 {
		id, at := fmt.Sprintf("past-%d", i), -4000+1000*float64(i)
		state = fold(state, started(id, at, predictor.Goal{}))
		hinted(id, 4, at, 1)
		hinted(id, 4, at, 8)
		end := at
		for task := range 8 {
			end = ran(id, task, end, []float64{1, 8}[task/4])
		}
		state = fold(state, predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(end)})
	}
	state = fold(state, started("now", 0, predictor.Goal{}))
	hinted("now", 4, 0, 1)
	hinted("now", 4, 0, 8)
	at := 0.0
	for task := range 4 {
		at = ran("now", task, at, 1)
	}
	if got, known := twinOf(t, state).Forecast("now", after(at)); !known || !about(got.Finish, 320, 0.15) {
		t.Errorf("once the small ones are done: %+v known %v, want about 320 s", got.Finish, known)
	}
	ran("now", 4, at, 8)
	if got, known := state.Forecast("now", after(at+80)); !known || !about(got.Finish, 240, 0.15) {
		t.Errorf("once a large one is done: %+v known %v, want about 240 s", got.Finish, known)
	}
}

// Costs that vary less than they were told make the next forecasts of costs narrower, and a checkpoint knows it.
func TestForecastsOfCostsAreAsWideAsTheyHaveToBe(t *testing.T) {
	t.Parallel()
	var state predictor.State
	width := func() float64 {
		asked := fedRun(twinOf(t, state), "now", "p", 1e6, 4, false)
		got, known := asked.Forecast("now", after(1e6))
		if !known {
			t.Fatal("nothing is known")
		}
		return got.Cost.High / got.Cost.Low
	}
	gone := func(from, to int) {
		for i := from; i < to; i++ {
			state = fedRun(state, fmt.Sprintf("past-%d", i), "p", -1e5+1000*float64(i), 4, true)
		}
	}
	gone(0, 8) // as many as are remembered
	before := width()
	gone(8, 48)
	if after := width(); after > 0.97*before {
		t.Errorf("from low to high by a factor of %v, and %v before forty runs that cost what was told", after, before)
	}
}

// Before it has called a stage, a run is forecast by its input, and how probable it is that it misses its goal is told.
func TestAForecastTellsHowProbableItIsThatTheGoalIsMissed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		goal       predictor.Goal
		passed     float64 // seconds since the start
		late, dear [2]float64
	}{
		{name: "none"},
		{"hopeless", predictor.Goal{Deadline: 10 * time.Second, Budget: 1}, 0, [2]float64{0.95, 1}, [2]float64{0.95, 1}},
		{"in doubt", predictor.Goal{Deadline: 96 * time.Second}, 0, [2]float64{0.2, 0.8}, [2]float64{}},
		{"easy", predictor.Goal{Deadline: time.Hour, Budget: quantity.USD}, 0, [2]float64{0, 0.05}, [2]float64{0, 0.05}},
		{"past", predictor.Goal{Deadline: time.Minute}, 61, [2]float64{1, 1}, [2]float64{}},
	} {
		var state predictor.State
		for i, gibs := range []int{4, 16} {
			state = fedRun(state, fmt.Sprintf("past-%d", i), "p", -2000+1000*float64(i), gibs, true)
		}
		begins := started("now", 0, c.goal)
		begins.InputBytes = 8 * quantity.GiB
		state = fold(state, begins)
		got, known := state.Forecast("now", after(c.passed))
		if !known || got.Basis != "its input and 2 earlier runs" {
			t.Errorf("%s: %+v, known %v", c.name, got, known)
		}
		if got.Late < c.late[0] || got.Late > c.late[1] || got.Dear < c.dear[0] || got.Dear > c.dear[1] {
			t.Errorf("%s: late with %v, want %v; dear with %v, want %v", c.name, got.Late, c.late, got.Dear, c.dear)
		}
	}
}

// A pipeline that has never run is guessed from another of its app that went on from the same stage.
func TestAPipelineThatHasNotRunIsGuessedFromOneThatCalledTheSameStages(t *testing.T) {
	t.Parallel()
	state := fedRun(predictor.State{}, "past", "other", -1000, 8, true)
	state = fedRun(state, "now", "p", 0, 8, false)
	got, known := state.Forecast("now", after(0))
	const basis = "its own tasks and what followed the same stages in 1 run of app/other, a guess"
	if !known || got.Runs != 0 || got.Basis != basis {
		t.Errorf("%+v known %v, want a guess from app/other", got, known)
	}
	if !about(got.Finish, 96, 0.35) || got.Finish.High < 1.3*got.Finish.Low {
		t.Errorf("%+v, want about 96 s, and not for sure", got.Finish)
	}
	state = fold(state, started("strange", 0, predictor.Goal{}), hint("strange", "never", 1, 0))
	if got, known = state.Forecast("strange", after(1)); known {
		t.Errorf("a run of which nothing is known: %+v", got)
	}
}

// Forecasts that did not hold make the next ones wider, and a checkpoint knows it.
func TestForecastsAreAsWideAsTheyHaveToBe(t *testing.T) {
	t.Parallel()
	var state predictor.State
	width := func(state predictor.State) float64 {
		state = fedRun(state, "now", "p", 1e6, 4, false)
		got, known := state.Forecast("now", after(1e6))
		if !known {
			t.Fatal("nothing is known")
		}
		return got.Finish.High / got.Finish.Low
	}
	for i := range 12 {
		state = fedRun(state, fmt.Sprintf("calm-%d", i), "p", 1000*float64(i), 4, true)
	}
	calm := width(twinOf(t, state))
	for i := range 12 { // each of another kind: a long wait at the end
		at := 1e5 + 1000*float64(i)
		id := fmt.Sprintf("wild-%d", i)
		state = fedRun(state, id, "p", at, 4, false)
		state = fold(
			state, start(id, "map", 0, at), record(id, "map", 0, at+10, 10),
			predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(at + 11 + 900*float64(i%2))},
		)
	}
	for i := range 8 { // which is forgotten by now, but for how far forecasts were off
		state = fedRun(state, fmt.Sprintf("calm-again-%d", i), "p", 2e5+1000*float64(i), 4, true)
	}
	if wild := width(twinOf(t, state)); wild < 1.1*calm {
		t.Errorf("from low to high by a factor of %v, and %v before a dozen runs that ended otherwise", wild, calm)
	}
}

func BenchmarkForecast(b *testing.B) {
	var state predictor.State
	for i := range 8 {
		state = fedRun(state, fmt.Sprintf("past-%d", i), "p", 1000*float64(i), 1+i*7%16, true)
	}
	state = fedRun(state, "now", "p", 9000, 100, false)
	b.ReportAllocs()
	for b.Loop() {
		if _, known := state.Forecast("now", after(9000)); !known {
			b.Fatal("nothing is known")
		}
	}
}

// What follows a stage counts for the input of the run, and not as it was for others, also where no plan divides it.
func TestADeadlineIsHeldAgainstWhatFollowsForTheInputOfTheRun(t *testing.T) {
	t.Parallel()
	var state predictor.State
	for i, gibs := range []int{2, 4, 8, 16} {
		state = fedRun(state, fmt.Sprintf("past-%d", i), "p", -4000+1000*float64(i), gibs, true)
	}
	tight := func(gibs int) bool { // "reduce" takes 2 s for each GiB; "map" has a minute, and would take 10 on one slot
		begins := started("now", 0, predictor.Goal{Deadline: time.Minute + time.Duration(2*gibs)*time.Second})
		begins.InputBytes = quantity.Bytes(gibs) * quantity.GiB
		plan, _ := predictor.Decide(fold(twinOf(t, state), begins, hint("now", "map", 60, 0)), undivided(laptop(0, 1)))
		return strings.Contains(strings.Join(reasons(plan), "\n"), "60 s left to the deadline") ||
			strings.Contains(strings.Join(reasons(plan), "\n"), "59 s left") ||
			strings.Contains(strings.Join(reasons(plan), "\n"), "61 s left")
	}
	for _, gibs := range []int{2, 32} {
		if !tight(gibs) {
			t.Errorf("with %d GiB the stage has not about a minute before what follows", gibs)
		}
	}
}

// An attempt that reports its steps ends as they say, however long the others took.
func TestStepsTellWhenALongAttemptEnds(t *testing.T) {
	t.Parallel()
	line := record("past", "train", 0, -900, 100)
	line.Step = 50
	state := fold(
		predictor.State{}, started("past", -1000, predictor.Goal{}), hint("past", "train", 1, -1000),
		start("past", "train", 0, -1000), line,
		predictor.RunEnded{Run: "past", State: predictor.RunSucceeded, At: after(-900)},
		started("now", 0, predictor.Goal{}), hint("now", "train", 1, 0), start("now", "train", 0, 0),
	)
	if got, known := state.Forecast("now", after(20)); !known || !about(got.Finish, 80, 0.3) {
		t.Errorf("without a word: %+v known %v, want about 80 s as before", got.Finish, known)
	}
	at := func(step int, seconds float64) predictor.Sampled {
		return predictor.Sampled{
			Run: "now", Stage: stageNamed("train"), Task: "train-0", Attempt: 1, Venue: predictor.Pool, Host: "laptop",
			Step: step, At: after(seconds),
		}
	}
	state = fold(state, at(1, 4), at(5, 20))
	if got, known := state.Forecast("now", after(20)); !known || !about(got.Finish, 180, 0.2) {
		t.Errorf("after 5 of 50 steps in 20 s: %+v known %v, want about 180 s", got.Finish, known)
	}
	if got, known := twinOf(t, state).Forecast("now", after(110)); !known || !about(got.Finish, 90, 0.2) {
		t.Errorf("90 s later: %+v known %v, want about 90 s", got.Finish, known)
	}
}

// An attempt that goes on from a checkpoint begins with the steps of the one before it, which it has not taken.
func TestProgressSinceACheckpointTellsWhenAnAttemptEnds(t *testing.T) {
	t.Parallel()
	line := record("past", "train", 0, -900, 100)
	line.Step = 50
	lost := record("now", "train", 0, 99, 99)
	lost.Outcome, lost.Cause = predictor.Lost, predictor.CauseHostLost
	again := start("now", "train", 0, 100)
	again.Attempt = 2
	at := func(step int, seconds float64) predictor.Sampled {
		return predictor.Sampled{
			Run: "now", Stage: stageNamed("train"), Task: "train-0", Attempt: 2, Venue: predictor.Pool, Host: "laptop",
			Step: step, At: after(seconds),
		}
	}
	state := fold(
		predictor.State{}, started("past", -1000, predictor.Goal{}), hint("past", "train", 1, -1000),
		start("past", "train", 0, -1000), line,
		predictor.RunEnded{Run: "past", State: predictor.RunSucceeded, At: after(-900)},
		started("now", 0, predictor.Goal{}), hint("now", "train", 1, 0), start("now", "train", 0, 0), lost, again,
		at(11, 102), at(16, 122),
	)
	if got, known := twinOf(t, state).Forecast("now", after(122)); !known || !about(got.Finish, 34*4, 0.2) {
		t.Errorf("34 of 50 steps are left, of 4 s each: %+v known %v, want about 136 s", got.Finish, known)
	}
}
