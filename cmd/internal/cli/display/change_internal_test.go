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
