package predictor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// hurried is a state with a stage whose attempts of 100 s are 1.3 times as fast on two cores, by attempts at both.
func hurried() predictor.State {
	var state predictor.State
	for i := range 40 {
		line := record("earlier", "score", i, -1000+float64(i), 130)
		line.Grant.CPU, line.Usage.CPU, line.Usage.Throttled = quantity.Core, 129*time.Second, 30*time.Second
		if i%2 == 0 {
			line.Usage.Wall, line.Usage.CPU, line.Usage.Throttled = 100*time.Second, 130*time.Second, 0
			line.Grant.CPU = 2 * quantity.Core
		}
		state = predictor.Fold(state, line)
	}
	return state
}

// TestALateRunGetsTheCoresThatPay has runs with deadlines at a stage whose attempts are hardly faster on a second core.
func TestALateRunGetsTheCoresThatPay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		deadlines []time.Duration // of runs that begin at 0, 0 for none
		at        float64
		cores     quantity.Milli
	}{
		{"none has a deadline", []time.Duration{0}, 1, quantity.Core},
		{"it is far", []time.Duration{time.Hour}, 1, quantity.Core},
		{"two cores meet it", []time.Duration{130 * time.Second}, 1, 2 * quantity.Core},
		{"it has passed", []time.Duration{time.Minute}, 600, quantity.Core},
		{"it cannot be met", []time.Duration{30 * time.Second}, 1, quantity.Core},
		{
			"of one it has passed, that of another can be met",
			[]time.Duration{time.Minute, 730 * time.Second},
			600,
			2 * quantity.Core,
		},
		{"of one it has passed, that of another is far", []time.Duration{time.Minute, 2 * time.Hour}, 600, quantity.Core},
	} {
		state := hurried()
		for i, deadline := range c.deadlines {
			run := "r" + string(rune('a'+i))
			state = fold(state, started(run, 0, predictor.Goal{Deadline: deadline}), hint(run, "score", 1, c.at))
		}
		snapshot := laptop(c.at, 8)
		snapshot.Functions.Enabled = false
		plan, _ := predictor.Decide(state, snapshot)
		if got := plan.Sizings[0].Base.CPU; got != c.cores {
			t.Errorf("%s: %s cores, want %s:\n%s", c.name, got, c.cores, strings.Join(reasons(plan), "\n"))
		}
	}
}

// TestALateRunIsGivenUpOnce follows an attempt that has two cores until its deadline and beyond: it keeps them while it
// may be in time, and changes its share once.
func TestALateRunIsGivenUpOnce(t *testing.T) {
	t.Parallel()
	for _, takes := range []float64{100, 125, 400} { // as the others; a little late; far longer
		state := fold(hurried(), started("r", 0, predictor.Goal{Deadline: 125 * time.Second}), hint("r", "score", 1, 0))
		var plan predictor.Plan
		cpu, changes, kept, told := quantity.Milli(0), -1, 0.0, ""
		for second := range 300 {
			now := float64(second)
			snapshot := laptop(now, 8)
			snapshot.Functions.Enabled = false
			plan, state = predictor.Decide(state, snapshot)
			if now > takes {
				break
			}
			if next := plan.Sizings[0].Base.CPU; next != cpu {
				cpu, changes, told = next, changes+1, strings.Join(reasons(plan), "\n")
			}
			if cpu == 2*quantity.Core {
				kept = now
			}
			if second == 0 {
				begun := start("r", "score", 0, 0)
				begun.Grant.CPU = cpu
				state = predictor.Fold(state, begun)
			}
		}
		if changes > 1 || kept < min(takes-1, 100) || kept > 200 {
			t.Errorf("one of %v s has two cores until %v s and changes %d times, want until it is late, and once", takes, kept,
				changes)
		}
		if changes > 0 && !strings.Contains(told, "the deadline cannot be met with more cores either") {
			t.Errorf("one of %v s has fewer cores and nobody says why:\n%s", takes, told)
		}
	}
}
