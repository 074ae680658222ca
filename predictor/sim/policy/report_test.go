package policy_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/sim/policy"
)

func TestAScoreHasPercentilesAndParts(t *testing.T) {
	t.Parallel()
	outcome := policy.Outcome{HostCost: quantity.USD, FunctionCost: 2 * quantity.USD, MostHosts: 3, Spilled: 50, Cold: 10}
	for i := range 200 {
		outcome.Latencies = append(outcome.Latencies, time.Duration(200-i)*10*time.Millisecond)
	}
	got := policy.ScoreOf("p", outcome, time.Second)
	want := policy.Score{
		Policy: "p", Cost: 3 * quantity.USD, HostCost: quantity.USD, FunctionCost: 2 * quantity.USD, P50: 1, P95: 1.9,
		P99: 1.98, Late: 0.5, MostHosts: 3, OnFunctions: 0.25, Cold: 0.05,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTheBestIsTheCheapestOfThoseThatAreInTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		scores []policy.Score
		want   int
	}{
		"in time":             {[]policy.Score{{Cost: 3}, {Cost: 2, Late: 0.01}, {Cost: 1, Late: 0.02}}, 1},
		"none in time":        {[]policy.Score{{Cost: 1, Late: 0.5}, {Cost: 9, Late: 0.4}, {Cost: 8, Late: 0.4}}, 2},
		"the first of equals": {[]policy.Score{{Cost: 1}, {Cost: 1}}, 0},
	} {
		policy.MarkBest(test.scores)
		for i, score := range test.scores {
			if score.Best != (i == test.want) {
				t.Errorf("%s: best is %v for number %d, want it for %d", name, score.Best, i, test.want)
			}
		}
	}
	policy.MarkBest(nil)
}
