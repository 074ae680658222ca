package usage

import (
	"math"
	"slices"
)

// Term is the part of a need that one feature explains. The zero value explains nothing.
type Term struct {
	// Feature is its name.
	Feature string `json:"feature,omitempty"`
	// Power is 1 where the need grows with the feature, 2 where it grows with its square, as attention does with the
	// length of a sequence, and 1/2 where each more adds less, as with what is found again in an index or a cache.
	Power float64 `json:"power,omitempty"`
	// PerUnit is how many bytes each unit of feature^Power adds; 0 or more.
	PerUnit float64 `json:"per_unit,omitempty"`
}

// At returns what the term adds for an attempt with these features: 0 where its feature is not known, never negative,
// never NaN.
func (t Term) At(features Features) float64 {
	if !(t.PerUnit > 0) {
		return 0
	}
	return min(t.PerUnit*power(features.Value(t.Feature), t.Power), math.MaxFloat64/4)
}

func power(value, exponent float64) float64 {
	switch exponent {
	case 0.5:
		return math.Sqrt(value)
	case 2:
		return value * value
	}
	return value
}

// point is one attempt as a regression sees it.
type point struct {
	x, y   float64 // feature^power, peak
	weight float64 // of the attempt's age
}

// fitted is need(x) = base + slope x, both 0 or more, and for each point the ratio of its peak to what the line through
// all the other points says there.
type fitted struct {
	base, slope float64
	ratios      []float64
}

// fitLine minimises sum w (y - base - slope x)^2 / f^2 over base >= 0 and slope >= 0, f being the fit itself: relative
// errors, because what is spare or missing is measured relative to the need, and otherwise the largest inputs alone
// would decide. The size that each error is relative to is the fitted one, found by reweighting until it settles
// (Wedderburn, Quasi-likelihood functions, generalized linear models, and the Gauss-Newton method, 1974,
// https://doi.org/10.1093/biomet/61.3.439): relative to the observed one, a peak of 3 MB among a hundred of 5 GB weighs
// as much as two million of them. Points that lie far off are given less weight (Huber, Robust estimation of a location
// parameter, 1964, https://doi.org/10.1214/aoms/1177703732), so that one attempt that leaked does not bend the line for
// all; it still counts in the ratios.
func fitLine(points []point, withSlope bool) fitted {
	weights, errors := make([]float64, len(points)), make([]float64, len(points))
	for i, p := range points {
		errors[i] = p.y
	}
	middle, smallest := median(errors), slices.Min(errors)
	for i, p := range points { // nothing is fitted yet: no few points move the median
		size := max(p.y, middle)
		weights[i] = p.weight / (size * size)
	}
	l := least(points, weights, withSlope)
	for range reweightings {
		sizeAt := func(p point) float64 { return max(l.at(p.x), smallest) } // a line through 0 says 0 at 0
		for i, p := range points {
			errors[i] = math.Abs(p.y-l.at(p.x)) / sizeAt(p)
		}
		scale := max(madToSigma*median(errors), leastSigma)
		for i, p := range points {
			weights[i] = p.weight / (sizeAt(p) * sizeAt(p)) * min(1, huber*scale/errors[i])
		}
		l = least(points, weights, withSlope)
	}
	f := fitted{base: l.base, slope: l.slope, ratios: make([]float64, len(points))}
	for i, p := range points {
		f.ratios[i] = ratio(p.y, l.without(p, weights[i]))
	}
	return f
}

// Constants of the reweighting: huber gives 95 percent of least squares' efficiency for normal errors, madToSigma makes
// a standard deviation of a median absolute deviation; errors below leastSigma are nobody's concern. Six rounds of
// reweighting lead from the median to a line through 0 over five decades (TestALineThroughZeroIsFoundOverFiveDecades).
const (
	reweightings = 6
	huber        = 1.345
	madToSigma   = 1.4826
	leastSigma   = 0.01
)

// line is base + slope x, with the sums that tell how much each point has moved it.
type line struct {
	base, slope                float64
	sum, sumX, sumXX, division float64
	kind                       int
}

// The kinds of lines: which of their two coefficients are free.
const (
	constant = iota
	proportional
	affine
)

func (l line) at(x float64) float64 { return l.base + l.slope*x }

// least is the line of weighted least squares; a coefficient that would be negative is 0.
func least(points []point, weights []float64, withSlope bool) line {
	var l line
	var sumY, sumXY float64
	for i, p := range points {
		w := weights[i]
		l.sum, l.sumX, l.sumXX = l.sum+w, l.sumX+w*p.x, l.sumXX+w*p.x*p.x
		sumY, sumXY = sumY+w*p.y, sumXY+w*p.x*p.y
	}
	l.base = sumY / l.sum
	l.division = l.sum*l.sumXX - l.sumX*l.sumX
	if !withSlope || l.division <= 1e-9*l.sum*l.sumXX {
		return l
	}
	slope := (l.sum*sumXY - l.sumX*sumY) / l.division
	switch base := (sumY - slope*l.sumX) / l.sum; {
	case slope <= 0: // more input never needs less
	case base < 0:
		l.kind, l.base, l.slope = proportional, 0, sumXY/l.sumXX
	default:
		l.kind, l.base, l.slope = affine, base, slope
	}
	return l
}

// without is what the line through all the other points says at p, in closed form: with the leverage h of p and its
// residual e, that line misses p by e / (1 - h) (Allen, The relationship between variable selection and data
// augmentation and a method for prediction, 1974, https://doi.org/10.1080/00401706.1974.10489157). Points at the edge
// of the inputs, where an error is likeliest, have the most leverage. Its oracle is TestLeavingOneOutEqualsRefitting.
func (l line) without(p point, weight float64) float64 {
	var leverage float64
	switch l.kind {
	case constant:
		leverage = 1 / l.sum
	case proportional:
		leverage = p.x * p.x / l.sumXX
	case affine:
		leverage = (l.sumXX - 2*p.x*l.sumX + p.x*p.x*l.sum) / l.division
	}
	h := leverage * weight
	if h >= mostLeverage { // no other point stands for this one, so nothing tells how wrong the line would be without it
		return l.at(p.x)
	}
	return p.y - (p.y-l.at(p.x))/(1-h)
}

// mostLeverage is the leverage from which a point counts as the only one of its kind.
const mostLeverage = 0.999

// The range of ratios; beyond it the line without the point says nonsense.
const leastRatio, mostRatio = 1.0 / 64, 64

func ratio(actual, predicted float64) float64 {
	if !(predicted > 0) {
		return mostRatio
	}
	return min(max(actual/predicted, leastRatio), mostRatio)
}
