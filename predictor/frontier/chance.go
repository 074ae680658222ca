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
func (f Frontier) Within(p Point, most float64) float64 {
	return f.chance(p, p.Seconds, most, seconds)
}

// Affords is the probability that a point costs at most so much, where what an option costs grows with its time.
func (f Frontier) Affords(p Point, cost quantity.Money) float64 {
	return f.chance(p, float64(p.Cost), float64(cost), picodollars)
}

// Quantile is the time within which a point ends with this probability, which is above 0 and below 1: the inverse of
// Within.
func (f Frontier) Quantile(p Point, probability float64) float64 {
	return sumOf(f.stages, p.Options, p.Seconds, seconds).Quantile(probability)
}

// After is how long a job of such stages goes on with p once that of this index has ended: the options of the later
// ones, without changes of capacity.
func (p Point) After(stages [][]Option, stage int) Sum { return p.later(stages, stage, seconds) }

// Costs is what the later ones cost, in picodollars, where what an option costs grows with its time.
func (p Point) Costs(stages [][]Option, stage int) Sum { return p.later(stages, stage, picodollars) }

func (p Point) later(stages [][]Option, stage int, of func(Option) float64) Sum {
	stages, options, medians := stages[stage+1:], p.Options[stage+1:], 0.0
	for i, option := range options {
		medians += of(stages[i][option])
	}
	return sumOf(stages, options, medians, of)
}

func seconds(o Option) float64     { return o.Seconds }
func picodollars(o Option) float64 { return float64(o.Cost) }

// chance is the probability that a sum over a point's options is at most this much; sum is that of the medians, with
// what is certain.
func (f Frontier) chance(p Point, sum, most float64, of func(Option) float64) float64 {
	return sumOf(f.stages, p.Options, sum, of).Within(most)
}

// Sum is a sum over options of what each takes, or costs: a part that is certain, and a rest that is log-normal
// (Fenton, see Within of a Frontier). The zero value is a certain nothing.
type Sum struct {
	// Certain is in seconds or picodollars.
	Certain float64
	// Middle and Spread are the mean and the standard deviation of the logarithm of the rest; there is none where Spread
	// is 0.
	Middle, Spread float64
}

// Within is the probability that the sum is at most this much.
func (s Sum) Within(most float64) float64 {
	left := most - s.Certain
	switch {
	case s.Spread == 0:
		if s.Certain <= most {
			return 1
		}
		return 0
	case left <= 0:
		return 0
	}
	return 0.5 * math.Erfc(-(math.Log(left)-s.Middle)/(math.Sqrt2*s.Spread))
}

// Quantile is what the sum is at most with this probability, which is above 0 and below 1.
func (s Sum) Quantile(probability float64) float64 {
	if s.Spread == 0 {
		return s.Certain
	}
	return s.Certain + math.Exp(s.Middle+s.Spread*math.Sqrt2*math.Erfinv(2*probability-1))
}

// negligible are seconds, or picodollars, that are certain: of what is far less the square is 0.
const negligible = 1e-12

// sumOf is the distribution of the sum of options, of which sum is that of the medians, with what is certain.
func sumOf(stages [][]Option, options []int, sum float64, of func(Option) float64) Sum {
	certain := sum
	mean, variance, doubt := 0.0, 0.0, 0.0
	for stage, i := range options {
		o := stages[stage][i]
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
	square := 0.0
	if mean > 0 {
		square = math.Log1p(variance / (mean * mean))
	}
	if square == 0 { // or too little to be told from it
		return Sum{Certain: sum}
	}
	return Sum{Certain: max(certain, 0), Middle: math.Log(mean) - square/2, Spread: math.Sqrt(square)}
}
