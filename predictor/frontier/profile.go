package frontier

import (
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"
)

// Profile is what was measured of how long a task takes with one allocation.
type Profile struct {
	// At says what is given, in numbers in which near ones take about as long: logarithms of workers, cores or memory.
	// All profiles have as many.
	At []float64
	// Kind says what cannot be compared by numbers, such as the store that is exchanged through: allocations of different
	// kinds have a level of their own, and tell less of each other.
	Kind int
	// Seconds is what was measured; above 0.
	Seconds float64
	// Spread is the standard deviation of the logarithm of Seconds around what tasks take with it in the mean: how far
	// the measurement may be off; 0 is exact.
	Spread float64
}

// Estimate is how long a task takes with an allocation, as far as all measurements tell.
type Estimate struct {
	// Seconds is the median.
	Seconds float64
	// Spread is the standard deviation of its logarithm; 0 is certain. It is of what tasks take in the mean, not of one.
	Spread float64
}

// ErrProfile says that a profile is none.
var ErrProfile = errors.New("is not a profile")

// The prior of a surface of times, as standard deviations of logarithms: its level and its slopes are hardly known; an
// allocation may be off the surface by itself; another kind has a surface of its own above the common one.
const (
	levelDoubt = 10.0
	slopeDoubt = 1.0
	leastNoise = 1e-4 // below it numbers of 64 bits tell nothing apart
)

// alike is how much of the bends of one kind are those of another.
const alike = 0.5

// surface is a shape that times may have over allocations.
type surface struct {
	bends  float64 // how far it leaves a plane
	reach  float64 // over which distance
	itself float64 // by how much an allocation is off it by itself
}

// surfaces are those that are tried. A grid of few: what is told apart is smooth from rough.
func surfaces() (all []surface) {
	for _, bends := range []float64{0.3, 1} {
		for _, reach := range []float64{1, 3} {
			for _, itself := range []float64{0, 0.1} {
				all = append(all, surface{bends, reach, itself})
			}
		}
	}
	return all
}

// Smooth estimates each allocation's time from the measurements of all: where each alone is off by a tenth, the one
// that looks best is likely the one that is most wrong, and its neighbours tell so. It is the mean and spread of a
// Gaussian process over the logarithms of the times, with a plane as its mean, squared-exponential bends around it
// and noise as told, of the shape that the measurements are likeliest with (Rasmussen and Williams, Gaussian
// Processes for Machine Learning, 2006, chapters 2 and 5, http://gaussianprocess.org/gpml/). Exact measurements stay
// what they are, and teach the others. The error wraps ErrProfile and says which one is none.
func Smooth(profiles []Profile) ([]Estimate, error) {
	logs := mat.NewVecDense(max(1, len(profiles)), nil)
	exact := true
	for i, p := range profiles {
		logs.SetVec(i, math.Log(p.Seconds))
		if !(p.Seconds > 0) || math.IsInf(p.Seconds, 1) || !(p.Spread >= 0) || math.IsInf(p.Spread, 1) ||
			len(p.At) != len(profiles[0].At) {
			return nil, fmt.Errorf("measurement %d of %g s, spread %g and %d numbers %w: give each as many numbers, a time "+
				"above 0 and a spread of 0 or more", i, p.Seconds, p.Spread, len(p.At), ErrProfile)
		}
		exact = exact && p.Spread == 0
	}
	estimates := make([]Estimate, len(profiles))
	for i, p := range profiles {
		estimates[i] = Estimate{Seconds: p.Seconds, Spread: p.Spread}
	}
	if exact {
		return estimates, nil
	}
	likeliest := math.Inf(-1)
	var best process
	for _, s := range surfaces() {
		if p, possible := newProcess(profiles, logs, s); possible && p.likelihood > likeliest {
			best, likeliest = p, p.likelihood
		}
	}
	if math.IsInf(likeliest, -1) {
		return estimates, nil // numbers so far apart tell nothing of each other
	}
	for i := range profiles {
		if profiles[i].Spread > 0 {
			estimates[i] = best.estimate(i)
		}
	}
	return estimates, nil
}

// process is a Gaussian process that has seen the measurements.
type process struct {
	covariance *mat.SymDense // of the true logarithms
	seen       mat.Cholesky  // of that with the noise
	weights    mat.VecDense  // what each measurement adds
	likelihood float64       // logarithm, but for a constant
	mean       float64       // of the logarithms, from which they are counted
}

func newProcess(profiles []Profile, logs *mat.VecDense, s surface) (p process, possible bool) {
	n := len(profiles)
	p.covariance = mat.NewSymDense(n, nil)
	noisy := mat.NewSymDense(n, nil)
	for i := range n {
		for j := i; j < n; j++ {
			c := s.covariance(profiles[i], profiles[j])
			if i == j {
				c += s.itself * s.itself
				noise := max(profiles[i].Spread, leastNoise)
				noisy.SetSym(i, i, c+noise*noise)
			} else {
				noisy.SetSym(i, j, c)
			}
			p.covariance.SetSym(i, j, c)
		}
	}
	if !p.seen.Factorize(noisy) {
		return process{}, false
	}
	p.mean = mat.Sum(logs) / float64(n)
	var from mat.VecDense
	from.CloneFromVec(logs)
	for i := range n {
		from.SetVec(i, from.AtVec(i)-p.mean)
	}
	if err := p.seen.SolveVecTo(&p.weights, &from); err != nil {
		return process{}, false
	}
	p.likelihood = -(mat.Dot(&from, &p.weights) + p.seen.LogDet()) / 2
	return p, true
}

// covariance is that of two allocations' logarithms, but for what each is by itself.
func (s surface) covariance(a, b Profile) float64 {
	plane, distance := 0.0, 0.0
	for i := range a.At {
		plane += a.At[i] * b.At[i]
		distance += (a.At[i] - b.At[i]) * (a.At[i] - b.At[i])
	}
	bends := s.bends * s.bends * math.Exp(-distance/(2*s.reach*s.reach))
	c := levelDoubt*levelDoubt + slopeDoubt*slopeDoubt*plane
	if a.Kind == b.Kind {
		return c + bends + slopeDoubt*slopeDoubt*(1+plane)
	}
	return c + bends*alike
}

func (p *process) estimate(i int) Estimate {
	n := p.covariance.SymmetricDim()
	row := mat.NewVecDense(n, nil)
	for j := range n {
		row.SetVec(j, p.covariance.At(i, j))
	}
	var solved mat.VecDense
	if err := p.seen.SolveVecTo(&solved, row); err != nil {
		return Estimate{Seconds: math.Exp(p.mean + mat.Dot(row, &p.weights)), Spread: math.Sqrt(p.covariance.At(i, i))}
	}
	return Estimate{
		Seconds: math.Exp(p.mean + mat.Dot(row, &p.weights)),
		Spread:  math.Sqrt(max(0, p.covariance.At(i, i)-mat.Dot(row, &solved))),
	}
}
