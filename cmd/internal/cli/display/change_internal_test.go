package display

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor"
)

// TestWhatADecisionLeavesAsItWasStays words one that changes nothing.
func TestWhatADecisionLeavesAsItWasStays(t *testing.T) {
	t.Parallel()
	decision := predictor.Decision{
		Stage: predictor.StageID{Name: "score"}, Venue: predictor.Function, What: "slots", From: "0 slots", To: "0 slots",
		Reason: "functions are switched off",
	}
	if got, want := change(decision), "score at function: stays at 0 slots: functions are switched off"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	decision.To = "2 slots"
	if got, want := change(decision), "score at function: 0 slots -> 2 slots: functions are switched off"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestProgressOfATotalIsShownWithItsPart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		step, of int
		want     string
	}{
		{3, 0, "step 3"},
		{312, 1000, "312 of 1,000 (31%)"},
		{1200, 5000, "1,200 of 5,000 (24%)"},
		{4999, 5000, "4,999 of 5,000 (99%)"},
		{5000, 5000, "5,000 of 5,000 (100%)"},
		{5e11, 5e12, "500,000,000,000 of 5,000,000,000,000 (10%)"},
	} {
		if got := doneOf(c.step, c.of); got != c.want {
			t.Errorf("%d of %d: got %q, want %q", c.step, c.of, got, c.want)
		}
	}
}
