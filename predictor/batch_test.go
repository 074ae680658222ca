package predictor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// batchOf is how tasks of a stage share an invoke by a plan.
func batchOf(plan predictor.Plan, stage string) predictor.Batch {
	for _, grant := range plan.Grants {
		if grant.Stage.Name == stage && grant.Venue == predictor.Function {
			return grant.Batch
		}
	}
	return predictor.Batch{}
}

// TestShortTasksShareAnInvoke has 5,000 tasks of 5 ms wait, of a build whose functions take several with an invoke, and
// of one of before.
func TestShortTasksShareAnInvoke(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		batches bool
		goal    predictor.Goal
		wall    float64
		least   int // tasks an invoke
		most    int
	}{
		"a build that takes batches": {batches: true, wall: 0.005, least: 5, most: 32},
		"one of before":              {batches: false, wall: 0.005, least: 1, most: 1},
		"tasks of ten seconds":       {batches: true, wall: 10, least: 1, most: 1},
		"a run in a hurry": {
			batches: true, goal: predictor.Goal{Minimise: predictor.Latency}, wall: 0.005, least: 1, most: 1,
		},
		"a deadline with time to spare": {
			batches: true, goal: predictor.Goal{Deadline: 12 * time.Second}, wall: 0.005, least: 2, most: 64,
		},
		"a deadline that leaves little": {
			batches: true, goal: predictor.Goal{Deadline: 4 * time.Second}, wall: 0.005, least: 1, most: 8,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := learn(predictor.State{}, "s", 20, tt.wall)
			waits := hint("r", "s", 5000, 0)
			waits.Batches, waits.Input = tt.batches, 2*quantity.KiB
			state = fold(state, started("r", 0, tt.goal), waits)
			changed, plan := 0, predictor.Plan{}
			for at := range 5 {
				snapshot := laptop(float64(at), 1)
				snapshot.Policy.ValueOfTime = 10 * quantity.USD // so that 25 s of a backlog are worth functions
				plan, state = predictor.Decide(state, snapshot)
				for _, said := range reasons(plan) {
					if strings.Contains(said, " batch: ") {
						changed++
					}
				}
			}
			got := batchOf(plan, "s")
			if slots(plan, "s", predictor.Function) == 0 || got.Most() < tt.least || got.Most() > tt.most {
				t.Errorf("%d slots with %+v, want %d to %d tasks an invoke", slots(plan, "s", predictor.Function), got, tt.least,
					tt.most)
			}
			most := 1
			if tt.goal.Deadline > 0 { // which comes nearer, and nothing is done meanwhile
				most = 3
			}
			if changed > most || got.Most() > 1 && (changed < 1 || got.Wait <= 0) {
				t.Errorf("told %d times of %+v", changed, got)
			}
			if again := predictor.Resume(state, plan); got.Most() > 1 {
				next, _ := predictor.Decide(again, laptop(5, 1))
				if kept := batchOf(next, "s"); kept.Most() != 1 && kept.Most() < got.Most()/2 {
					t.Errorf("after the plan was read again: %+v, want about %+v", kept, got)
				}
			}
		})
	}
}
