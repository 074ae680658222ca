package usage

import (
	"math"
	"slices"
)

// following is how much of each error the level of attempts that drift follows (exponential smoothing: Brown,
// Smoothing, Forecasting and Prediction of Discrete Time Series, 1963). It is three attempts behind what changes
// steadily, and makes the errors of what does not change larger by 7 percent: sqrt(2 / (2 - following)).
const following = 0.25

// drift is what attempts, the oldest first, say of the next one whose logarithms relative to what is known of them
// change with time. Each error is that of the attempt relative to the level before it, so that whatever the level is
// behind is in the errors as well: their quantiles hold for the next attempt while what changes goes on as it did, and
// whichever way. Those of attempts that are left out of the fit do not: half of them came later (Barber et al., see
// [ratios], bound what is lost by the distance from exchangeability; here that distance is taken away first).
//
// Attempts that are not sure are judged and not followed. ok is false where levels are no closer to the attempts than
// their median by more than chance.
func drift(logs, weights []float64, sure func(i int) bool) (next []float64, ok bool) {
	if len(logs) < 2*Enough {
		return nil, false
	}
	later, weights := logs[Enough:], weights[Enough:]
	level, middle := median(logs[:Enough]), median(later)
	errors := make([]float64, len(later))
	for i, log := range later {
		errors[i] = math.Abs(log - middle)
	}
	most := huber * madToSigma * median(errors) // what one attempt that lies far off says is not what the next ones do
	for i, log := range later {
		if errors[i] = log - level; sure(Enough + i) {
			level += following * min(max(errors[i], -most), most)
		}
	}
	sum, squares, weight := 0.0, 0.0, 0.0
	for i, log := range later {
		if sure(Enough + i) {
			better := math.Abs(log-middle) - math.Abs(errors[i])
			sum, squares, weight = sum+weights[i]*better, squares+weights[i]*better*better, weight+weights[i]
		}
	}
	if !(sum > 0) {
		return nil, false
	}
	mean := sum / weight
	quantile := math.Sqrt2 * math.Erfinv(1-2*byChance) // of the normal distribution
	if !(mean > quantile*math.Sqrt(max(0, squares/weight-mean*mean)*worthOf(weights))) {
		return nil, false
	}
	for i := range errors {
		errors[i] += level
	}
	return slices.Clip(errors), true
}
