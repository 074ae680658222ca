package usage

import (
	"maps"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"
)

// Few are at most MaxFeatures numbers and MaxCategories categories of these, the first by name: what is kept of an
// input that may have thousands. Those that are no finite number are left out, and so are those whose name is longer
// than MaxFeatureName; nil where none is left.
func Few(features map[string]float64) map[string]float64 {
	numbers, categories := MaxFeatures, MaxCategories
	var few map[string]float64
	for _, name := range slices.Sorted(maps.Keys(features)) {
		room, value := &numbers, features[name]
		if IsCategory(name) {
			room = &categories
		}
		if *room == 0 || len(name) > MaxFeatureName || math.IsNaN(value) || math.Abs(value) > mostValue {
			continue
		}
		if few == nil {
			few = make(map[string]float64, MaxFeatures)
		}
		*room--
		few[name] = value
	}
	return few
}

// kindGive is how far the logarithms of two kinds lie from their mean before anything was seen: one takes e times as
// much, or as little.
const kindGive = 1.0

// grouped is an explanation by a category, a number that is 0 at times being one as well, and by a power of a number
// beside it, or none:
//
//	ln y = a + u_k + b ln x + e,    u_k ~ N(0, s^2 / tightness),  b ~ N(slope, s^2 / tightness')
//
// with one u for each kind k, and the rest as in [Growth]. The weights of the observations are in the covariance of y
// relative to s^2,
//
//	K_ij = [i = j] / w_i + [k_i = k_j] / tightness + ln x_i ln x_j / tightness'
//
// of which all follows (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, 2.7): few observations
// make small matrices. A kind that was not seen is as any other may be.
type grouped struct {
	category, over string
	values         []float64 // of the category, by observation
	logs           []float64 // of x about its centre; all 0 without x
	centre         float64
	slope          float64
	tight, tightX  float64
	inverse        mat.SymDense // of K
	toward         []float64    // K^-1 (y - a - slope ln x)
	ones           []float64    // K^-1 1
	sum            float64      // 1' K^-1 1
	level          float64      // a
	scale          float64      // s
	freedom        float64
}

// explainGroups fits y over a category, and over x unless that is nil, and returns the logarithm of its marginal
// likelihood as explain does.
func explainGroups(values, x, y, weights []float64, thought Thought) (k *grouped, evidence float64, ok bool) {
	n := len(y)
	k = &grouped{
		values: values, logs: make([]float64, n), freedom: doubt + float64(n) - 1,
		tight: thought.Spread * thought.Spread / (kindGive * kindGive), ones: make([]float64, n), toward: make([]float64, n),
		tightX: thought.Spread * thought.Spread / (thought.Give * thought.Give),
	}
	weight := 0.0
	for _, w := range weights {
		weight += w
	}
	if x != nil {
		k.slope = thought.Slope
		for i, w := range weights {
			k.centre += w * x[i] / weight
		}
		for i := range x {
			k.logs[i] = x[i] - k.centre
		}
	}
	covariance := mat.NewSymDense(n, nil)
	plain := 0.0 // the logarithm of the determinant without what is explained
	for i := range n {
		for j := range i + 1 {
			covariance.SetSym(i, j, k.like(values[i], k.logs[i], j))
		}
		covariance.SetSym(i, i, covariance.At(i, i)+1/weights[i])
		plain -= math.Log(weights[i])
	}
	var factors mat.Cholesky
	if !factors.Factorize(covariance) || factors.InverseTo(&k.inverse) != nil {
		return nil, 0, false
	}
	rest := make([]float64, n)
	for i := range n {
		rest[i] = y[i] - k.slope*k.logs[i]
		for j := range n {
			k.ones[i] += k.inverse.At(i, j)
		}
		k.sum += k.ones[i]
		k.level += k.ones[i] * rest[i]
	}
	k.level /= k.sum
	left := doubt * thought.Spread * thought.Spread
	for i := range n {
		for j := range n {
			k.toward[i] += k.inverse.At(i, j) * (rest[j] - k.level)
		}
		left += k.toward[i] * (rest[i] - k.level)
	}
	k.scale = math.Sqrt(left / k.freedom)
	return k, (plain-factors.LogDet())/2 - math.Log(k.sum/weight)/2 - k.freedom/2*math.Log(left), true
}

// like is the covariance of what has a kind and the logarithm of a number with an observation.
func (k *grouped) like(kind, log float64, i int) float64 {
	covariance := log * k.logs[i] / k.tightX
	if kind == k.values[i] {
		covariance += 1 / k.tight
	}
	return covariance
}

// at is the logarithm of what the explanation comes to, and the variance of it with one more observation, in units of
// the scale.
func (k *grouped) at(with map[string]float64) (level, variance float64) {
	kind, log := with[k.category], 0.0
	if k.over != "" {
		log = math.Log(with[k.over]) - k.centre
	}
	level, variance = k.level+k.slope*log, 1+1/k.tight+log*log/k.tightX
	likeness, known := make([]float64, len(k.values)), 0.0
	for i := range k.values {
		likeness[i] = k.like(kind, log, i)
		level += likeness[i] * k.toward[i]
		known += likeness[i] * k.ones[i]
	}
	for i := range likeness {
		for j := range likeness {
			variance -= likeness[i] * k.inverse.At(i, j) * likeness[j]
		}
	}
	return level, max(1, variance) + (1-known)*(1-known)/k.sum
}

func (k *grouped) knows(with map[string]float64) bool {
	_, told := with[k.category]
	return told && (k.over == "" || finite(with[k.over]))
}

// groupings are the explanations by categories of these observations, with their evidence: of those that tell kinds of
// all of them. Where all are of one kind, that is what they come to without a category, but a kind that comes later is
// not known. Over are the numbers beside them.
func groupings(
	seen []Grown, over []string, y, weights []float64, thought Thought,
) (all []explanation, evidences []float64) {
	var names []string
	for name := range seen[0].With {
		number := !IsCategory(name)
		told := !slices.ContainsFunc(seen, func(g Grown) bool {
			value, known := g.With[name]
			number = number && finite(value)
			return !known
		})
		if told && !number {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		values := make([]float64, len(seen))
		for i, g := range seen {
			values[i] = g.With[name]
		}
		for _, beside := range append([]string{""}, over...) {
			var x []float64
			for _, g := range seen {
				if beside != "" {
					x = append(x, math.Log(g.With[beside]))
				}
			}
			if next, evidence, ok := explainGroups(values, x, y, weights, thought); ok {
				next.category, next.over = name, beside
				all = append(all, explanation{grouped: next, with: name})
				evidences = append(evidences, evidence-math.Log(float64(len(names)))) // as likely as not any of them
			}
		}
	}
	return all, evidences
}
