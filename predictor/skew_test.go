package predictor_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
)

// TestClocksThatAreOffLoseNoAttempt gives hosts clocks that are up to an hour off, and sets the leader's now and then:
// attempts that are heard of go on counting as running, as many as there are.
func TestClocksThatAreOffLoseNoAttempt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const tasks = 5
		off := rapid.Float64Range(-3600, 3600)
		host := off.Draw(t, "host's clock")
		leader := 10_000.0
		state := fold(predictor.State{}, started("r", leader, predictor.Goal{}),
			hint("r", "score", tasks, leader+off.Draw(t, "worker's clock")))
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

// TestADeadlineThatAClockJumpHasPassedIsToldAndSteered sets the leader's clock beyond a deadline: the run is first from
// then on, its stage keeps its slots, and another deadline eases it.
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
	state = fold(state, predictor.GoalChanged{
		Run: "r", Goal: predictor.Goal{Deadline: 10 * time.Hour},
		At: after(2*3600 + 1),
	})
	if got := priority(2*3600 + 2); got != 3 {
		t.Errorf("with a later deadline the run has priority %d, want the usual 3", got)
	}
}

// TestAPriorityThatHasEasedStaysInThePlan has one run that was late and one that never was: what takes the priority
// back is in every plan from then on, also of a leader that knows from the plan in force only that the run was late.
func TestAPriorityThatHasEasedStaysInThePlan(t *testing.T) {
	t.Parallel()
	decide := func(state predictor.State, now float64, term uint64) ([]predictor.Window, predictor.State) {
		snap := laptop(now, 1)
		snap.Functions.Enabled, snap.Term = false, term
		plan, next := predictor.Decide(state, snap)
		return plan.Windows, next
	}
	facts := []predictor.Event{
		started("late", 0, predictor.Goal{Deadline: time.Second}), started("other", 0, predictor.Goal{}),
		hint("late", "score", 10, 0), hint("other", "score", 10, 0),
	}
	eases := predictor.GoalChanged{Run: "late", At: after(20)}
	row := predictor.Window{Run: "late", Stage: stageNamed("score"), Tasks: 64, Priority: 1}
	rows, state := decide(fold(learn(predictor.State{}, "score", 10, 1), facts...), 10, 1)
	if diff := cmp.Diff([]predictor.Window{row}, rows); diff != "" {
		t.Fatalf("windows of a late run (-want +got):\n%s", diff)
	}
	usual := row
	usual.Priority = 3
	state = fold(state, eases)
	for second := range 3 {
		rows, state = decide(state, 21+float64(second), 1)
		if diff := cmp.Diff([]predictor.Window{usual}, rows); diff != "" {
			t.Errorf("windows %d s after the goal was lifted (-want +got):\n%s", second+1, diff)
		}
	}
	state = fold(fold(learn(predictor.State{}, "score", 10, 1), facts...), eases)
	state = predictor.Resume(state, predictor.Plan{Windows: []predictor.Window{
		row,
		{Run: "unknown", Stage: row.Stage, Tasks: 1, Priority: 1},
	}})
	if rows, _ = decide(state, 21, 2); !cmp.Equal([]predictor.Window{usual}, rows) {
		t.Errorf("windows of the next leader: %+v, want %+v", rows, usual)
	}
}
