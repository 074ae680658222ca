package curve_test

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/spillway-ml/spillway/predictor/curve"
	"github.com/spillway-ml/spillway/predictor/fact"
)

func TestATrailFollowsOneMetric(t *testing.T) {
	t.Parallel()
	var trail curve.Trail
	for _, c := range []struct {
		step      int
		metrics   map[string]float64
		notFinite []string
		changed   bool
	}{
		{1, map[string]float64{"lr": 0.1}, nil, false},
		{0, map[string]float64{"loss": 5}, nil, false},
		{2, map[string]float64{"loss": 3, "val_acc": 0.1}, nil, true},
		{2, map[string]float64{"loss": 3, "val_acc": 0.1}, nil, false},
		{3, map[string]float64{"val_loss": 9}, nil, false}, // the first that was chosen is followed on
		{4, map[string]float64{"loss": 2}, nil, true},
		{6, nil, []string{"loss"}, true},
		{6, nil, []string{"loss"}, false},
		{5, map[string]float64{"loss": 1.5}, nil, true}, // from a checkpoint
		{7, nil, []string{"loss"}, true},
	} {
		if changed := trail.Tell(c.step, c.metrics, c.notFinite, 0); changed != c.changed {
			t.Errorf("step %d with %v %v changes: %v, want %v", c.step, c.metrics, c.notFinite, changed, c.changed)
		}
	}
	want := fact.Curve{Metric: "loss", Steps: []int64{2, 4, 5}, Values: []float64{3, 2, 1.5}, NotFinite: []int64{7}}
	if got := trail.Curve(); got == nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("its curve is %+v, want %+v", got, want)
	}
	var again curve.Trail
	if !again.Follow(want, 0) || again.Metric != "loss" || len(again.Points) != 4 || !math.IsNaN(again.Points[3].Value) {
		t.Errorf("what follows the curve is %+v", again)
	}
	var short curve.Trail
	short.Tell(1, map[string]float64{"loss": 1}, nil, 0)
	if short.Curve() != nil {
		t.Errorf("a single point is told as a curve")
	}
}

func TestACurveThatMakesNoSenseIsPassedOver(t *testing.T) {
	t.Parallel()
	many := fact.Curve{Metric: "loss", Steps: make([]int64, 100), Values: make([]float64, 100)}
	for name, told := range map[string]fact.Curve{
		"nothing":              {},
		"no direction":         {Metric: "done", Steps: []int64{1, 2}, Values: []float64{1, 2}},
		"more steps":           {Metric: "loss", Steps: []int64{1, 2}, Values: []float64{1}},
		"a step twice":         {Metric: "loss", Steps: []int64{2, 2}, Values: []float64{1, 2}},
		"a step twice, as NaN": {Metric: "loss", Steps: []int64{1, 2}, Values: []float64{1, 2}, NotFinite: []int64{2}},
		"step 0":               {Metric: "loss", Steps: []int64{0, 2}, Values: []float64{1, 2}},
		"too many":             many,
	} {
		trail := curve.Trail{Metric: "loss", Points: []curve.Point{{Step: 1, Value: 1}}}
		if trail.Follow(told, 0) || len(trail.Points) != 1 {
			t.Errorf("%s: it is followed: %+v", name, trail)
		}
	}
}

// TestATrailIsBounded tells steps as programs may: in any order, again, and not finite, while others that begin and end
// leave it room for more points or fewer.
func TestATrailIsBounded(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var trail curve.Trail
	step := 0
	for range 5000 {
		step += random.IntN(40) - 8
		value, notFinite := map[string]float64{"loss": random.Float64()}, []string(nil)
		if random.IntN(10) == 0 {
			value, notFinite = nil, []string{"loss"}
		}
		trail.Tell(step, value, notFinite, 16+random.IntN(85))
		if len(trail.Points) > 101 {
			t.Fatalf("%d points are kept, want about 100 at most", len(trail.Points))
		}
		for i := range trail.Points {
			if i > 0 && trail.Points[i].Step <= trail.Points[i-1].Step {
				t.Fatalf("step %v comes after %v", trail.Points[i].Step, trail.Points[i-1].Step)
			}
		}
		if told := trail.Curve(); told != nil {
			if n := len(told.Steps) + len(told.NotFinite); n > fact.MostCurve || len(told.Steps) != len(told.Values) {
				t.Fatalf("its curve has %d points", n)
			}
			if follows := (&curve.Trail{}).Follow(*told, 100); !follows {
				t.Fatalf("its curve %+v makes no sense", told)
			}
		}
	}
}
