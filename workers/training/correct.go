package training

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor"
)

// correction is by what predictions are multiplied. The zero value is no valid one; see unchanged.
type correction struct{ time, peak float64 }

// unchanged leaves predictions as they are.
var unchanged = correction{time: 1, peak: 1}

// mostPast is how many trainings correct a plan.
const mostPast = 5

// corrected learns from past trainings of a model, newest first: the medians of what was measured over what is
// predicted for the same plan today, without any correction, over at most five of them. today prices a past training
// and returns false where it is of another kind. That what was predicted at that time is not used is why a correction
// does not swing: it held the correction of its own day.
func corrected(past []predictor.Training, today func(predictor.Training) (candidate, bool)) (by correction, used int) {
	var times, peaks []float64
	for _, t := range past {
		if used == mostPast {
			break
		}
		made, alike := today(t)
		if !alike {
			continue
		}
		used++
		times = appendRatio(times, t.StepSeconds, made.seconds)
		held, predicted := 0.0, 0.0
		for i, p := range t.Parts {
			if p.PeakBytes > 0 && i < len(made.parts) {
				held, predicted = max(held, float64(p.PeakBytes)), max(predicted, made.parts[i].peak)
			}
		}
		peaks = appendRatio(peaks, held, predicted)
	}
	return correction{time: median(times, 1), peak: median(peaks, 1)}, used
}

// appendRatio appends measured over predicted where both are known.
func appendRatio(to []float64, measured, predicted float64) []float64 {
	if ratio := measured / predicted; measured > 0 && predicted > 0 && !math.IsInf(ratio, 1) {
		return append(to, ratio)
	}
	return to
}

// median is the middle of values, the mean of both of an even number; without any it is none.
func median(values []float64, none float64) float64 {
	n := len(values)
	if n == 0 {
		return none
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
