package size_test

import (
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
