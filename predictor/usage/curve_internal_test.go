package usage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestLeavingOneRunTimeOutEqualsRefitting(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // reproducible
	for range 50 {
		points, weights := make([]point, 7), make([]float64, 7)
		for i := range points {
			points[i], weights[i] = point{x: r.Float64(), y: r.Float64()}, 0.1+r.Float64()
		}
		l := centred(points, weights)
		for i, p := range points {
			rest := centred(slices.Delete(slices.Clone(points), i, i+1), slices.Delete(slices.Clone(weights), i, i+1))
			leverage := weights[i] / l.sum * (1 + (p.x-l.centre)*(p.x-l.centre)*l.spread())
			if got, want := l.without(p, weights[i]), rest.at(p.x); leverage < 0.95 && math.Abs(got-want) > 1e-9 {
				t.Errorf("without point %d: %v, want %v", i, got, want)
			}
		}
	}
}
