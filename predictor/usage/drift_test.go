package usage_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// What attempts take changes with time: data grows, caches fill, somebody makes code faster. Nothing that is known of
// an attempt tells.
func TestIntervalsHoldWhileWhatAttemptsTakeDrifts(t *testing.T) {
	t.Parallel()
	type change struct {
		name        string
		level       func(i int) float64
		least, most float64
	}
	changes := []change{{"nothing changes", func(int) float64 { return 1 }, 0.76, 0.86}}
	for _, percent := range []float64{0.1, 0.25, 0.5, 1, 2, 5} {
		for _, way := range []float64{-1, 1} {
			by := 1 + way*percent/100
			changes = append(changes, change{
				fmt.Sprintf("%+g percent an attempt", way*percent),
				func(i int) float64 { return math.Pow(by, float64(i)) }, 0.70, 0.92,
			})
		}
	}
	for _, factor := range []float64{1.0 / 3, 0.8, 1.25, 3} {
		changes = append(changes, change{
			fmt.Sprintf("a step to %.2f times as much", factor),
			func(i int) float64 { return math.Pow(factor, float64(i/100)) }, 0.70, 0.92,
		})
	}
	for _, noise := range []float64{0.02, 0.1} {
		for _, c := range changes {
			t.Run(fmt.Sprintf("%s with noise of %g", c.name, noise), func(t *testing.T) {
				t.Parallel()
				var told, peaks, times float64
				width := 1.0
				for seed := range uint64(4) {
					r := rand.New(rand.NewPCG(seed, 41))
					h, seen := following(), &usage.Times{}
					seen.Follow(usage.InputBytes)
					for i := range 200 {
						x := mib * (1 + 99*r.Float64())
						features := usage.Features{Input: x}
						peak := (50*mib + 4*x) * c.level(i) * around(r, noise)
						seconds := (5 + x/mib) * c.level(i) * around(r, noise)
						if i >= 20 {
							told++
							need, _ := usage.Learn(h, usual, usage.Term{})
							if low, high := need.At(features)*need.Low, need.At(features)*need.High; peak >= low && peak <= high {
								peaks++
							}
							duration, _ := usage.LearnDuration(seen, width)
							expected, _ := duration.At(features)
							if seconds >= expected.Low && seconds <= expected.High {
								times++
							}
							width = usage.Widened(width, expected, seconds)
						}
						h.Add(usage.Attempt{Peak: peak, Features: features})
						seen.Add(seconds, features)
					}
				}
				t.Logf("%.1f%% of peaks and %.1f%% of run times are within the 80%% interval", 100*peaks/told, 100*times/told)
				if min(peaks, times)/told < c.least || max(peaks, times)/told > c.most {
					t.Errorf("%.1f%% of peaks and %.1f%% of run times are within the 80%% interval, want %.0f to %.0f", 100*peaks/told,
						100*times/told, 100*c.least, 100*c.most)
				}
			})
		}
	}
}
