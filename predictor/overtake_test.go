package predictor_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

// TestARunNearItsDeadlineOvertakesAFlood gives four cores to a flood of one pipeline and to a run of another that would
// be late if it got no more than its part: it gets what it needs, and the flood still has a slot.
func TestARunNearItsDeadlineOvertakesAFlood(t *testing.T) {
	t.Parallel()
	state := learn(learn(predictor.State{}, "flood", 10, 1), "score", 10, 1)
	state = fold(state, started("flood", 0, predictor.Goal{}), hint("flood", "flood", 2000, 0))
	snap := laptop(0, 4)
	snap.Functions.Enabled = false
	_, state = predictor.Decide(state, snap)
	state = fold(state, started("late", 1, predictor.Goal{Deadline: 15 * time.Second}), hint("late", "score", 40, 1))
	snap.Now = after(1)
	plan, _ := predictor.Decide(state, snap)
	if late, flood := slots(plan, "score", predictor.Pool), slots(plan, "flood", predictor.Pool); late != 3 || flood != 1 {
		t.Errorf("slots: %d for the run that has 15 s for 40 tasks of a second, %d for the flood; want 3 and 1", late, flood)
	}
}

// TestAtASharedStageTheLateRunIsServedFirst lets two runs share the queue of a stage, as Temporal serves it: the lowest
// priority key first, then in turn by when they came. A hundred runs flood it; one has a deadline that it would miss
// behind them.
func TestAtASharedStageTheLateRunIsServedFirst(t *testing.T) {
	t.Parallel()
	type task struct{ run, number int }
	const flood, each, late = 100, 5, 100
	state := learn(predictor.State{}, "score", 10, 0.1)
	var queue []task
	number := 0
	add := func(run, tasks int, goal predictor.Goal) {
		id := fmt.Sprint("run-", run)
		state = fold(state, started(id, 0, goal), hint(id, "score", tasks, 0))
		for range tasks {
			queue = append(queue, task{run, number})
			number++
		}
	}
	for run := range flood {
		add(run, each, predictor.Goal{})
	}
	add(late, 10, predictor.Goal{Deadline: 20 * time.Second})
	priority := map[string]int{}
	ended := map[int]float64{}
	for tick := 0; len(queue) > 0; tick++ {
		now := float64(tick) / 2
		snap := laptop(now, 1)
		snap.Functions.Enabled = false
		var plan predictor.Plan
		plan, state = predictor.Decide(state, snap)
		for _, window := range plan.Windows {
			priority[window.Run] = window.Priority
		}
		of := func(next task) int {
			if key := priority[fmt.Sprint("run-", next.run)]; key > 0 {
				return key
			}
			return 3
		}
		slices.SortStableFunc(queue, func(a, b task) int { return of(a) - of(b) })
		for range min(len(queue), 5) { // one slot, half a second
			next := queue[0]
			queue = queue[1:]
			ended[next.run] = now + 0.5
			id := fmt.Sprint("run-", next.run)
			state = fold(state, start(id, "score", next.number, now), record(id, "score", next.number, now+0.5, 0.1))
		}
	}
	if ended[late] > 20 {
		t.Errorf("the run with a deadline of 20 s ended after %v s, behind 50 s of others", ended[late])
	}
	if ended[flood-1] > 52 {
		t.Errorf("the last of the others ended after %v s, want no later than without the late one but for its own second",
			ended[flood-1])
	}
}
