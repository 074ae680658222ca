package usage_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// Tasks that begin to tell how many rows they have took what they take before, too: those that did not tell had some.
func TestWhatEarlierAttemptsDidNotTellIsNotNothing(t *testing.T) {
	t.Parallel()
	const rows = "rows"
	var peaks, times, n float64
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 61))
		h, seen := &usage.History{}, &usage.Times{}
		h.Follow(usage.InputBytes)
		seen.Follow(usage.InputBytes)
		var held usage.Term
		for i := range usage.MaxAttempts {
			x := 50 + 50*r.Float64()
			features := usage.Features{Input: mib}
			if i >= usage.MaxAttempts/2 {
				features.Named = map[string]float64{rows: x}
				h.Follow(rows)
				seen.Follow(rows)
			}
			h.Add(usage.Attempt{Peak: x * mib * around(r, 0.02), Features: features})
			seen.Add(x*around(r, 0.02), features)
			need, _ := usage.Learn(h, usual, held)
			held = need.Term
		}
		need, _ := usage.Learn(h, usual, held)
		duration, _ := usage.LearnDuration(seen, 1)
		for _, x := range []float64{50, 75, 100} {
			features := usage.Features{Input: mib, Named: map[string]float64{rows: x}}
			expected, _ := duration.At(features)
			peaks += usage.RelativeError(need.At(features)*need.Mid, x*mib)
			times += usage.RelativeError(expected.Mid, x)
			n++
		}
	}
	t.Logf("peaks are off by %.1f%% and run times by %.1f%%", 100*peaks/n, 100*times/n)
	if peaks/n > 0.05 || times/n > 0.05 {
		t.Errorf("peaks are off by %.1f%% and run times by %.1f%%, want at most 5%%", 100*peaks/n, 100*times/n)
	}
}

// A switch that was always off is followed, and makes room where there is none: it is known that it was off when it is
// on for the first time.
func TestWhatWasAlwaysNothingIsKnownAndMakesRoom(t *testing.T) {
	t.Parallel()
	h := &usage.History{}
	h.Follow(usage.InputBytes)
	h.Follow("off")
	h.Add(usage.Attempt{Peak: mib, Features: usage.Features{Input: 1, Named: map[string]float64{"off": 0}}})
	for i := range usage.MaxFeatures - 2 {
		h.Follow(string(rune('a' + i)))
	}
	if h.Follow("next") || !h.Room() {
		t.Fatalf("%v are followed, want no more and room for one", h.Names)
	}
	h.Forget()
	if !h.Follow("next") || slices.Contains(h.Names, "off") || !slices.Contains(h.Names, "a") {
		t.Errorf("%v are followed, want the next instead of what was off", h.Names)
	}
}
