package predictor

import (
	"fmt"
	"testing"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestWhatWaitsIsWorthTheSameEachTime, to the last bit: sums of floats hang on their order, and a map has none.
func TestWhatWaitsIsWorthTheSameEachTime(t *testing.T) {
	t.Parallel()
	st := &memory.Stage{Slot: quantity.Size{CPU: 1000, Memory: quantity.GiB + 1}, Shares: map[string]*memory.Share{}}
	w := &work{stage: st}
	for i, goal := range []fact.Objective{fact.Latency, fact.Cost, ""} {
		for k := range 5 {
			queued := 7*i + k + 1
			st.Shares[fmt.Sprintf("run-%d-%d", i, k)] = &memory.Share{
				Queued: [2]int{queued}, Run: &memory.Run{Known: true, Goal: fact.Goal{Minimise: goal}},
			}
			w.queued[0] += queued
		}
	}
	d := decider{policy: plan.DefaultPolicy(), works: []*work{w}}
	d.policy.ValueOfTime = quantity.USD / 7
	want, _ := d.waiting()
	for range 300 {
		if d.waits = nil; want == 0 {
			t.Fatal("what waits is worth nothing")
		}
		if got, _ := d.waiting(); got != want {
			t.Fatalf("got %v, and %v before", got, want)
		}
	}
}
