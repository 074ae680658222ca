package share

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/plan"
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
		held := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Holding {
			return Holding{Size: aSize(t, "held", 600), Left: float64(rapid.IntRange(1, 9).Draw(t, "seconds left"))}
		}), 0, 8).Draw(t, "running")
		fitsAt := func(seconds float64) bool {
			free := capacity
			for _, h := range held {
				if h.Left > seconds {
					free = free.Minus(h.Size)
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
		rooms := NewRooms([]plan.Host{{ID: "a", Capacity: capacity}}, map[string][]Holding{"a": held})
		if got := rooms.Wait(size); got != want {
			t.Fatalf("%s of %s waits %v s beside %v, want %v", size, capacity, got, held, want)
		}
	})
}
