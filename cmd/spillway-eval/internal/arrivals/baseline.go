package arrivals

import (
	"math"
	"slices"
	"sort"
)

// residualBuckets is how many buckets back the residuals of a baseline reach.
const residualBuckets = 1440

// Point is a rule that forecasts one number: that of bucket len(past)-1+ahead after the counts of past, in which NaN is
// missing. NaN means that it knows none.
type Point func(past []float64, ahead int) float64

// LastValue is the count of the latest bucket that is known.
func LastValue() Point {
	last := math.NaN()
	return func(past []float64, _ int) float64 {
		if latest := past[len(past)-1]; !math.IsNaN(latest) {
			last = latest
		}
		return last
	}
}

// SeasonalNaive is the count a period before, or as many periods before as it takes to find one that is known.
func SeasonalNaive(period int) Point {
	return func(past []float64, ahead int) float64 {
		for i := len(past) - 1 + ahead - period; i >= 0; i -= period {
			if i < len(past) && !math.IsNaN(past[i]) {
				return past[i]
			}
		}
		return math.NaN()
	}
}

// EWMA is the mean of what is known, the latest bucket with the weight alpha.
func EWMA(alpha float64) Point {
	mean := math.NaN()
	return func(past []float64, _ int) float64 {
		switch latest := past[len(past)-1]; {
		case math.IsNaN(latest):
		case math.IsNaN(mean):
			mean = latest
		default:
			mean += alpha * (latest - mean)
		}
		return mean
	}
}

// Profile is the mean of the counts at the same time of the last periods that are known.
func Profile(period, periods int) Point {
	return func(past []float64, ahead int) float64 {
		sum, n := 0.0, 0.0
		for k := 1; k <= periods; k++ {
			i := len(past) - 1 + ahead - k*period
			if i >= 0 && i < len(past) && !math.IsNaN(past[i]) {
				sum, n = sum+past[i], n+1
			}
		}
		return sum / n
	}
}

// Spread is a Point with the quantiles of its residuals in the last 1,440 buckets.
type Spread struct {
	point  Point
	ahead  int
	past   []float64
	points []float64 // by the bucket that they are of
	sorted []float64 // the residuals in the window
	window []float64 // the same in the order of time, NaN where there is none
}

// NewSpread returns one that forecasts ahead buckets ahead.
func NewSpread(point Point, ahead int) *Spread {
	return &Spread{point: point, ahead: ahead, points: slices.Repeat([]float64{math.NaN()}, ahead)}
}

// Observe takes the count of the next bucket, NaN where it is missing.
func (s *Spread) Observe(count float64) {
	residual := count - s.points[len(s.past)]
	s.past = append(s.past, count)
	s.points = append(s.points, s.point(s.past, s.ahead))
	s.window = append(s.window, residual)
	if !math.IsNaN(residual) {
		at := sort.SearchFloat64s(s.sorted, residual)
		s.sorted = slices.Insert(s.sorted, at, residual)
	}
	if len(s.window) > residualBuckets {
		if oldest := s.window[0]; !math.IsNaN(oldest) {
			at := sort.SearchFloat64s(s.sorted, oldest)
			s.sorted = slices.Delete(s.sorted, at, at+1)
		}
		s.window = s.window[1:]
	}
}

// Quantile of the count ahead buckets after the latest, not below 0; NaN where none is known.
func (s *Spread) Quantile(level float64) float64 {
	if len(s.sorted) == 0 {
		return math.NaN()
	}
	at := level * float64(len(s.sorted)-1)
	below := int(at)
	above := min(below+1, len(s.sorted)-1)
	residual := s.sorted[below] + (at-float64(below))*(s.sorted[above]-s.sorted[below])
	return math.Max(0, s.points[len(s.points)-1]+residual) // NaN stays NaN
}
