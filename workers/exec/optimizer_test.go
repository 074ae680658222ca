package exec_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/exec"
)

func TestAnOptimizerIsFilledWithTheDefaultsOfItsKind(t *testing.T) {
	t.Parallel()
	adam := exec.Optimizer{Kind: exec.Adam, LearningRate: 0.001, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8}
	adamW := adam
	adamW.Kind, adamW.WeightDecay = exec.AdamW, 0.01
	for _, test := range []struct{ given, want exec.Optimizer }{
		{exec.Optimizer{}, adam},
		{exec.Optimizer{Kind: exec.Adam}, adam},
		{exec.Optimizer{Kind: exec.AdamW}, adamW},
		{exec.Optimizer{Kind: exec.SGD}, exec.Optimizer{Kind: exec.SGD, LearningRate: 0.01}},
		{exec.Optimizer{Kind: exec.Momentum}, exec.Optimizer{Kind: exec.Momentum, LearningRate: 0.01, Momentum: 0.9}},
		{exec.Optimizer{Kind: exec.SGD, LearningRate: 2}, exec.Optimizer{Kind: exec.SGD, LearningRate: 2}},
	} {
		got, err := test.given.Filled()
		if err != nil {
			t.Errorf("%+v: %v", test.given, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%+v: %s", test.given, diff)
		}
	}
}

func TestOptimizersOutsideTheirRangeAreRefused(t *testing.T) {
	t.Parallel()
	for _, o := range []exec.Optimizer{
		{Kind: "lion"},
		{LearningRate: 1},
		{Kind: exec.SGD, LearningRate: -1},
		{Kind: exec.SGD, LearningRate: math.NaN()},
		{Kind: exec.SGD, LearningRate: math.Inf(1)},
		{Kind: exec.Momentum, Momentum: 1.5},
		{Kind: exec.Adam, Beta1: 1},
		{Kind: exec.Adam, Beta2: -0.1},
		{Kind: exec.AdamW, WeightDecay: -1},
	} {
		if got, err := o.Filled(); err == nil {
			t.Errorf("%+v is taken as %+v", o, got)
		}
	}
}
