package frontier

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Sure is the cheapest point that takes at most this long with at least the probability asked, by the spreads and
// doubts of its options; not found where none does. See Within.
func (f Frontier) Sure(seconds, confidence float64) (p Point, probability float64, found bool) {
	for i, end := range slices.Backward(f.ends) {
		// The sum of the medians is far beyond it, and so, but for what is approximate in Within, is the median of the sum.
		if !(end.seconds <= farBeyond*seconds) && confidence >= 0.5 {
			continue
		}
		p = f.At(i)
		if probability = f.Within(p, seconds); probability >= confidence {
			return p, probability, true
		}
	}
	return Point{}, 0, false
}

const farBeyond = 1.1

// Within is the probability that a point takes at most this long, by the spreads of its options, which are
// independent, and their doubts, which are not; Option.Seconds are medians where there is either. The sum of
// log-normal times is taken as log-normal with the sum's mean and variance (Fenton, The sum of log-normal probability
// distributions in scatter transmission systems, 1960, https://doi.org/10.1109/TCOM.1960.1097606). Changes of
// capacity are certain.
func (f Frontier) Within(p Point, seconds float64) float64 {
	return f.chance(p, p.Seconds, seconds, func(o Option) float64 { return o.Seconds })
}

// Affords is the probability that a point costs at most so much, where what an option costs grows with its time.
func (f Frontier) Affords(p Point, cost quantity.Money) float64 {
	return f.chance(p, float64(p.Cost), float64(cost), func(o Option) float64 { return float64(o.Cost) })
}

// Quantile is the time within which a point ends with this probability, which is above 0 and below 1: the inverse of
// Within.
func (f Frontier) Quantile(p Point, probability float64) float64 {
	certain, middle, spread := f.distribution(p, p.Seconds, func(o Option) float64 { return o.Seconds })
	if spread == 0 {
		return p.Seconds
	}
	return certain + math.Exp(middle+spread*math.Sqrt2*math.Erfinv(2*probability-1))
}

// chance is the probability that a sum over a point's options is at most this much; sum is that of the medians, with
// what is certain.
func (f Frontier) chance(p Point, sum, most float64, of func(Option) float64) float64 {
	certain, middle, spread := f.distribution(p, sum, of)
	left := most - certain
	switch {
	case spread == 0:
		if sum <= most {
			return 1
		}
		return 0
	case left <= 0:
		return 0
	}
	return 0.5 * math.Erfc(-(math.Log(left)-middle)/(math.Sqrt2*spread))
}

// negligible are seconds, or picodollars, that are certain: of what is far less the square is 0.
const negligible = 1e-12

// distribution is that of a sum over a point's options: what is certain of it, and the parameters of the log-normal
// distribution of the rest; without a spread all of it is certain.
func (f Frontier) distribution(p Point, sum float64, of func(Option) float64) (certain, middle, spread float64) {
	certain = sum
	mean, variance, doubt := 0.0, 0.0, 0.0
	for stage, i := range p.Options {
		o := f.stages[stage][i]
		median := of(o)
		if o.Spread == 0 && o.Doubt == 0 || median < negligible {
			continue
		}
		certain -= median
		own, common := o.Spread*o.Spread, o.Doubt*o.Doubt
		average := median * math.Exp((own+common)/2)
		mean += average
		variance += average * average * math.Exp(common) * math.Expm1(own)
		doubt += average * math.Sqrt(math.Expm1(common))
	}
	variance += doubt * doubt
	if mean == 0 {
		return sum, 0, 0
	}
	square := math.Log1p(variance / (mean * mean))
	return max(certain, 0), math.Log(mean) - square/2, math.Sqrt(square)
}
