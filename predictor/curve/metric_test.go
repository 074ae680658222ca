package curve_test

import (
	"math"
	"testing"

	"github.com/spillway-ml/spillway/predictor/curve"
)

func TestAMetricsNameSaysWhichWayIsBetter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		direction curve.Direction
		known     bool
	}{
		{"loss", curve.Minimise, true},
		{"val_loss", curve.Minimise, true},
		{"valLoss", curve.Minimise, true},
		{"eval/Loss", curve.Minimise, true},
		{"validation error", curve.Minimise, true},
		{"perplexity", curve.Minimise, true},
		{"accuracy", curve.Maximise, true},
		{"val_acc", curve.Maximise, true},
		{"test.F1", curve.Maximise, true},
		{"lossless", 0, false},
		{"learning_rate", 0, false},
		{"done", 0, false},
		{"", 0, false},
	} {
		if direction, known := curve.DirectionOf(c.name); direction != c.direction || known != c.known {
			t.Errorf("%q is better towards %v (%v), want %v (%v)", c.name, direction, known, c.direction, c.known)
		}
	}
}

func TestATrainingIsFollowedByTheMetricThatTellsMost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		names []string
		want  string
	}{
		{[]string{"accuracy", "loss", "learning_rate"}, "loss"},
		{[]string{"train_loss", "val_loss", "val_accuracy"}, "val_loss"},
		{[]string{"val_accuracy", "accuracy", "step_time"}, "val_accuracy"},
		{[]string{"aux_loss", "loss"}, "loss"},
		{[]string{"b_loss", "a_loss"}, "a_loss"},
		{[]string{"val_acc", "val_err"}, "val_err"},
		{[]string{"done"}, ""},
		{nil, ""},
	} {
		if got := curve.Metric(c.names); got != c.want {
			t.Errorf("of %q the training is followed by %q, want %q", c.names, got, c.want)
		}
	}
}

func TestThinnedPointsTellNearlyTheSame(t *testing.T) {
	t.Parallel()
	all := measured(2000, 1, power)
	all[700].Value = 0.1 // a value that is better than all
	thin := curve.Thinned(all, 128, curve.Minimise)
	if len(thin) > 128 || len(thin) < 64 {
		t.Fatalf("%d points are left of %d, want 64 to 128", len(thin), len(all))
	}
	lowest := math.Inf(1)
	for i, point := range thin {
		lowest = math.Min(lowest, point.Value)
		if i > 0 && point.Step <= thin[i-1].Step {
			t.Fatalf("step %v comes after %v", point.Step, thin[i-1].Step)
		}
	}
	if lowest != 0.1 || thin[len(thin)-1] != all[len(all)-1] {
		t.Errorf("the best is %v and the last %v, want .1 and %v", lowest, thin[len(thin)-1], all[len(all)-1])
	}
	whole := fitted(t, measured(2000, 1, power), curve.Options{Planned: 4000}).Final().Quantile(0.5)
	part := curve.Thinned(measured(2000, 1, power), 64, curve.Minimise)
	if got := fitted(t, part, curve.Options{Planned: 4000}).Final().Quantile(0.5); math.Abs(got/whole-1) > 0.01 {
		t.Errorf("of thinned points the final value is %v, of all %v", got, whole)
	}
	zero := append([]curve.Point{{Step: 0, Value: 9}}, all...)
	if got := curve.Thinned(zero, 16, curve.Maximise); got[0] != zero[0] || len(got) > 16 {
		t.Errorf("of a run from step 0 %d points are left, the first is %v", len(got), got[0])
	}
	same := make([]curve.Point, 40)
	if got := curve.Thinned(same, 16, curve.Minimise); len(got) > 16 {
		t.Errorf("%d points of one step are left, want 16", len(got))
	}
}
