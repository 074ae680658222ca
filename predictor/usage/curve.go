package usage

import (
	"math"
	"slices"
)

// timed is an attempt as a curve of run times sees it.
type timed struct {
	x            float64 // the feature
	seconds, log float64
	weight       float64 // of its age
	place        int
}

// timed lists the attempts of which the feature of a column was known, the oldest first; all where column is -1.
func (t *Times) timed(column int) []timed {
	found := make([]timed, 0, len(t.Values))
	weight := 1.0
	for i := range t.Values { // the latest first
		place := (t.Next + len(t.Values) - 1 - i) % len(t.Values)
		value := min(max(t.Values[place], leastSeconds), mostSeconds)
		a := timed{seconds: value, log: math.Log(value), weight: weight, place: place}
		if weight *= fade; column >= 0 {
			if a.x = t.Columns[column][place]; a.x < 0 {
				continue
			}
		}
		found = append(found, a)
	}
	slices.Reverse(found)
	return found
}

// curve is a Duration without its quantiles, and what it rests on: the attempts, and for each the logarithm of what the
// curve through all the others comes to.
type curve struct {
	Duration
	attempts []timed
	others   []float64
}

// price is the mean error of the attempts, each predicted by the others, weighted by age.
func (c curve) price() float64 {
	sum, weights := 0.0, 0.0
	for i, a := range c.attempts {
		sum, weights = sum+a.weight*math.Abs(a.log-c.others[i]), weights+a.weight
	}
	return sum / weights
}

// levelled is the curve with the levels of a category, by which each attempt is predicted by the others of its kind; ok
// is false where these explain nothing. The seconds of the attempts are divided by factors already, where there are
// some.
func (c curve) levelled(t *Times, column int, factors []float64) (next curve, ok bool) {
	values, logs := make([]float64, len(c.attempts)), make([]float64, len(c.attempts))
	weights := make([]float64, len(c.attempts))
	next = c
	next.attempts, next.others = slices.Clone(c.attempts), slices.Clone(c.others)
	for i, a := range c.attempts {
		values[i], weights[i] = t.kind(t.Names[column], a.place), a.weight
		if factors != nil {
			next.attempts[i].log += math.Log(factors[a.place])
		}
		logs[i] = next.attempts[i].log - c.curve(a.x)
	}
	found, ok := kindsOf(t.Names[column], values)
	if !ok {
		return c, false
	}
	levels, without, ok := found.pool(logs, weights)
	if !ok {
		return c, false
	}
	for i := range next.others {
		next.others[i] += without[i]
	}
	next.Levels = found.levels(levels)
	return next, true
}

// usualSpread is by what part run times with the same input usually differ. It counts while few tell otherwise, above
// all where one does: the next is between half and twice that (1.9), as for the only run that is known of a pipeline
// (spreadOfOne).
const usualSpread = 0.05

// learned is the curve with the quantiles of how far the attempts lie from it.
func (c curve) learned(width float64) Duration {
	away, weights := make([]float64, len(c.attempts)), make([]float64, len(c.attempts))
	for i, a := range c.attempts {
		away[i] = (a.log - c.others[i]) / c.unit(a.x)
		weights[i] = a.weight
	}
	if next, drifts := drift(away, weights, func(int) bool { return true }); drifts {
		away, weights = next, weights[len(away)-len(next):]
	}
	for i, log := range away {
		away[i] = math.Exp(log)
	}
	errors := ratiosOf(away, weights)
	at := func(q float64) float64 { return math.Log(errors.quantile(q, usualSpread)) }
	d, least := c.Duration, leastSpread(errors.weight())
	d.Attempts, d.Middle = len(c.attempts), at(0.5)
	d.Below = d.Middle - width*max(d.Middle-at(0.1), least)
	d.Above = d.Middle + width*max(at(0.9)-d.Middle, least)
	return d
}

// leastSpread is how far 80 percent of attempts are expected from the middle where so many, by their weights, were all
// alike. That two are alike is chance more often than not: with the usual spread, the third was within the interval of
// such two in three of five cases (TestTwoAlikeRunTimesAreNoPromise). So how far attempts lie from the middle on either
// side is thought of as exponential, as beyond the largest (tail), after one distance that is the usual one and a
// distance of 0 for each further attempt: 6 percent after two, 2 after five, and 0.4 after 32, of which the oldest
// count less.
func leastSpread(attempts float64) float64 {
	return tail{attempts: max(attempts, 1), excess: usualSpread}.quantile(0.2)
}

// constantTime is the curve over nothing.
func constantTime(attempts []timed) curve {
	c, _ := powerOfTime(attempts, "")
	return c
}

// powerOfTime fits a power of the feature, or a constant where name is empty: a line over the logarithms. It does not
// fit where an attempt had a feature of 0, or all had the same.
func powerOfTime(attempts []timed, name string) (curve, bool) {
	if name != "" && slices.ContainsFunc(attempts, func(a timed) bool { return a.x == 0 }) {
		return curve{}, false
	}
	points, weights := make([]point, len(attempts)), make([]float64, len(attempts))
	for i, a := range attempts {
		points[i] = point{y: a.log, weight: a.weight}
		if name != "" {
			points[i].x = math.Log(a.x)
		}
		weights[i] = a.weight
	}
	l, errors := centred(points, weights), make([]float64, len(points))
	for range reweightings {
		if name != "" && !l.slopes() {
			return curve{}, false
		}
		for i, p := range points {
			errors[i] = math.Abs(p.y - l.at(p.x))
		}
		scale := max(madToSigma*median(errors), leastSigma)
		for i, p := range points {
			weights[i] = p.weight * min(1, huber*scale/errors[i])
		}
		l = centred(points, weights)
	}
	c := curve{attempts: attempts, others: make([]float64, len(attempts))}
	for i, p := range points {
		c.others[i] = l.without(p, weights[i])
	}
	part := worth(points)
	c.Duration = Duration{
		Feature: name, Power: name != "", Level: math.Exp(l.level), Slope: l.slope, Centre: l.centre,
		Fixed: part, Away: part * l.spread(),
	}
	c.follow()
	return c, true
}

// lineOfTime fits a line over the feature, by least squares of errors relative to it. It does not fit where all
// attempts had the same feature.
func lineOfTime(attempts []timed, name string) (curve, bool) {
	points, weights := make([]point, len(attempts)), make([]float64, len(attempts))
	errors := make([]float64, len(attempts))
	for i, a := range attempts {
		points[i] = point{x: a.x, y: a.seconds, weight: a.weight}
		errors[i] = a.seconds
	}
	middle, least := median(errors), slices.Min(errors)/Beyond
	for i, p := range points { // nothing is fitted yet: no few points move the median
		size := max(p.y, middle)
		weights[i] = p.weight / (size * size)
	}
	l := centred(points, weights)
	sizeAt := func(p point) float64 { return max(l.at(p.x), least) }
	for range reweightings {
		if !l.slopes() {
			return curve{}, false
		}
		for i, p := range points {
			errors[i] = math.Abs(p.y-l.at(p.x)) / sizeAt(p)
		}
		scale := max(madToSigma*median(errors), leastSigma)
		for i, p := range points {
			weights[i] = p.weight / (sizeAt(p) * sizeAt(p)) * min(1, huber*scale/errors[i])
		}
		l = centred(points, weights)
	}
	if !l.slopes() {
		return curve{}, false
	}
	c := curve{attempts: attempts, others: make([]float64, len(attempts))}
	weight := 0.0
	for i, p := range points {
		c.others[i] = math.Log(max(l.without(p, weights[i]), least))
		weight += p.weight
	}
	part := worth(points)
	c.Duration = Duration{
		Feature: name, Level: l.level, Slope: l.slope, Centre: l.centre, Least: least,
		Fixed: part * weight / l.sum, Away: part * weight / l.sum * l.spread(),
	}
	c.follow()
	return c, true
}

// follow says how far the curve is followed: beyond the values that were seen by as many times as the largest is larger
// than the smallest, at most by Beyond.
func (c *curve) follow() {
	if c.Feature == "" {
		return
	}
	low, high := math.Inf(1), 0.0
	for _, a := range c.attempts {
		low, high = min(low, a.x), max(high, a.x)
	}
	by := min(high/low, Beyond) // Beyond where low is 0
	c.From, c.To = low/by, high*by
}

// worth is the variance of the weighted mean of the points relative to that of one of them.
func worth(points []point) float64 {
	sum, squares := 0.0, 0.0
	for _, p := range points {
		sum, squares = sum+p.weight, squares+p.weight*p.weight
	}
	return squares / (sum * sum)
}

// centredLine is level + slope (x - centre), with the sums that tell how much each point has moved it. Unlike that of a
// line from 0 its slope may be below 0, and inputs that differ by a thousandth have one.
type centredLine struct {
	level, slope, centre float64
	sum, squares         float64 // of the weights; of these times (x - centre)^2
}

// centred is the line of weighted least squares, level where all x are the same.
func centred(points []point, weights []float64) (l centredLine) {
	for i, p := range points {
		l.sum += weights[i]
		l.centre += weights[i] * p.x
		l.level += weights[i] * p.y
	}
	l.centre, l.level = l.centre/l.sum, l.level/l.sum
	product, largest := 0.0, 0.0
	for i, p := range points {
		away := p.x - l.centre
		l.squares += weights[i] * away * away
		product += weights[i] * away * (p.y - l.level)
		largest = max(largest, math.Abs(p.x))
	}
	if l.squares <= sameInput*l.sum*largest*largest || math.IsInf(l.squares, 0) {
		l.squares = 0
		return l
	}
	l.slope = product / l.squares
	return l
}

// sameInput is the square of by what part inputs differ at least: less is rounding.
const sameInput = 1e-18

func (l centredLine) slopes() bool { return l.squares > 0 }

func (l centredLine) at(x float64) float64 { return l.level + l.slope*(x-l.centre) }

// spread is the weight of the points in their mean relative to that in the slope.
func (l centredLine) spread() float64 {
	if l.squares == 0 {
		return 0
	}
	return l.sum / l.squares
}

// without is what the line through all the other points says at p; see line.without. A point that stands alone has the
// line to itself: then nothing tells how wrong it would be without, and the error counts for twenty times itself.
func (l centredLine) without(p point, weight float64) float64 {
	away := p.x - l.centre
	leverage := weight * (1 + away*away*l.spread()) / l.sum
	return p.y - (p.y-l.at(p.x))/max(1-leverage, 0.05)
}
