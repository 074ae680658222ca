package predictor_test

import (
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
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
	if got, known := state.Forecast("now", after(1)); !known || got.Runs != 2 || got.Finish.Mid != 99 {
		t.Errorf("before anything is called: %+v known %v, want 99 s as the two runs that did all of it", got, known)
	}
	state = fold(state, hint("now", "prep", 1, 1), start("now", "prep", 0, 1))
	if got, known := state.Forecast("now", after(2)); !known || got.Runs != 2 || got.Finish.Mid != 98 {
		t.Errorf("once it has called its first stage: %+v known %v, want 98 s as the two runs that did all of it", got, known)
	}
	state = fold(
		state, started("again", 10, predictor.Goal{}),
		predictor.Reused{Run: "again", Stage: stageNamed("prep"), Tasks: 1, From: "one", At: after(10)},
	)
	if got, known := state.Forecast("again", after(11)); !known || got.Runs != 4 || got.Finish.Mid != 9 {
		t.Errorf("once it has reused its first stage: %+v known %v, want 9 s as the four runs that did so", got, known)
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
	if got, known := state.Forecast("now", after(50)); !known || got.Finish.Mid != 100 || got.Finish.High != 100 {
		t.Errorf("while it waits: %+v known %v, want 100 s from its first attempt", got.Finish, known)
	}
	first := start("now", "prep", 0, 3660) // by a clock that is an hour off
	first.Queue = time.Minute
	state = fold(state, first)
	if got, known := state.Forecast("now", after(90)); !known || got.Finish.Mid != 70 {
		t.Errorf("30 s after its first attempt began: %+v known %v, want 70 s", got.Finish, known)
	}
	// A State that another has folded half-way knows it as well.
	if got, known := twinOf(t, state).Forecast("now", after(90)); !known || got.Finish.Mid != 70 {
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
	var state predictor.State
	for i, c := range []struct {
		id          string
		reused, ran int
		took        float64
	}{{"little", 1, 99, 990}, {"most", 99, 1, 10}, {"nearly", 98, 2, 12}} {
		at := -10000 + 2000*float64(i)
		state = fold(
			mapped(state, c.id, at, c.reused, c.ran), record(c.id, "score", 0, at+c.took, c.took),
			predictor.RunEnded{Run: c.id, State: predictor.RunSucceeded, At: after(at + c.took)},
		)
	}
	state = mapped(state, "now", 0, 198, 2)
	if got, known := state.Forecast("now", after(1)); !known || got.Runs != 2 || got.Finish.High > 12 {
		t.Errorf("two of two hundred tasks run: %+v known %v, want at most 12 s as the two runs like it", got, known)
	}
	state = mapped(state, "half", 10, 100, 100)
	if got, known := state.Forecast("half", after(11)); !known || got.Runs != 1 || got.Finish.Mid != 989 {
		t.Errorf("half of two hundred tasks run: %+v known %v, want 989 s as the one run like it", got, known)
	}
}
