package runs

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestSpentAndReservedStayWithinTheBudget schedules whatever fits, in any order, with tasks that cost up to one and a
// half times the costliest before them, and lets them end in any order.
func TestSpentAndReservedStayWithinTheBudget(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := quantity.Money(rapid.Int64Range(1, 1_000_000).Draw(t, "limit"))
		b := newBudget()
		var held []quantity.Money
		first := true
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "schedule") {
				if b.fits(limit, "s") {
					held = append(held, b.upper("s"))
					b.reserved += b.upper("s")
					b.pending["s"]++
				}
			} else if len(held) > 0 {
				cost := quantity.Money(rapid.Int64Range(1, max(1, int64(held[0]))).Draw(t, "cost"))
				if first {
					cost = quantity.Money(rapid.Int64Range(1, int64(limit)).Draw(t, "first cost"))
				}
				first = false
				b.settle("s", held[0], cost)
				held = held[1:]
			}
			if b.spent+b.reserved > limit {
				t.Fatalf("spent %d and reserved %d pass the limit of %d", b.spent, b.reserved, limit)
			}
			if b.highest["s"] == 0 && len(held) > 1 {
				t.Fatalf("%d tasks of unknown price are in flight", len(held))
			}
		}
	})
}
