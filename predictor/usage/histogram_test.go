package usage

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// weighted is a value and its weight: the oracle keeps them all.
type weighted struct{ value, weight float64 }

// exactPercentile is the least value that, with all smaller ones, has at least the part of the weight.
func exactPercentile(values []weighted, part float64) float64 {
	sorted := slices.SortedFunc(slices.Values(values), func(a, b weighted) int { return cmp.Compare(a.value, b.value) })
	var total, below float64
	for _, v := range sorted {
		total += v.weight
	}
	for _, v := range sorted {
		if below += v.weight; below >= part*total*(1-1e-12) {
			return v.value
		}
	}
	return 0
}

func TestAPercentileIsThatOfTheSortedWeightsWithinABucket(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var h histogram
		var all []weighted
		unit := math.Pow(10, rapid.Float64Range(-12, 12).Draw(t, "unit"))
		for range rapid.IntRange(1, 200).Draw(t, "values") {
			value, fade := 0.0, rapid.Float64Range(0.5, 1).Draw(t, "fade")
			if rapid.Bool().Draw(t, "positive") {
				value = unit * math.Exp(rapid.Float64Range(0, 12).Draw(t, "logarithm")) // within the buckets' reach of e^12.4
			}
			for i := range all {
				all[i].weight *= fade
			}
			all = append(all, weighted{value, 1})
			h.add(value, fade)
		}
		parts := []float64{0.1, 0.5, 0.9, 0.99, 1}
		bounds := make([]float64, len(parts))
		h.percentiles(parts, bounds)
		for i, part := range parts {
			exact := exactPercentile(all, part)
			if bounds[i] < exact*(1-1e-9) || bounds[i] > exact*bucketGrowth*(1+1e-9) {
				t.Fatalf("percentile %v is %v, want %v to %v", part, bounds[i], exact, exact*bucketGrowth)
			}
		}
	})
}

func TestAHistogramHoldsTheExtremesOfNumbers(t *testing.T) {
	t.Parallel()
	for _, values := range [][]float64{
		{math.SmallestNonzeroFloat64, largestValue},
		{largestValue, math.SmallestNonzeroFloat64},
		{0},
		{0, largestValue},
		{1, 1, 1e300, 1e-300},
	} {
		var h histogram
		for _, value := range values {
			h.add(value, 1)
		}
		bounds := make([]float64, 1)
		h.percentiles([]float64{1}, bounds)
		if largest := slices.Max(values); bounds[0] < largest*(1-1e-9) || bounds[0] > largest*bucketGrowth*(1+1e-9) {
			t.Errorf("of %v the largest is %v, want %v to 5%% more", values, bounds[0], largest)
		}
		if h.top > maxExponent {
			t.Errorf("of %v the top is %d, more than a stored one may be", values, h.top)
		}
	}
	var empty histogram
	bounds := []float64{1}
	empty.percentiles([]float64{0.5}, bounds)
	if bounds[0] != 0 {
		t.Errorf("the median of nothing is %v, want 0", bounds[0])
	}
}
