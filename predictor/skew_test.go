package predictor_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
)

// TestClocksThatAreOffLoseNoAttempt gives hosts clocks that are up to an hour off, and sets the leader's now and then: attempts that are heard of
// go on counting as running, as many as there are.
func TestClocksThatAreOffLoseNoAttempt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const tasks = 5
		off := rapid.Float64Range(-3600, 3600)
		host := off.Draw(t, "host's clock")
		leader := 10_000.0
		state := fold(predictor.State{}, started("r", leader, predictor.Goal{}), hint("r", "score", tasks, leader+off.Draw(t, "worker's clock")))
		for task := range tasks {
			state = fold(state, by("a", start("r", "score", task, leader+host)))
		}
		for second := range 120 {
			if rapid.IntRange(0, 20).Draw(t, "set the leader's clock") == 0 {
				leader += off.Draw(t, "by")
			}
			now := leader + float64(second)
			for task := range tasks {
				state = fold(state, sample("r", "score", task, now+host))
			}
			var plan predictor.Plan
			plan, state = predictor.Decide(state, laptop(now, 8))
			running, waiting := counted(t, state)
			if running != tasks || waiting != 0 || slots(plan, "score", predictor.Pool) < tasks {
				t.Fatalf("second %d: %d run, %d wait, %d slots, want %d, 0 and at least as many slots", second, running, waiting,
					slots(plan, "score", predictor.Pool), tasks)
			}
		}
	})
}

// TestADeadlineThatAClockJumpHasPassedIsToldAndSteered sets the leader's clock beyond a deadline: the run is first from then on, its stage keeps
// its slots, and another deadline eases it.
func TestADeadlineThatAClockJumpHasPassedIsToldAndSteered(t *testing.T) {
	t.Parallel()
	state := learn(predictor.State{}, "score", 10, 1)
	state = fold(state, started("r", 0, predictor.Goal{Deadline: time.Hour}), hint("r", "score", 20, 0))
	priority := func(now float64) int {
		snap := laptop(now, 1)
		snap.Functions.Enabled = false
		plan, next := predictor.Decide(state, snap)
		state = next
		if got := slots(plan, "score", predictor.Pool); got != 1 {
			t.Errorf("at %v s: %d slots, want 1", now, got)
		}
		for _, window := range plan.Windows {
			return window.Priority
		}
		return 3
	}
	if got := priority(1); got != 3 {
		t.Errorf("an hour before its deadline the run has priority %d, want the usual 3", got)
	}
	if got := priority(2 * 3600); got != 1 {
		t.Errorf("past its deadline the run has priority %d, want 1", got)
	}
	state = fold(state, predictor.GoalChanged{Run: "r", Goal: predictor.Goal{Deadline: 10 * time.Hour}, At: after(2*3600 + 1)})
	if got := priority(2*3600 + 2); got != 3 {
		t.Errorf("with a later deadline the run has priority %d, want the usual 3", got)
	}
}
