package usage_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// family is a kind of stage: what its i-th attempt takes at an input.
type family struct {
	name string
	draw func(r *rand.Rand, i int) (input, peak float64)
	// under is the largest share of the attempts that may pass their limit, spare the largest mean share of a limit that
	// is not used.
	under, spare float64
}

// families are kinds of stages as the literature on sizing has them; none is taken from recorded tasks.
func families() []family {
	uniform := func(r *rand.Rand) float64 { return mib * (1 + 99*r.Float64()) }
	return []family{
		{"constant", func(*rand.Rand, int) (float64, float64) { return 100, 60 * mib }, 0, 0.06},
		{"constant within 0.2 percent", func(r *rand.Rand, _ int) (float64, float64) {
			return uniform(r), 60 * mib * around(r, 0.002)
		}, 0.001, 0.06},
		{"constant within 5 percent", func(r *rand.Rand, _ int) (float64, float64) {
			return uniform(r), 60 * mib * around(r, 0.05)
		}, 0.003, 0.20},
		{"proportional", func(r *rand.Rand, _ int) (float64, float64) {
			x := uniform(r)
			return x, 8 * x * around(r, 0.03)
		}, 0.003, 0.20},
		{"affine", func(r *rand.Rand, _ int) (float64, float64) {
			x := uniform(r)
			return x, (200*mib + 8*x) * around(r, 0.03)
		}, 0.003, 0.20},
		{"quadratic", func(r *rand.Rand, _ int) (float64, float64) {
			x := uniform(r)
			return x, (50*mib + x*x/mib) * around(r, 0.03)
		}, 0.005, 0.20},
		{"square root", func(r *rand.Rand, _ int) (float64, float64) {
			x := mib * math.Exp(6*r.Float64())
			return x, 100 * mib * math.Sqrt(x/mib) * around(r, 0.03)
		}, 0.005, 0.20},
		{"saturating", func(r *rand.Rand, _ int) (float64, float64) {
			x := mib * math.Exp(6*r.Float64())
			return x, min(20*x, 500*mib) * around(r, 0.03)
		}, 0.02, 0.60},
		{"heavy tail", func(r *rand.Rand, _ int) (float64, float64) {
			return uniform(r), 100 * mib * math.Pow(1-r.Float64(), -1.0/3)
		}, 0.04, 0.75},
		{"log-normal", func(r *rand.Rand, _ int) (float64, float64) {
			return uniform(r), 100 * mib * around(r, 0.5)
		}, 0.04, 0.75},
		{"two modes", func(r *rand.Rand, _ int) (float64, float64) {
			return uniform(r), (100 + 50*float64(r.IntN(2))) * mib * around(r, 0.02)
		}, 0.005, 0.30},
		{"a seldom mode", func(r *rand.Rand, _ int) (float64, float64) {
			if r.IntN(20) == 0 {
				return uniform(r), 300 * mib * around(r, 0.02)
			}
			return uniform(r), 100 * mib * around(r, 0.02)
		}, 0.04, 0.75},
		{"drift", func(r *rand.Rand, i int) (float64, float64) {
			return uniform(r), 100 * mib * math.Pow(1.005, float64(i)) * around(r, 0.02)
		}, 0.02, 0.30},
		{"drift down", func(r *rand.Rand, i int) (float64, float64) {
			return uniform(r), 300 * mib * math.Pow(0.99, float64(i)) * around(r, 0.02)
		}, 0.005, 0.60},
		{"a step up", func(r *rand.Rand, i int) (float64, float64) {
			return uniform(r), 100 * mib * float64(1+2*(i/100)) * around(r, 0.02)
		}, 0.02, 0.30},
		{"a step down", func(r *rand.Rand, i int) (float64, float64) {
			return uniform(r), 300 * mib / float64(1+2*(i/100)) * around(r, 0.02)
		}, 0.005, 0.40},
		{"growing inputs", func(r *rand.Rand, i int) (float64, float64) {
			x := mib * float64(1+i)
			return x, (50*mib + 8*x) * around(r, 0.03)
		}, 0.01, 0.25},
	}
}

// told is what limits and intervals came to over a family.
type told struct{ attempts, under, covered, spare float64 }

// replay gives each attempt the limit that is learned from those before it; one that passes it is tried at twice that.
func replay(f family, seeds uint64) (total told) {
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 11))
		h := following()
		for i := range 200 {
			input, peak := f.draw(r, i)
			features := usage.Features{Input: input}
			if need, ok := usage.Learn(h, usual, usage.Term{}); ok {
				limit := given(need, features)
				low, high := need.At(features)*need.Low, need.At(features)*need.High
				total.attempts++
				if peak >= low && peak <= high {
					total.covered++
				}
				if limit < peak {
					total.under++
					h.Add(usage.Attempt{Peak: limit, Exceeded: true, Features: features})
				} else {
					total.spare += (limit - peak) / limit
				}
			}
			h.Add(usage.Attempt{Peak: peak, Features: features})
		}
	}
	total.spare /= max(1, total.attempts-total.under)
	total.under /= max(1, total.attempts)
	total.covered /= max(1, total.attempts)
	return total
}

func TestLimitsOfEveryFamilyAreTightAndSeldomPassed(t *testing.T) {
	t.Parallel()
	for _, f := range families() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			got := replay(f, 8)
			t.Logf("%s: %.2f%% of attempts pass their limit, %.1f%% of limits are spare, %.1f%% are within the 80%% interval",
				f.name, 100*got.under, 100*got.spare, 100*got.covered)
			if got.under > f.under || got.spare > f.spare {
				t.Errorf("%.2f%% of attempts pass their limit and %.1f%% of limits are spare, want at most %.2f%% and %.1f%%",
					100*got.under, 100*got.spare, 100*f.under, 100*f.spare)
			}
		})
	}
}
