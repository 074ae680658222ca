package training_test

import (
	"math"
	"testing"

	"github.com/spillway-ml/spillway/predictor/curve"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/training"
)

func TestErrorsAreCappedAndNeverHasItsOwn(t *testing.T) {
	t.Parallel()
	never := math.Inf(1)
	for _, c := range []struct{ said, actual, want float64 }{
		{100, 200, 0.5},
		{300, 200, 0.5},
		{1e9, 200, 5},
		{never, 200, 5},
		{300, never, 1},
		{never, never, 0},
	} {
		answers := []training.Answer{{True: c.actual, Said: map[string]float64{"x": c.said}}}
		if got := training.Error(answers, "x", 0.5); got != c.want {
			t.Errorf("said %v where %v is true: an error of %v, want %v", c.said, c.actual, got, c.want)
		}
	}
}

// Each family finds the step of a level on a curve of its own.
func TestFamiliesFindTheirOwnCurves(t *testing.T) {
	t.Parallel()
	curves := map[string]func(float64) float64{
		"power":       func(k float64) float64 { return 1 + 3*math.Pow(k, -0.5) },
		"exponential": func(k float64) float64 { return 1 + 3*math.Exp(-k/60) },
		"optimus":     func(k float64) float64 { return 1 + 1/(0.02*k+0.3) },
	}
	for name, value := range curves {
		var points []curve.Point
		for k := 1.0; k <= 100; k++ {
			points = append(points, curve.Point{Step: k, Value: value(k)})
		}
		if got := training.Families()[name](points, curve.Minimise, value(150)); math.Abs(got/150-1) > 0.05 {
			t.Errorf("%s says %v, want 150", name, got)
		}
	}
	if got := training.Families()["twice_seen"]([]curve.Point{{Step: 7}}, curve.Minimise, 0); got != 14 {
		t.Errorf("twice 7 steps is %v", got)
	}
}

func TestOthersAreRoundedUpToMeasurements(t *testing.T) {
	t.Parallel()
	seen := []curve.Point{{Step: 1}, {Step: 10}, {Step: 20}, {Step: 30}}
	for _, c := range []struct{ said, want float64 }{
		{31, 40}, {40, 40}, {40.05, 40}, {41, 50}, {30, 40}, {math.Inf(1), math.Inf(1)},
	} {
		said := training.Finish(func([]curve.Point, curve.Direction, float64) float64 { return c.said })
		if got := said.Measured()(seen, curve.Minimise, 0); got != c.want {
			t.Errorf("%v is measured at %v, want %v", c.said, got, c.want)
		}
	}
	if got := training.Multiple(2).Measured()(seen[3:], curve.Minimise, 0); got != 60 {
		t.Errorf("of one measurement, twice 30 is %v", got)
	}
}
