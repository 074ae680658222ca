package predictor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
)

func TestTasksThatNoRunHasAreLookedForOneStageAtATime(t *testing.T) {
	t.Parallel()
	counted := func(stage string, tasks int, at float64) predictor.Event {
		return predictor.BacklogObserved{Stage: stageNamed(stage), Tasks: tasks, At: after(at)}
	}
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}))
	for i := range 6 {
		stage := fmt.Sprint("ended-", i)
		state = learn(state, stage, 10, 600)
		state = fold(state, hint("r", stage, 1, 0), start("r", stage, 1, 1), record("r", stage, 1, 2, 1))
	}
	state = fold(learn(state, "waits", 10, 600), hint("r", "waits", 8, 3))
	looked, turns, last := map[string]int{}, 0, ""
	for tick := range 60 {
		now := 100 + float64(tick)
		for i := range min(6, tick+1) { // one is heard of after the other
			state = fold(state, counted(fmt.Sprint("ended-", 5-i), 30, now)) // the server was killed and counts them again
		}
		var plan predictor.Plan
		plan, state = predictor.Decide(state, laptop(now, 8))
		others := 0
		for _, grant := range plan.Grants {
			if grant.Stage.Name == "waits" {
				continue
			}
			others++
			looked[grant.Stage.Name]++
			if grant.Stage.Name != last {
				turns, last = turns+1, grant.Stage.Name
			}
			if grant.Venue != predictor.Pool || grant.Slots > 1 {
				t.Errorf("after %d s a stage of which all is done has %+v", tick, grant)
			}
		}
		if waits := slots(plan, "waits", predictor.Pool); others > 1 || waits < 7 {
			t.Fatalf("after %d s %d stages of which all is done have slots, and what waits has %d of 8: %+v\n%s", tick, others,
				waits, plan.Grants, strings.Join(reasons(plan), "\n"))
		}
	}
	if turns > 6 {
		t.Errorf("in a minute %d stages were looked at in turn, want 6: %v", turns, looked)
	}
	for i := range 6 {
		if seconds := looked[fmt.Sprint("ended-", i)]; seconds < 9 {
			t.Errorf("stage %d was looked at for %d s of 60, want its sixth: %v", i, seconds, looked)
		}
	}
}

func TestAQueueWhoseHintsWereLostIsBelievedOnceATaskOfItStarts(t *testing.T) {
	t.Parallel()
	counted := predictor.BacklogObserved{Stage: stageNamed("score"), Tasks: 30, At: after(1)}
	state := fold(learn(predictor.State{}, "score", 10, 600), counted)
	snap := laptop(1, 4)
	snap.Functions.Enabled = false
	plan, state := predictor.Decide(state, snap)
	if got := slots(plan, "score", predictor.Pool); got != 1 {
		t.Errorf("tasks that no run is known to have get %d slots, want 1 that looks", got)
	}
	state = fold(state, start("r", "score", 1, 2))
	snap.Now = after(3)
	plan, _ = predictor.Decide(state, snap)
	if got := slots(plan, "score", predictor.Pool); got != 4 {
		t.Errorf("once one of them started, the stage has %d slots, want all 4:\n%s", got, strings.Join(reasons(plan), "\n"))
	}
}
