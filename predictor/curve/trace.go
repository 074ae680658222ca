package curve

import (
	"math"
	"slices"
)

// trace is the best loss so far over steps above 0: a level is first reached when the best loss is as low.
type trace struct {
	steps, best []float64
	// noise is the standard deviation of single losses around a smooth curve.
	noise float64
}

// traced follows the best loss so far. Several values of one step count as their best, so their order is of no matter;
// values that are not finite count as no progress. A step of 0, before anything was trained, has no place on a
// logarithmic axis and counts as half of the next.
func traced(points []Point, direction Direction) trace {
	var t trace
	var raw []float64
	best := math.Inf(1)
	for _, point := range points {
		loss := direction.loss(point.Value)
		if !finite(loss) {
			if len(raw) == 0 {
				continue
			}
			loss = raw[len(raw)-1]
		}
		best = math.Min(best, loss)
		if last := len(t.steps) - 1; last >= 0 && t.steps[last] == point.Step {
			t.best[last], raw[last] = best, math.Min(raw[last], loss)
			continue
		}
		t.steps, t.best, raw = append(t.steps, point.Step), append(t.best, best), append(raw, loss)
	}
	if len(t.steps) > 0 && t.steps[0] == 0 {
		if len(t.steps) == 1 {
			return trace{}
		}
		t.steps[0] = t.steps[1] / 2
	}
	t.noise = noise(raw)
	return t
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// noise is the standard deviation of independent errors around a smooth curve, from the median of the second
// differences of the last two thirds, in which it is smooth: those of independent errors have 6 times their variance,
// and half of a normal distribution is within 0.6745 standard deviations. Below five losses it is 0.
func noise(losses []float64) float64 {
	if len(losses) < 5 {
		return 0
	}
	var second []float64
	for i := len(losses) / 3; i+2 < len(losses); i++ {
		second = append(second, math.Abs(losses[i]-2*losses[i+1]+losses[i+2]))
	}
	slices.Sort(second)
	return second[len(second)/2] / 0.6745 / math.Sqrt(6)
}

// spacings is how many of the latest distances of measurements are looked at.
const spacings = 8

// every is how many steps the latest measurements are apart, the middle of them; 0 of fewer than two.
func (t trace) every() float64 {
	var apart []float64
	for i := max(1, len(t.steps)-spacings); i < len(t.steps); i++ {
		apart = append(apart, t.steps[i]-t.steps[i-1])
	}
	if len(apart) == 0 {
		return 0
	}
	slices.Sort(apart)
	return apart[(len(apart)-1)/2]
}

func (t trace) last() float64 { return t.steps[len(t.steps)-1] }

// lowest is the best loss of all.
func (t trace) lowest() float64 { return t.best[len(t.best)-1] }

// first is the step at which a loss is first reached; +Inf if it never is.
func (t trace) first(loss float64) float64 {
	if i := t.index(loss); i < len(t.best) {
		return t.steps[i]
	}
	return math.Inf(1)
}

// index is the first point that is as low as a loss, or how many there are.
func (t trace) index(loss float64) int {
	low, high := 0, len(t.best)
	for low < high {
		if middle := (low + high) / 2; t.best[middle] <= loss {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// crosses is where a loss is reached between the measurement that shows it and the one before, on the line between
// them; +Inf if it never is.
func (t trace) crosses(loss float64) float64 {
	i := t.index(loss)
	switch {
	case i == len(t.best):
		return math.Inf(1)
	case i == 0:
		return t.steps[0]
	}
	part := (t.best[i-1] - loss) / (t.best[i-1] - t.best[i])
	return t.steps[i-1] + part*(t.steps[i]-t.steps[i-1])
}

// from leaves out the points before one.
func (t trace) from(point int) trace { return trace{t.steps[point:], t.best[point:], t.noise} }

// settled leaves out the first tenth of the points, where losses fall from where the parameters were drawn, which no
// family has. Three are kept.
func (t trace) settled() trace {
	return t.from(max(0, min((len(t.steps)+9)/10, len(t.steps)-fewest)))
}

const (
	// fewest is the number of points below which no curve is fitted: it has an offset, a scale and a shape.
	fewest = 3
	// regime is how many points a learning rate has to have had before its curve is one of its own.
	regime = 8
	// sudden is how many times as much as in the whole window of points before it a single step has to bring to be a
	// break. A smooth curve brings less by each step.
	sudden = 1.5
)

// regimed leaves out what was before the latest break, where a learning rate was lowered and the loss fell by more in
// one step than in the window before, if the points since are enough for a curve of their own.
func (t trace) regimed() trace {
	for i := len(t.best) - regime; i > regime; i-- {
		before := t.best[i-regime] - t.best[i-1]
		if fall := t.best[i-1] - t.best[i]; fall > sudden*before && fall > 6*t.noise {
			return t.from(i)
		}
	}
	return t
}

// thinned has at most about most points, evenly over the logarithm of the step, the latest of each stretch: what
// follows each other closely says the same twice.
func (t trace) thinned(most int) trace {
	if len(t.steps) <= most {
		return t
	}
	kept := trace{noise: t.noise}
	begin := math.Log(t.steps[0])
	width := (math.Log(t.last()) - begin) / float64(most)
	for i, step := range t.steps {
		last := i == len(t.steps)-1
		if last || int((math.Log(t.steps[i+1])-begin)/width) > int((math.Log(step)-begin)/width) {
			kept.steps, kept.best = append(kept.steps, step), append(kept.best, t.best[i])
		}
	}
	return kept
}
