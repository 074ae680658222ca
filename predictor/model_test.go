package predictor

import (
	"math"
	"testing"
)

func TestNoiseOverTinyInputsIsNoSlope(t *testing.T) {
	t.Parallel()
	inputs := []float64{20, 25, 30, 35, 40, 45, 50, 55, 60}
	for name, peaks := range map[string][]float64{
		"noise":                         {69e6, 70e6, 68e6, 69e6, 70e6, 68e6, 69e6, 70e6, 69e6},
		"a steady rise of 20 kB a byte": {69.0e6, 69.1e6, 69.2e6, 69.3e6, 69.4e6, 69.5e6, 69.6e6, 69.7e6, 69.8e6},
	} {
		if got := fit(inputs, peaks).slope; got != 0 {
			t.Errorf("%s: got a slope of %g bytes a byte, want 0", name, got)
		}
	}
}

func TestShortTasksShareACore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		wall float64
		want float64
	}{
		"a millisecond": {0.001, 1.0 / 11},
		"a second":      {1, 1 / 1.01},
		"unknown":       {0, 1},
	} {
		m := model{Walls: map[Venue]series{}}
		if test.wall > 0 {
			m.keep(&m.Walls, Pool, test.wall)
		}
		if got := m.busy(); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: got %g of a slot's time busy, want %g", name, got, test.want)
		}
	}
}
