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

func TestTheRelativeErrorIsTheSameAboveAndBelow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ predicted, actual, want float64 }{
		{10, 10, 0},
		{10, 20, 1},
		{20, 10, 1},
		{1, 100, 99},
		{0, 5, 0},
		{5, 0, 0},
		{math.NaN(), 1, 0},
		{math.Inf(1), 1, 0},
		{-1, 1, 0},
	} {
		if got := RelativeError(c.predicted, c.actual); got != c.want {
			t.Errorf("RelativeError(%v, %v) = %v, want %v", c.predicted, c.actual, got, c.want)
		}
	}
}
