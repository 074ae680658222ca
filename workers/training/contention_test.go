package training

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// drawParts draws priced parts of one contention.
func drawParts(t *rapid.T, c contention) []part {
	parts := make([]part, rapid.IntRange(1, 4).Draw(t, "parts"))
	seconds := func(name string) float64 { return float64(rapid.IntRange(0, 50).Draw(t, name)) / 1000 }
	for i := range parts {
		parts[i] = part{
			forward: seconds("forward"), backward: seconds("backward"), step: seconds("step"), send: seconds("send"),
			again: seconds("again"), recompute: rapid.Bool().Draw(t, "recompute"),
			contention: c,
		}
	}
	return parts
}

func drawKind(t *rapid.T) string {
	return rapid.SampledFrom([]string{OneForwardOneBackward, GPipe}).Draw(t, "schedule")
}

func TestContentionCostsNoLessThanNothingAndNoMoreThanAllAtOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := float64(rapid.IntRange(1, 20).Draw(t, "contention")) / 10
		parts, microBatches := drawParts(t, contention{c, c, c}), rapid.IntRange(1, 6).Draw(t, "micro-batches")
		kind := drawKind(t)
		got, err := simulate(kind, parts, microBatches)
		if err != nil {
			t.Fatal(err)
		}
		work := 0.0 // of all parts, which is done at the speed of all at least as fast as by one alone where c is at most 1
		for i := range parts {
			parts[i].contention = contention{}
			work += float64(microBatches)*(parts[i].forward+parts[i].backward) + parts[i].step
		}
		alone, err := simulate(kind, parts, microBatches)
		if err != nil {
			t.Fatal(err)
		}
		most := alone.Makespan * (1 + c*float64(len(parts)-1))
		if got.Makespan < alone.Makespan*(1-1e-9) || got.Makespan > most*(1+1e-9)+1e-12 {
			t.Fatalf("%v seconds; want %v to %v", got.Makespan, alone.Makespan, most)
		}
		for i, busy := range got.Busy {
			if busy < alone.Busy[i]*(1-1e-9) {
				t.Fatalf("worker %d is busy for %v seconds, alone for %v", i, busy, alone.Busy[i])
			}
		}
	})
}

// Two parts whose devices are one core's threads, each of half its speed: with equal passes, what overlaps takes twice
// as long.
func TestTwoPartsOnOneCoreGainNothingFromEachOther(t *testing.T) {
	t.Parallel()
	one := part{forward: 1, backward: 2, contention: contention{forward: 1, backward: 1, step: 1}}
	const microBatches = 4
	got, err := simulate(GPipe, []part{one, one}, microBatches)
	if err != nil {
		t.Fatal(err)
	}
	if want := 2.0 * 3 * microBatches; math.Abs(got.Makespan-want) > 1e-9 {
		t.Errorf("%v seconds; want the work of both one after the other, %v", got.Makespan, want)
	}
}
