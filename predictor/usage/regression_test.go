package usage

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The oracle: each point is left out and the line is fitted anew with the weights that the others have.
func TestLeavingOneOutEqualsRefitting(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		n := 5 + r.IntN(30)
		points, weights := make([]point, n), make([]float64, n)
		for i := range points {
			x := 100 * r.Float64()
			points[i] = point{x: x, y: (20*r.Float64() + 5 + float64(seed%3)*x) * math.Exp(0.2*r.NormFloat64()), weight: 1}
			weights[i] = 0.1 + r.Float64()
		}
		for _, withSlope := range []bool{false, true} {
			l := least(points, weights, withSlope)
			for i, p := range points {
				var others []point
				var theirs []float64
				for j := range points {
					if j != i {
						others, theirs = append(others, points[j]), append(theirs, weights[j])
					}
				}
				refitted := least(others, theirs, withSlope)
				if refitted.kind != l.kind {
					continue // without the point another bound holds
				}
				if got, want := l.without(p, weights[i]), refitted.at(p.x); math.Abs(got-want) > 1e-6*math.Abs(want) {
					t.Fatalf("seed %d, slope %v, point %d: the closed form says %g, refitting %g", seed, withSlope, i, got, want)
				}
			}
		}
	}
}

func TestALineThroughZeroIsFoundOverFiveDecades(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 6))
		points := make([]point, 30)
		for i := range points {
			x := math.Pow(10, 5*r.Float64())
			points[i] = point{x: x, y: 7 * x * math.Exp(0.02*r.NormFloat64()), weight: 1}
		}
		f := fitLine(points, true)
		for _, x := range []float64{10, 1e5} {
			if got := f.base + f.slope*x; math.Abs(got-7*x) > 0.05*7*x {
				t.Errorf("seed %d: the line says %g at %g, want %g", seed, got, x, 7*x)
			}
		}
	}
}

// The oracle: no line on a fine grid around the solution has a smaller sum of weighted squares.
func TestLeastSquaresAreLeast(t *testing.T) {
	t.Parallel()
	sum := func(points []point, weights []float64, base, slope float64) (total float64) {
		for i, p := range points {
			e := p.y - base - slope*p.x
			total += weights[i] * e * e
		}
		return total
	}
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 4))
		points, weights := make([]point, 12), make([]float64, 12)
		for i := range points {
			points[i] = point{x: 10 * r.Float64(), y: 1 + 10*r.Float64()}
			weights[i] = 0.1 + r.Float64()
		}
		l := least(points, weights, true)
		best := sum(points, weights, l.base, l.slope)
		for base := 0.0; base <= 12; base += 0.25 {
			for slope := 0.0; slope <= 3; slope += 0.05 {
				if other := sum(points, weights, base, slope); other < best-1e-9 {
					t.Fatalf("seed %d: %g + %g x leaves %g, %g + %g x only %g", seed, l.base, l.slope, best, base, slope, other)
				}
			}
		}
	}
}
