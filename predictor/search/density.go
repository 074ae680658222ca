package search

import (
	"math"
	"math/rand/v2"
	"slices"
)

// What BOHB draws by is from its code (HpBandSter, bohb.py, https://github.com/automl/HpBandSter).
const (
	randomPart  = 1.0 / 3 // of the configurations are drawn evenly, so that nothing is ruled out
	goodPart    = 0.15    // of the trials of a rung are the good ones
	candidates  = 64      // are drawn by the good ones
	widening    = 3       // of a kernel, for drawing
	leastKernel = 1e-3    // is the width of one
)

// measured is a trial whose objective is known, smaller being better.
type measured struct {
	configuration Configuration
	objective     float64
}

// propose draws a configuration by the density of the good trials over that of the others (tree-structured Parzen
// estimator: Bergstra et al., Algorithms for hyper-parameter optimization, 2011; as BOHB has it: Falkner, Klein and
// Hutter, 2018, https://arxiv.org/abs/1807.01774). Each rung has its trials; the highest with enough of them counts.
func (s Space) propose(r *rand.Rand, rungs [][]measured) Configuration {
	least := len(s) + 1
	explore := r.Float64() < randomPart
	for _, of := range slices.Backward(rungs) {
		if explore || len(of) < least+2 {
			continue
		}
		sorted := slices.Clone(of)
		slices.SortStableFunc(sorted, func(a, b measured) int {
			switch {
			case a.objective < b.objective:
				return -1
			case a.objective > b.objective:
				return 1
			default:
				return 0
			}
		})
		good := max(least, int(goodPart*float64(len(sorted))))
		bad := max(least, len(sorted)-good)
		return s.best(r, s.density(sorted[:good]), s.density(sorted[len(sorted)-bad:]))
	}
	return s.draw(r)
}

// density is a product of kernels around each of some trials.
type density struct {
	points []Configuration
	width  []float64 // of each parameter's kernels
}

func (s Space) density(of []measured) density {
	d := density{width: make([]float64, len(s))}
	for _, m := range of {
		d.points = append(d.points, m.configuration)
	}
	for i, p := range s {
		var n, mean, square float64
		for _, c := range d.points {
			if v, has := c[p.Name]; has {
				n++
				delta := p.place(v) - mean
				mean += delta / n
				square += delta * (p.place(v) - mean)
			}
		}
		spread := 0.0
		if n > 1 {
			spread = math.Sqrt(square / n)
		}
		// Scott's rule for a product of as many kernels (Multivariate density estimation, 1992).
		d.width[i] = max(leastKernel, 1.06*spread*math.Pow(max(n, 1), -1/(4+float64(len(s)))))
	}
	return d
}

// best draws candidates by the good and returns the one that is likeliest among the good over the bad.
func (s Space) best(r *rand.Rand, good, bad density) Configuration {
	var chosen Configuration
	most := math.Inf(-1)
	for range candidates {
		c := s.near(r, good)
		if ratio := s.log(good, c) - s.log(bad, c); chosen == nil || ratio > most {
			chosen, most = c, ratio
		}
	}
	return chosen
}

// near draws a configuration around one of the points.
func (s Space) near(r *rand.Rand, d density) Configuration {
	around := d.points[r.IntN(len(d.points))]
	c := Configuration{}
	for i, p := range s {
		if !p.exists(c) {
			continue
		}
		v, has := around[p.Name]
		switch {
		case !has:
			c[p.Name] = p.at(r.Float64())
		case p.Kind == Choice:
			c[p.Name] = v
			if r.Float64() < min(1, d.width[i]) {
				c[p.Name] = p.at(r.Float64())
			}
		default:
			c[p.Name] = p.at(truncated(r, p.place(v), widening*d.width[i]))
		}
	}
	return c
}

// truncated draws from a normal distribution that has only what is between 0 and 1.
func truncated(r *rand.Rand, mean, deviation float64) float64 {
	low, high := normal((0-mean)/deviation), normal((1-mean)/deviation)
	place := mean + deviation*math.Sqrt2*math.Erfinv(2*(low+r.Float64()*(high-low))-1)
	return max(0, min(1, place))
}

func normal(z float64) float64 { return 0.5 * math.Erfc(-z/math.Sqrt2) }

// log is the logarithm of a density at a configuration.
func (s Space) log(d density, c Configuration) float64 {
	sum := 0.0
	for _, point := range d.points {
		product := 1.0
		for i, p := range s {
			v, has := c[p.Name]
			if !has {
				continue
			}
			at, there := point[p.Name]
			switch {
			case !there: // even: nothing is known of it
			case p.Kind == Choice:
				// Aitchison and Aitken, Multivariate binary discrimination by the kernel method, 1976.
				off := min(1, d.width[i])
				if len(p.Choices) == 1 || at.Text == v.Text {
					product *= 1 - off + off/float64(len(p.Choices))
				} else {
					product *= off / float64(len(p.Choices))
				}
			default:
				z := (p.place(v) - p.place(at)) / d.width[i]
				product *= math.Exp(-z*z/2) / d.width[i]
			}
		}
		sum += product
	}
	return math.Log(max(sum/float64(len(d.points)), 1e-300))
}
