package curve

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// Values is the distribution of the best value of a run at a step, in the unit of its values. Its zero value is of a
// run of which nothing is known.
type Values struct {
	direction Direction
	// losses are in order.
	losses []weighted
}

type weighted struct{ loss, weight float64 }

func distribution(direction Direction, losses []weighted) Values {
	slices.SortFunc(losses, func(a, b weighted) int { return cmp.Compare(a.loss, b.loss) })
	return Values{direction, losses}
}

// Known says whether anything is; if not, every quantile is NaN.
func (v Values) Known() bool { return len(v.losses) > 0 }

// Quantile is the value that what comes is below with a chance, above 0 and below 1: a low one of an accuracy is a poor
// one, a low one of a loss a good one. NaN where the chance is out of its range or nothing is known.
func (v Values) Quantile(chance float64) float64 {
	if !v.Known() || !(chance > 0 && chance < 1) {
		return math.NaN()
	}
	if v.direction == Maximise {
		chance = 1 - chance
	}
	total, sum := 0.0, 0.0
	for _, of := range v.losses {
		total += of.weight
	}
	for _, of := range v.losses {
		if sum += of.weight; sum >= chance*total {
			return v.direction.loss(of.loss)
		}
	}
	return v.direction.loss(v.losses[len(v.losses)-1].loss)
}

// Interval holds the value with a chance, above 0 and below 1, as often below as above.
func (v Values) Interval(chance float64) (low, high float64) {
	return v.Quantile((1 - chance) / 2), v.Quantile((1 + chance) / 2)
}

// Middle is the interval that holds the value in eight of ten cases, around the median; nil where nothing is known, or
// it has no end.
func (v Values) Middle() *fact.Interval {
	low, high := v.Interval(0.8)
	mid := v.Quantile(0.5)
	if !finite(low) || !finite(mid) || !finite(high) {
		return nil
	}
	return &fact.Interval{Low: low, Mid: mid, High: high}
}

// scores10 are the normal scores of the deciles' middles, which stand for a normal distribution.
var scores10 = [...]float64{-1.645, -1.036, -0.674, -0.385, -0.126, 0.126, 0.385, 0.674, 1.036, 1.645}

// values are the losses of the curves at u. A curve that is off by a part of what it says will be gained is off by as
// much as its reach is: astray. A best loss does not get worse.
func (e *ensemble) values(u, weight float64, into []weighted) []weighted {
	if len(e.members) == 0 {
		return append(into, weighted{e.lowest, weight})
	}
	for _, m := range e.members {
		if m.weight < 1e-4 {
			continue
		}
		loss := m.at(e, u)
		off := math.Hypot(astray*(e.lowest-loss), math.Min(e.noise, e.lowest-loss))
		for _, score := range scores10 {
			into = append(into, weighted{math.Min(e.lowest, loss+score*off), weight * m.weight / float64(len(scores10))})
		}
	}
	return into
}

// thirds are the losses in the middle of each third of what the curves say at u, as scores3 has them of a normal one.
func (e *ensemble) thirds(u float64) []float64 {
	alone := distribution(Minimise, e.values(u, 1, nil))
	return []float64{alone.Quantile(1.0 / 6), alone.Quantile(0.5), alone.Quantile(5.0 / 6)}
}
