package predictor_test

import (
	"fmt"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
)

// TestAVenueThatRefusesFunctionsIsAskedForFewer has a backlog that is worth eight functions, of which the venue refuses
// four: the next plan asks for half, and after a while for all again.
func TestAVenueThatRefusesFunctionsIsAskedForFewer(t *testing.T) {
	t.Parallel()
	state := learn(predictor.State{}, "s", 20, 10)
	state = fold(state, started("r", 0, predictor.Goal{}), hint("r", "s", 400, 0))
	decide := func(at float64) int {
		snapshot := laptop(at, 1)
		snapshot.Policy.ValueOfTime = 100_000_000_000_000
		var plan predictor.Plan
		plan, state = predictor.Decide(state, snapshot)
		return slots(plan, "s", predictor.Function)
	}
	var got []int
	at := 0.0
	until := func(end float64) {
		n := 0
		for ; at < end; at++ {
			n = decide(at)
		}
		got = append(got, n)
	}
	until(3)
	for i := range 8 {
		begun := start("r", "s", i, at)
		begun.Venue, begun.Host = predictor.Function, "f"
		state = fold(state, begun)
	}
	for i := range 4 {
		refused := record("r", "s", i, at, 0)
		refused.Venue, refused.Host = predictor.Function, "f"
		refused.Outcome, refused.Cause = predictor.Refused, predictor.CauseThrottled
		refused.Next = predictor.NextPool
		state = fold(state, refused)
	}
	until(6)
	until(30)
	if want := []int{8, 4, 8}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v slots of the 8 that there are before, after and long after a refusal, want %v", got, want)
	}
}
