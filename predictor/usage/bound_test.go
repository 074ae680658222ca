package usage

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The oracle: limits on a fine grid are tried above every ratio that may be left out.
func TestTheBoundCostsTheLeast(t *testing.T) {
	t.Parallel()
	stakes := Stakes{Margin: 0.1, Excess: 30}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 5))
		weights, values := make([]float64, 5+r.IntN(60)), []float64(nil)
		for i := range weights {
			weights[i] = math.Pow(fade, float64(len(weights)-1-i))
			values = append(values, math.Exp(0.2*r.NormFloat64()+2*math.Floor(r.Float64()*1.02)))
		}
		all := ratiosOf(values, weights)
		total := func(out int, limit float64) (sum float64) {
			below := all[:len(all)-out]
			tail := below.tail(0.1)
			for _, one := range all {
				sum += one.weight * cost(limit/one.ratio, stakes.Excess)
			}
			return sum + stakes.Excess*tail.beyond(limit-below[len(below)-1].ratio)
		}
		bound, limit, above := all.bound(stakes)
		got, left := total(above, limit), 0.0
		for out := 0; left <= all.weight()/leftOut; out++ {
			largest := all[len(all)-1-out]
			most := 0.1 + 1/(2*float64(len(all)))
			if out > 0 { // from the next ratio on it is another bound
				most = min(most, all[len(all)-out].ratio/largest.ratio*(1-1e-9)-1)
			}
			for step := range 1000 {
				other := largest.ratio * (1 + most*float64(step)/999)
				if least := total(out, other); least < got-1e-9-0.02*got { // it counts what is spare without what is left out
					t.Fatalf("seed %d: a bound of %g and a limit of %g cost %g, a limit of %g above %g only %g", seed, bound, limit,
						got, other, largest.ratio, least)
				}
			}
			left += largest.weight
		}
	}
}

// The oracle: as many peaks as are meant are below a quantile, over many histories of attempts with a weight of 1 each.
func TestQuantilesCoverWhatTheySay(t *testing.T) {
	t.Parallel()
	for _, n := range []int{5, 10, 30, 64} {
		below, tries := map[float64]float64{}, 4000.0
		for seed := range uint64(tries) {
			r := rand.New(rand.NewPCG(seed, 7))
			weights, values := make([]float64, n), make([]float64, n)
			for i := range weights {
				weights[i], values[i] = 1, math.Exp(0.1*r.NormFloat64())
			}
			next := math.Exp(0.1 * r.NormFloat64())
			all := ratiosOf(values, weights)
			for _, q := range []float64{0.1, 0.5, 0.9} {
				if next <= all.quantile(q, 0.1) {
					below[q] += 1 / tries
				}
			}
		}
		for q, got := range below {
			if math.Abs(got-q) > 0.03 {
				t.Errorf("of %d attempts: the next is below the quantile %g in %.1f%% of histories", n, q, 100*got)
			}
		}
	}
}
