package memory

import (
	"math"
	"testing"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/usage"
)

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
		m := Model{Walls: map[fact.Venue]usage.Series{}}
		if test.wall > 0 {
			m.keep(&m.Walls, fact.Pool, test.wall)
		}
		if got := m.Busy(); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: got %g of a slot's time busy, want %g", name, got, test.want)
		}
	}
}
