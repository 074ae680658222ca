package predictor_test

import (
	"math"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestTheShadowPredictsWhatItDoesNotGrant(t *testing.T) {
	t.Parallel()
	declared := quantity.Size{CPU: 2000, Memory: quantity.GiB}
	state := history(predictor.State{}, "score", 1, repeat(100, 20), nil)
	scheduled := hint("r", "score", 1, 0)
	scheduled.Declared = declared
	snapshot := laptop(1, 4)
	snapshot.Policy.Shadow = true
	plan, _ := predictor.Decide(fold(state, started("r", 0, predictor.Goal{}), scheduled), snapshot)
	sizing := plan.Sizings[0]
	size, expected, _ := sizing.For(predictor.Need{}, snapshot.Hosts[0].Capacity)
	if size != declared || sizing.Learned {
		t.Errorf("in shadow an attempt has %s, want the declared %s", size, declared)
	}
	if mid := expected.Memory.Mid / float64(quantity.MiB); math.Abs(mid-100) > 1 ||
		!strings.Contains(expected.Source, "in shadow") {
		t.Errorf("expected %.0f MiB because of %q, want 100 in shadow", mid, expected.Source)
	}
}

func TestPeaksThatAreFarFromWhatWasExpectedFallBackToTheStaticSize(t *testing.T) {
	t.Parallel()
	declared := quantity.Size{CPU: 2000, Memory: quantity.GiB}
	state := history(predictor.State{}, "score", 1, repeat(100, 20), nil)
	for i := range 20 {
		line := record("r", "score", 1000+i, 1, 2)
		line.Predicted.Memory = predictor.Interval{Mid: float64(10 * quantity.MiB)}
		state = predictor.Fold(state, line)
	}
	scheduled := hint("r", "score", 1, 1)
	scheduled.Declared = declared
	plan, _ := predictor.Decide(fold(state, started("r", 0, predictor.Goal{}), scheduled), laptop(2, 4))
	if s := plan.Sizings[0]; s.Learned || s.Base.Memory != declared.Memory || s.Base.CPU != quantity.Core {
		t.Errorf("after peaks ten times those expected: %+v, want the memory that is declared, and the core that is used", s)
	}
}
