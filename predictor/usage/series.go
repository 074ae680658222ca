package usage

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// Series is a ring of the latest values. The zero value is empty.
type Series struct {
	Next   int       `json:"next,omitempty"`
	Values []float64 `json:"values,omitempty"`
}

// Push adds value, replacing the oldest of limit values. Values that are not finite or below zero are left out.
func (s *Series) Push(value float64, limit int) {
	if !(value >= 0) || math.IsInf(value, 0) {
		return
	}
	if len(s.Values) < limit {
		s.Values = append(s.Values, value)
		return
	}
	s.Next %= len(s.Values)
	s.Values[s.Next] = value
	s.Next = (s.Next + 1) % limit
}

// quantiles returns the nearest-rank quantiles of the values: the smallest value that at least q of them do not exceed.
// All are 0 when there is no value.
func (s Series) quantiles(qs ...float64) []float64 {
	var room [MaxAttempts]float64 // on the stack: a tick asks for thousands
	sorted := append(room[:0], s.Values...)
	slices.Sort(sorted)
	found := make([]float64, len(qs))
	for i, q := range qs {
		if len(sorted) > 0 {
			rank := int(math.Ceil(q*float64(len(sorted)))) - 1
			found[i] = sorted[min(max(rank, 0), len(sorted)-1)]
		}
	}
	return found
}

// Quantile is one of quantiles.
func (s Series) Quantile(q float64) float64 { return s.quantiles(q)[0] }

// Largest is the largest value, 0 where there is none.
func (s Series) Largest() float64 {
	largest := 0.0
	for _, value := range s.Values {
		largest = max(largest, value)
	}
	return largest
}

// Mean returns the mean and the coefficient of variation; both 0 without values.
func (s Series) Mean() (mean, variation float64) {
	if len(s.Values) == 0 {
		return 0, 0
	}
	for _, value := range s.Values {
		mean += value / float64(len(s.Values))
	}
	for _, value := range s.Values {
		variation += (value - mean) * (value - mean) / float64(len(s.Values))
	}
	if mean > 0 {
		variation = math.Sqrt(variation) / mean
	}
	return mean, variation
}

// Interval has the middle 80 percent of the values.
func (s Series) Interval() fact.Interval {
	q := s.quantiles(0.1, 0.5, 0.9)
	return fact.Interval{Low: q[0], Mid: q[1], High: q[2]}
}

// spreadOfOne is by what factor another run may take more or less than the only one that is known of its pipeline:
// one run tells nothing of how much runs differ. Two runs of the same input on the same machine have differed by 1.4
// because of what else ran there.
const spreadOfOne = 2

// AcrossRuns is what another run takes of what these runs took. The interval of one value is no single number, which
// would promise what nobody knows: it reaches from half to twice.
func (s Series) AcrossRuns() fact.Interval {
	i := s.Interval()
	if len(s.Values) == 1 {
		i.Low, i.High = i.Mid/spreadOfOne, i.Mid*spreadOfOne
	}
	return i
}

// Residual is how many seconds an attempt of this age still takes: the mean of what the longer ones among the values
// took beyond it; 0 when it has outlived them all. Without values it is what is missing to otherwise.
func (s Series) Residual(age, otherwise float64) float64 {
	if len(s.Values) == 0 {
		return max(0, otherwise-age)
	}
	sum, longer := 0.0, 0
	for _, value := range s.Values {
		if value > age {
			sum += value - age
			longer++
		}
	}
	return sum / float64(max(1, longer))
}

// RelativeError is by how much the larger of two positive numbers exceeds the smaller, relative to the smaller: 0 is
// exact, 1 is double or half. Unlike |predicted-actual|/actual it does not stay below 1 however far the prediction was
// too low. It is 0 when either is not positive or not finite: nothing was predicted, or nothing measured.
func RelativeError(predicted, actual float64) float64 {
	if !(predicted > 0) || !(actual > 0) || math.IsInf(predicted, 0) || math.IsInf(actual, 0) {
		return 0
	}
	return max(predicted/actual, actual/predicted) - 1
}
