package predictor_test

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestATaskThatNoHostHasRoomForIsToldSo has a stage whose tasks need a GPU where there is none. The time that stands
// for never is told nowhere.
func TestATaskThatNoHostHasRoomForIsToldSo(t *testing.T) {
	t.Parallel()
	called := hint("r", "train", 3, 1)
	called.Declared.GPU = quantity.Core
	state := fold(learn(predictor.State{}, "train", 9, 2), started("r", 0, predictor.Goal{}), called)
	var told []string
	for tick := range 3 {
		var plan predictor.Plan
		plan, state = predictor.Decide(state, laptop(2+float64(tick), 4))
		told = append(told, reasons(plan)...)
		for _, d := range plan.Decisions {
			if d.PredictedUnit == "seconds" && d.Predicted.High > 3600 {
				t.Errorf("%s %s: predicted %+v because %s", d.Venue, d.What, d.Predicted, d.Reason)
			}
		}
	}
	all := strings.Join(told, "\n")
	if !strings.Contains(all, "no host with a valid lease has what it asks for: 1 GPU") || strings.Contains(all, "24h") {
		t.Errorf("want that no host has a GPU, and no day:\n%s", all)
	}
}

// TestFunctionsThatAreGivenBackWithoutAHostPredictNoDay has tasks that functions took while there was no host.
func TestFunctionsThatAreGivenBackWithoutAHostPredictNoDay(t *testing.T) {
	t.Parallel()
	state := scoring(predictor.Goal{Minimise: predictor.Latency}, 8, 2)
	var told []string
	for _, now := range []float64{10, 40} {
		snapshot := laptop(now, 4)
		snapshot.Hosts = nil
		var plan predictor.Plan
		plan, state = predictor.Decide(state, snapshot)
		told = append(told, reasons(plan)...)
		for _, d := range plan.Decisions {
			if d.PredictedUnit == "seconds" && d.Predicted.High > 3600 || d.Inputs["pool_wait_seconds"] > 3600 {
				t.Errorf("%s %s: predicted %+v with %v because %s", d.Venue, d.What, d.Predicted, d.Inputs, d.Reason)
			}
		}
		for i := range 8 {
			done := record("r", "score", i, now+5, 2)
			done.Venue = predictor.Function
			state = fold(state, done)
		}
	}
	all := strings.Join(told, "\n")
	if !strings.Contains(all, "no task waits any more") || strings.Contains(all, "24h") {
		t.Errorf("want functions that are given back, and no day:\n%s", all)
	}
}
