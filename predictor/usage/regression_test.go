package usage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The oracle: each point is left out and the line is fitted anew with the weights that the others have.
func TestLeavingOneOutEqualsRefitting(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		n := 5 + r.IntN(30)
		of, weights := observed{y: make([]float64, n), columns: make([][]float64, MaxParts)}, make([]float64, n)
		for k := range of.columns {
			of.columns[k] = make([]float64, n)
		}
		for i := range of.y {
			of.y[i] = 20*r.Float64() + 5
			for k := range of.columns {
				of.columns[k][i] = r.Float64()
				of.y[i] += float64(int(seed)%3) * 100 * of.columns[k][i]
			}
			of.y[i] *= math.Exp(0.2 * r.NormFloat64())
			weights[i] = 0.1 + r.Float64()
		}
		for parts := range MaxParts + 1 {
			some := observed{y: of.y, columns: of.columns[:parts]}
			var s, refitted surface
			s.least(&some, weights)
			for i := range of.y {
				others := observed{y: slices.Delete(slices.Clone(of.y), i, i+1), columns: make([][]float64, parts)}
				for k := range others.columns {
					others.columns[k] = slices.Delete(slices.Clone(of.columns[k]), i, i+1)
				}
				refitted.least(&others, slices.Delete(slices.Clone(weights), i, i+1))
				if refitted.free != s.free {
					continue // without the point another bound holds
				}
				got, want := s.without(&some, i, weights[i]), refitted.at(some.columns, i)
				if math.Abs(got-want) > 1e-6*max(1, math.Abs(want)) {
					t.Fatalf("seed %d, %d parts, point %d: the closed form says %g, refitting %g", seed, parts, i, got, want)
				}
			}
		}
	}
}

func TestALineThroughZeroIsFoundOverFiveDecades(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 6))
		of := observed{columns: make([][]float64, 1)}
		for range 30 {
			x := math.Pow(10, 5*r.Float64())
			of.columns[0], of.weights = append(of.columns[0], x), append(of.weights, 1)
			of.y = append(of.y, 7*x*math.Exp(0.02*r.NormFloat64()))
		}
		f := fitSurface(of, reweightings)
		for _, x := range []float64{10, 1e5} {
			if got := f.coefficients[0] + f.coefficients[1]*x; math.Abs(got-7*x) > 0.05*7*x {
				t.Errorf("seed %d: the line says %g at %g, want %g", seed, got, x, 7*x)
			}
		}
	}
}

// The oracle: no line on a fine grid around the solution has a smaller sum of weighted squares.
func TestLeastSquaresAreLeast(t *testing.T) {
	t.Parallel()
	sum := func(of observed, weights []float64, base, slope float64) (total float64) {
		for i, y := range of.y {
			e := y - base - slope*of.columns[0][i]
			total += weights[i] * e * e
		}
		return total
	}
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 4))
		of, weights := observed{y: make([]float64, 12), columns: [][]float64{make([]float64, 12)}}, make([]float64, 12)
		for i := range weights {
			of.columns[0][i], of.y[i] = 10*r.Float64(), 1+10*r.Float64()
			weights[i] = 0.1 + r.Float64()
		}
		var s surface
		s.least(&of, weights)
		foundBase, foundSlope := s.coefficients[0], s.coefficients[1]
		best := sum(of, weights, foundBase, foundSlope)
		for base := 0.0; base <= 12; base += 0.25 {
			for slope := 0.0; slope <= 3; slope += 0.05 {
				if other := sum(of, weights, base, slope); other < best-1e-9 {
					t.Fatalf("seed %d: %g + %g x leaves %g, %g + %g x only %g", seed, foundBase, foundSlope,
						best, base, slope, other)
				}
			}
		}
	}
}
