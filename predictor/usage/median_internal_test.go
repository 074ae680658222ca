package usage

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// The oracle of what is selected is what is sorted: of values that differ, that are few, and that are in order.
func TestAMedianIsInTheMiddleOfWhatIsSorted(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 71))
	for range 20_000 {
		values := make([]float64, 1+r.IntN(80))
		kinds := 1 + r.IntN(100)
		for i := range values {
			values[i] = float64(r.IntN(kinds))
		}
		if kinds%7 == 0 {
			slices.Sort(values)
		}
		sorted := slices.Sorted(slices.Values(values))
		if got, want := median(values), sorted[(len(sorted)-1)/2]; got != want {
			t.Fatalf("the median of %v is %g, want %g", values, got, want)
		}
	}
}
