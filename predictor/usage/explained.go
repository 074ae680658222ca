package usage

import (
	"math"
	"slices"
)

// explained is a surface over products of features, and what it is worth.
type explained struct {
	*search
	fitted
	shape
	// levels are the logarithms of those of its category.
	levels []float64
	// from is the first attempt from which on all of its features are known; what came before is no evidence for it.
	from int
	// off is how far the peaks that were measured are from what the others say, as a mean of logarithms.
	off float64
	// price is the mean cost of limits by it; 0 while it is not known.
	price float64
}

// worthwhile reports whether limits by e cost so much less than by a simpler explanation that it is believed.
func (e explained) worthwhile(simple explained) bool {
	from := max(e.from, simple.from)
	price := simple.priceFrom(from)
	return e.priceFrom(from) < min(simpler*price, price-leastHeadroom)
}

// priceFrom is the price of the attempts from one on.
func (e explained) priceFrom(from int) float64 {
	if from == e.from {
		return e.price
	}
	e.from = from
	return e.cost()
}

// alone reports whether a part of the explanation is a power of a column.
func (e explained) alone(column int) bool {
	return slices.ContainsFunc(e.products, func(p product) bool { return !p.double() && p[0].column == column })
}

// level fits the levels of the category; there are none where they explain nothing.
func (e *explained) level(rounds int) {
	of, n := e.kinds[e.by-1], len(e.ratios)
	var rows [3][mostAttempts]float64
	factors, logs, weights := rows[0][:n], rows[1][:n], rows[2][:n]
	copy(weights[e.from:], e.all.weights[e.from:])
	for i, ratio := range e.ratios {
		factors[i], logs[i] = 1, math.Log(ratio)
	}
	for turn := range turns {
		levels, without, ok := of.pool(logs, weights)
		if e.levels = levels; !ok {
			return
		}
		if turn == turns-1 {
			for i, log := range logs {
				e.ratios[i] = math.Exp(log - without[i])
			}
			return
		}
		for i, kind := range of.of {
			factors[i] = math.Exp(levels[kind])
		}
		e.fitted = e.fit(e.products, factors, rounds)
		for i, ratio := range e.ratios {
			logs[i] = math.Log(ratio * factors[i])
		}
	}
}

// missed is how far the i-th peak is from what the others say, as a logarithm.
func (e explained) missed(i int) float64 { return math.Abs(math.Log(e.ratios[i])) }

// closer reports whether e predicts the attempts better than other by more than the best of so many tries does by
// chance once in twenty times (Bonferroni; TestTheBestOfManyFeaturesOfNoiseIsNotBelieved): the standard error of a mean
// of paired differences is their deviation divided by the root of how many they are, or their weights are worth (Kish,
// Survey Sampling, 1965, 8.2).
func (e explained) closer(other explained, tries int) bool {
	from, mean, worth := max(e.from, other.from), other.off-e.off, e.worth
	if from > 0 {
		mean = e.mean(from, other.missed) - e.mean(from, e.missed)
		worth = worthOf(e.measured.weights[e.measuredBefore(from):])
	}
	squares := e.mean(from, func(i int) float64 {
		difference := other.missed(i) - e.missed(i)
		return difference * difference
	})
	variance := max(0, squares-mean*mean)
	quantile := math.Sqrt2 * math.Erfinv(1-2*byChance/float64(tries)) // of the normal distribution
	return mean > math.Sqrt(variance*worth)*quantile
}

// holds reports whether all parts of the explanation add something, and none more than is possible for each byte of
// input.
func (e explained) holds() bool {
	if !e.slopes(len(e.products)) || e.by > 0 && e.levels == nil {
		return false
	}
	for k, one := range e.products {
		for _, f := range one {
			if f.exponent > 0 && f.column != inOrder && e.names[f.column] == InputBytes &&
				e.coefficients[1+k] > maxPerUnit*e.unit(f) {
				return false
			}
		}
	}
	return true
}

// ofInput reports whether the input's bytes explain something.
func (s *search) ofInput(e explained) bool {
	for _, one := range e.products {
		for _, f := range one {
			if f.exponent > 0 && s.names[f.column] == InputBytes {
				return true
			}
		}
	}
	return false
}

// sorted are the ratios with their weights.
func (e explained) sorted() ratios { return ratiosOf(e.ratios[e.from:], e.all.weights[e.from:]) }

// next are the ratios that the next attempt is expected to have; see [drift].
func (e explained) next() ratios {
	from := max(e.from, e.rare) // what is rare came long before the others
	logs := make([]float64, len(e.ratios)-from)
	for i, ratio := range e.ratios[from:] {
		logs[i] = math.Log(ratio)
	}
	next, drifts := drift(logs, e.all.weights[from:], func(i int) bool { return !e.exceeded[from+i] })
	if !drifts {
		return e.sorted()
	}
	for i, log := range next {
		next[i] = math.Exp(log)
	}
	return ratiosOf(next, e.all.weights[len(e.all.weights)-len(next):])
}

// cost is the mean cost of the attempts; see [ratios.price].
func (e explained) cost() float64 {
	all := e.sorted()
	_, limit, above := all.bound(e.stakes)
	return all.price(limit, above, e.stakes)
}

// need is what the explanation comes to.
func (e explained) need() Need {
	parts := make([]Part, len(e.products))
	for k := range parts {
		parts[k] = e.part(k)
	}
	need := Need{Base: e.coefficients[0], Term: termOf(parts), Attempts: e.known - e.measuredBefore(e.from)}
	if e.by > 0 {
		levels := e.kinds[e.by-1].levels(e.levels)
		top := levels.largest()
		need.Base, need.Term, need.Levels = need.Base*top, need.Term.Scaled(top), levels.divided(top)
		need.Term.By, need.Unseen = levels.Name, need.Levels.unseen(e.stakes.Excess)
	}
	need.Explained = need.Term.String()
	all := e.sorted()
	usual := e.stakes.Margin
	next := e.next()
	need.Low, need.Mid, need.High = next.quantile(0.1, usual), next.quantile(0.5, usual), next.quantile(0.9, usual)
	need.Low, need.High = need.Low*(1-rounding), need.High*(1+rounding)
	var above int
	if need.Bound, need.Limit, above = all.bound(e.stakes); above >= enoughAbove {
		need.Above = all[len(all)-1].ratio * need.Limit / need.Bound
	}
	return need
}

// part is one product in the units of its features.
func (e explained) part(k int) Part {
	one, high := e.products[k], 0.0
	for i := range e.order { // of which the values are parts
		high = max(high, e.value(one, i))
	}
	first, unit := one[0], e.unit(one[0])
	part := Part{Feature: e.names[first.column], Power: first.exponent, PerUnit: e.coefficients[1+k] / high}
	switch first.exponent {
	case 0.5, 1, 2:
		part.PerUnit /= power(unit, first.exponent)
	default:
		part.Unit, part.PerUnit = unit, part.PerUnit/unit
	}
	if one.double() {
		part.With, part.WithPower, part.WithUnit = e.names[one[1].column], one[1].exponent, e.unit(one[1])
	}
	return part
}

// worthOf is the variance of a mean with these weights relative to that of one value.
func worthOf(weights []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, weight := range weights {
		sum, squares = sum+weight, squares+weight*weight
	}
	return squares / (sum * sum)
}
