package usage

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The dearer it is to run out of memory, the more head-room above the same ratios. (Whether a ratio is left out that
// stands far above the others is another question: which one is the bound then says nothing of head-room.)
func TestADearerExcessNeverLeavesLessHeadroom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 31))
		var values, weights []float64
		for range 5 + r.IntN(60) {
			values = append(values, math.Exp(0.1*r.NormFloat64()+math.Floor(r.Float64()*1.05)))
			weights = append(weights, 0.2+0.8*r.Float64())
		}
		all, before, left := ratiosOf(values, weights), 0.0, -1
		for excess := 1.0; excess <= MostExcess; excess *= 1.1 {
			_, limit, above := all.bound(Stakes{Margin: 0.1, Excess: excess})
			if above == left && limit < before-1e-9 {
				t.Fatalf("seed %d: at a price of %g the limit is %g, at a lower one %g", seed, excess, limit, before)
			}
			before, left = limit, above
		}
	}
}

func TestStakesThatAreNotKnownAreTheHighest(t *testing.T) {
	t.Parallel()
	for excess, want := range map[float64]float64{
		0: MostExcess, -1: MostExcess, 31: MostExcess, math.Inf(1): MostExcess, 1e-3: LeastExcess, 7: 7,
		math.NaN(): MostExcess,
	} {
		if got := (Stakes{Excess: excess}).sane().Excess; got != want {
			t.Errorf("a price of %g counts as %g, want %g", excess, got, want)
		}
	}
}
