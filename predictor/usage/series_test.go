package usage

import (
	"math"
	"testing"
)

func TestTheResidualIsTheMeanOfWhatLongerAttemptsTookMore(t *testing.T) {
	t.Parallel()
	var walls Series
	if got := walls.Residual(3, 10); got != 7 {
		t.Errorf("without values: %v, want 7", got)
	}
	for _, wall := range []float64{2, 4, 8} {
		walls.Push(wall, 8)
	}
	for age, want := range map[float64]float64{0: 14.0 / 3, 3: 3, 4: 4, 8: 0, 99: 0} {
		if got := walls.Residual(age, 10); math.Abs(got-want) > 1e-9 {
			t.Errorf("at the age of %v: %v, want %v", age, got, want)
		}
	}
}
