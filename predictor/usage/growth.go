package usage

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Grown is one observation of a quantity: its value, and by name what it may grow with. Only numbers above 0 count.
type Grown struct {
	Value float64
	With  map[string]float64
	// Noise is the standard deviation of the logarithm of Value around what is asked for, such as that of a mean of few
	// tasks around the mean of many; 0 is none.
	Noise float64
}

// Thought is what is thought of a growth before anything was seen: the power lies around Slope, Give away, and what
// comes lies Spread from what explains it, by the logarithm; Give and Spread are above 0.
type Thought struct{ Slope, Give, Spread float64 }

// Growth is what few observations, such as those of a pipeline's earlier runs, tell of a quantity above 0: it is a
// constant, or a power of one of the things that it may grow with, each also with a level for each kind of a category
// (see grouped), and which of these is told only as surely as the observations tell. The zero value knows nothing. It
// is for questions that need an answer after one or two observations; [LearnDuration] needs more and knows lines too.
//
// Each explanation is a Bayesian linear regression on logarithms,
//
//	ln y = a + b ln x + e,        e ~ N(0, s^2 / w),
//	b ~ N(slope, s^2 / tightness),  1/s^2 ~ Gamma(doubt/2, doubt spread^2/2)
//
// with the weight w = spread^2 / (spread^2 + noise^2), nothing thought of a beforehand and b = 0 for the constant; they
// count as their marginal likelihoods (Gelman et al., Bayesian Data Analysis, 3rd ed., 14.2 and 7.4). What the next
// observation comes to is Student's t with doubt + n - 1 degrees of freedom, wide after one observation, and never
// without width: two that are alike tell little of how far the third will lie.
type Growth struct {
	explanations []explanation
}

// explanation is one of the regressions.
type explanation struct {
	with    string // empty for the constant
	part    float64
	centre  float64 // mean of ln x
	level   float64 // a at the centre
	slope   float64
	squares float64 // of ln x about the centre, and the tightness
	scale   float64 // s
	freedom float64
	weight  float64  // of all observations
	grouped *grouped // instead of all these but part
}

// doubt is how many observations the spread is worth that is thought of beforehand.
const doubt = 3.0

// LearnGrowth learns from observations, the order of which does not matter. Those whose value is not above 0 are left
// out, as are explanations that some of the others lack.
func LearnGrowth(seen []Grown, thought Thought) Growth {
	var names []string
	var values, weights []float64
	seen = slices.DeleteFunc(slices.Clone(seen), func(g Grown) bool { return !finite(g.Value) })
	for _, g := range seen {
		values = append(values, math.Log(g.Value))
		precise := thought.Spread * thought.Spread
		weights = append(weights, precise/(precise+g.Noise*g.Noise))
		for name, x := range g.With {
			if finite(x) && !IsCategory(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(values) == 0 || !(thought.Spread > 0) || !(thought.Give > 0) {
		return Growth{}
	}
	slices.Sort(names)
	constant, evidence := explain(nil, values, weights, thought)
	all, evidences := []explanation{constant}, []float64{evidence}
	var over []string
	for _, name := range names {
		var x []float64
		for _, g := range seen {
			if finite(g.With[name]) {
				x = append(x, math.Log(g.With[name]))
			}
		}
		if len(x) < len(values) {
			continue // evidence of fewer observations is not comparable
		}
		next, evidence := explain(x, values, weights, thought)
		next.with = name
		all, evidences, over = append(all, next), append(evidences, evidence), append(over, name)
	}
	byKind, theirs := groupings(seen, over, values, weights, thought)
	all, evidences = append(all, byKind...), append(evidences, theirs...)
	largest := slices.Max(evidences)
	for i := range all {
		all[i].part = math.Exp(evidences[i] - largest)
	}
	return Growth{all}
}

func finite(x float64) bool { return x > 0 && !math.IsInf(x, 0) }

// explain fits y over x, or a constant where x is nil, and returns the logarithm of its marginal likelihood, but for
// what is the same of all fits of so many observations.
func explain(x, y, weights []float64, thought Thought) (e explanation, evidence float64) {
	e.freedom = doubt + float64(len(y)) - 1
	for i, w := range weights {
		e.weight += w
		e.level += w * y[i]
		if x != nil {
			e.centre += w * x[i]
		}
	}
	e.level, e.centre = e.level/e.weight, e.centre/e.weight
	var xx, xy, yy float64 // of what is left of y once the slope that is thought of is taken off
	for i, w := range weights {
		dx, dy := 0.0, y[i]-e.level
		if x != nil {
			dx = x[i] - e.centre
			dy -= thought.Slope * dx
		}
		xx, xy, yy = xx+w*dx*dx, xy+w*dx*dy, yy+w*dy*dy
	}
	left := doubt*thought.Spread*thought.Spread + yy
	if x != nil {
		tightness := thought.Spread * thought.Spread / (thought.Give * thought.Give)
		e.squares = xx + tightness
		e.slope = thought.Slope + xy/e.squares
		left -= xy * xy / e.squares
		evidence = math.Log(tightness/e.squares) / 2
	}
	e.scale = math.Sqrt(left / e.freedom)
	return e, evidence - e.freedom/2*math.Log(left)
}

// Power is by what power a quantity grows with x, from observations with the logarithms y over x that are known to
// within a standard deviation of noise each: that of [Growth], times the probability that it is one and no constant.
// What comes of chance is mostly believed to be none, and what fewer than two tell is 0. All three have the same length.
func Power(x, y, noise []float64, thought Thought) float64 {
	if len(y) < 2 || !(thought.Spread > 0) || !(thought.Give > 0) {
		return 0
	}
	weights := make([]float64, len(y))
	precise := thought.Spread * thought.Spread
	for i, n := range noise {
		weights[i] = precise / (precise + n*n)
	}
	_, constant := explain(nil, y, weights, thought)
	power, evidence := explain(x, y, weights, thought)
	return power.slope / (1 + math.Exp(constant-evidence))
}

// Known reports whether there was an observation.
func (g Growth) Known() bool { return len(g.explanations) > 0 }

// Expected is the middle of the values that the next observation may come to, by the logarithm: of each explanation in
// its part. 0 while nothing is known.
func (g Growth) Expected(with map[string]float64) float64 {
	sum, parts := 0.0, 0.0
	for _, e := range g.explanations {
		if e.knows(with) {
			parts += e.part
			sum += e.part * e.at(with)
		}
	}
	if parts == 0 {
		return 0
	}
	return math.Exp(sum / parts)
}

// at is the logarithm of what the explanation comes to.
func (e explanation) at(with map[string]float64) float64 {
	if e.grouped != nil {
		level, _ := e.grouped.at(with)
		return level
	}
	if e.with == "" {
		return e.level
	}
	return e.level + e.slope*(math.Log(with[e.with])-e.centre)
}

// Draw is one of the values that the next observation may come to, by its probabilities; 0 while nothing is known.
// What it grows with and is not given counts as the mean of what was seen.
func (g Growth) Draw(with map[string]float64, random *rand.Rand) float64 {
	if !g.Known() {
		return 0
	}
	sum := 0.0
	for _, e := range g.explanations {
		if e.knows(with) {
			sum += e.part
		}
	}
	pick := random.Float64() * sum
	chosen := g.explanations[0]
	for _, e := range g.explanations {
		if !e.knows(with) {
			continue
		}
		chosen = e
		if pick -= e.part; pick < 0 {
			break
		}
	}
	if chosen.grouped != nil {
		level, variance := chosen.grouped.at(with)
		return math.Exp(level + chosen.grouped.scale*math.Sqrt(variance)*student(chosen.grouped.freedom, random))
	}
	away := 0.0
	if chosen.with != "" {
		away = math.Log(with[chosen.with]) - chosen.centre
	}
	variance := 1 + 1/chosen.weight
	if chosen.squares > 0 {
		variance += away * away / chosen.squares
	}
	return math.Exp(chosen.at(with) + chosen.scale*math.Sqrt(variance)*student(chosen.freedom, random))
}

func (e explanation) knows(with map[string]float64) bool {
	if e.grouped != nil {
		return e.grouped.knows(with)
	}
	return e.with == "" || finite(with[e.with])
}

// student draws of Student's t.
func student(freedom float64, random *rand.Rand) float64 {
	squares := 0.0
	for range int(math.Round(freedom)) {
		z := random.NormFloat64()
		squares += z * z
	}
	return random.NormFloat64() * math.Sqrt(freedom/max(squares, 1e-9))
}
