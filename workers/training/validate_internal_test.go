package training

import (
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/exec"
)

func TestAGoalIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Goal{
		"": {Name: ValidationLoss}, "loss2": {Name: "loss2"}, "min:error": {Name: "error"},
		"max:accuracy": {Name: "accuracy", Most: true},
	} {
		if got, err := ParseGoal(text); err != nil || got != want {
			t.Errorf("ParseGoal(%q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"most:accuracy", "max:", ":x"} {
		if got, err := ParseGoal(text); err == nil {
			t.Errorf("ParseGoal(%q) = %+v", text, got)
		}
	}
}

// TestEvaluationsStandAsTheDefinitionSays looks at all of them each time.
func TestEvaluationsStandAsTheDefinitionSays(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		goal := Goal{Name: "number", Most: rapid.Bool().Draw(t, "most")}
		margin := rapid.SampledFrom([]float64{0, 0.5, 3}).Draw(t, "margin")
		values := rapid.SliceOfN(rapid.OneOf(
			rapid.Map(rapid.IntRange(-5, 5), func(i int) float64 { return float64(i) / 2 }),
			rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1)}),
		), 1, 30).Draw(t, "values")
		var standing *exec.Standing
		for i, value := range values {
			now, best := judged(standing, goal, int64(10*(i+1)), value, margin)
			standing = &now
			wantStep, wantStale := int64(0), 0
			sign, lead, mark := 1.0, math.Inf(1), math.Inf(1)
			if goal.Most {
				sign = -1
			}
			for j, v := range values[:i+1] {
				wantStale++
				if math.IsNaN(v) || math.IsInf(v, 0) {
					continue
				}
				if sign*v < lead {
					lead, wantStep = sign*v, int64(10*(j+1))
				}
				if sign*v < mark-margin {
					mark, wantStale = sign*v, 0
				}
			}
			if now.BestStep != wantStep || now.Stale != wantStale || best != (wantStep == int64(10*(i+1))) ||
				wantStep > 0 && now.Best != sign*lead {
				t.Fatalf("after %v: %+v, best %v; want step %d, stale %d", values[:i+1], now, best, wantStep, wantStale)
			}
		}
	})
}

func TestAnotherGoalBeginsAnew(t *testing.T) {
	t.Parallel()
	before := &exec.Standing{Goal: "min:validation_loss", Best: 0.1, BestStep: 3, Stale: 4}
	now, best := judged(before, Goal{Name: "accuracy", Most: true}, 8, 0.2, 0)
	if !best || now.BestStep != 8 || now.Stale != 0 || now.Goal != "max:accuracy" {
		t.Errorf("judged = %+v, %v", now, best)
	}
}

func TestShardedReplicasAreNotEvaluated(t *testing.T) {
	t.Parallel()
	job := Job{Replicas: 2, Sharding: exec.ShardGradients}
	if err := job.checkValidation(false, nil); err != nil {
		t.Error(err)
	}
	err := job.checkValidation(true, nil)
	const want = "replicas that divide what the gradients take are not evaluated with validation data"
	if !errors.Is(err, exec.ErrRequest) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want a refusal: %s", err, want)
	}
}
