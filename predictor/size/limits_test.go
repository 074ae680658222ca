package size_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
)

func TestRaisedLimitsGiveAtLeastWhatBothGive(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limits := func(name string) size.Limits {
			return size.Limits{
				Base: quantity.Size{CPU: 1000, Memory: quantity.Bytes(rapid.Int64Range(1<<24, 1<<36).Draw(t, name+" base"))},
				Term: usage.Term{
					Feature: usage.InputBytes, Power: rapid.SampledFrom([]float64{0.5, 1, 2}).Draw(t, name+" power"),
					PerUnit: rapid.Float64Range(0.001, 100).Draw(t, name+" slope"),
				},
			}
		}
		held, need, largest := limits("held"), limits("need"), rapid.Float64Range(1, 1e6).Draw(t, "largest")
		among := []usage.Features{{}, {Input: largest}}
		raised := held.Raised(need, among[1], among)
		for part := range 11 {
			at := []usage.Features{{Input: largest * float64(part) / 10}}
			for _, given := range []size.Limits{held, need} {
				if raised.Short(given, at) {
					t.Fatalf("%+v and %+v are raised to %+v, which is less at an input of %g", held, need, raised, at[0].Input)
				}
			}
		}
	})
}

// A line that is too high by as much everywhere has little to spare for the largest attempt, and much for most.
func TestWhatIsBeyondEnoughIsThatOfAllAttempts(t *testing.T) {
	t.Parallel()
	line := func(base, perByte int) size.Limits {
		return size.Limits{
			Base: quantity.Size{Memory: quantity.Bytes(base) * quantity.MiB},
			Term: usage.Term{Feature: usage.InputBytes, Power: 1, PerUnit: float64(perByte)},
		}
	}
	attempts := []usage.Features{{}, {Input: float64(quantity.MiB)}, {Input: float64(8 * quantity.MiB)}}
	for name, test := range map[string]struct {
		given, enough size.Limits
		attempts      []usage.Features
		want          float64
	}{
		"as much":     {line(20, 10), line(20, 10), attempts, 0},
		"too little":  {line(20, 10), line(40, 10), attempts, 0},
		"too much":    {line(60, 10), line(20, 10), attempts, 120.0 / 270},
		"too steep":   {line(20, 20), line(20, 10), attempts, 90.0 / 240},
		"no attempts": {line(60, 10), line(20, 10), nil, 0},
		"nothing":     {line(0, 0), line(0, 0), attempts, 0},
	} {
		if got := test.given.Beyond(test.enough, test.attempts); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: %g, want %g", name, got, test.want)
		}
	}
}
