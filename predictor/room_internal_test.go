package predictor

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

func aSize(t *rapid.T, name string, most int64) quantity.Size {
	return quantity.Size{
		CPU:    quantity.Milli(rapid.Int64Range(0, most).Draw(t, name+": cores")),
		Memory: quantity.Bytes(rapid.Int64Range(0, most).Draw(t, name+": memory")),
	}
}

// TestAPredictedWaitIsTheEarliestMomentWithEnoughRoom looks at every moment at which an attempt ends, and just before.
func TestAPredictedWaitIsTheEarliestMomentWithEnoughRoom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		capacity, size := aSize(t, "capacity", 1000), aSize(t, "size", 1200)
		held := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) holding {
			return holding{aSize(t, "held", 600), float64(rapid.IntRange(1, 9).Draw(t, "seconds left"))}
		}), 0, 8).Draw(t, "running")
		fitsAt := func(seconds float64) bool {
			free := capacity
			for _, h := range held {
				if h.left > seconds {
					free = free.Minus(h.size)
				}
			}
			return size.Fits(free)
		}
		want := math.Inf(1)
		for moment := 9.0; moment >= 0; moment-- {
			if fitsAt(moment) {
				want = moment
			}
		}
		free := capacity
		for _, h := range held {
			free = free.Minus(h.size)
		}
		slices.SortFunc(held, func(a, b holding) int { return cmp.Compare(a.left, b.left) })
		if got := roomAfter(size, free, held); got != want {
			t.Fatalf("%s of %s waits %v s beside %v, want %v", size, capacity, got, held, want)
		}
	})
}
