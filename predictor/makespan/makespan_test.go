package makespan_test

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/makespan"
)

func Example() {
	var slots makespan.Slots
	slots.Add(2, makespan.Slot{Takes: 1})            // two at once
	slots.Add(1, makespan.Slot{Free: 2.5, Takes: 2}) // one that is free later, and half as fast
	last := 0.0
	for range 7 {
		last = max(last, slots.Take(1))
	}
	fmt.Println(last)
	// Output: 4.5
}

func someSlots(t *rapid.T) []makespan.Slot {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) makespan.Slot {
		return makespan.Slot{
			Free: rapid.Float64Range(0, 20).Draw(t, "free"), Takes: rapid.Float64Range(0.1, 5).Draw(t, "takes"),
		}
	}), 1, 20).Draw(t, "slots")
}

func TestTheNextTaskGoesToWhoeverIsFreeFirst(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		list := someSlots(t)
		var slots makespan.Slots
		for _, slot := range list {
			slots.Add(1, slot)
		}
		for range rapid.IntRange(1, 60).Draw(t, "tasks") {
			length := rapid.Float64Range(0, 10).Draw(t, "length")
			got := slots.Take(length)
			first := 0
			for i, slot := range list {
				if slot.Free < list[first].Free {
					first = i
				}
			}
			for i, slot := range list { // of slots that are free at the same moment any may take it
				if slot.Free == list[first].Free && math.Abs(slot.Free+length*slot.Takes-got) <= 1e-9 {
					first = i
					break
				}
			}
			list[first].Free += length * list[first].Takes
			if want := list[first].Free; math.Abs(got-want) > 1e-9 {
				t.Fatalf("a task of length %v ends after %v s, want %v, with %+v", length, got, want, list)
			}
		}
	})
}

func TestWorkThatCanBeDividedEndsEverywhereAtOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		list, work := someSlots(t), rapid.Float64Range(0.001, 200).Draw(t, "work")
		var slots makespan.Slots
		for _, slot := range list {
			slots.Add(1, slot)
		}
		slots.Fill(work)
		level := slots.Take(0)
		sum := 0.0
		for _, slot := range list {
			sum += max(0, level-slot.Free) / slot.Takes
		}
		if math.Abs(sum-work) > 1e-6*work {
			t.Fatalf("at %v s, %v of the work %v is done by %+v", level, sum, work, list)
		}
	})
}
