package predictor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
)

// TestATrainingByOneForAllTakesEachItsPart: where the pool had one slot, the first worker of each training did the work
// of all, and the others found it done at once. Each is expected to take a third of it, and not the middle of what
// attempts took, which is nothing.
func TestATrainingByOneForAllTakesEachItsPart(t *testing.T) {
	t.Parallel()
	var state predictor.State
	for n := range 4 {
		run, at := fmt.Sprint("earlier-", n), -5000+100*float64(n)
		state = fold(state, started(run, at, predictor.Goal{}), hint(run, "together", 3, at))
		for worker := range 3 {
			e := record(run, "together", worker, at+60+float64(worker)/100, 0.01)
			told := &predictor.Training{
				Executor: "workers", Workers: 3, Steps: 600, TotalSteps: 600,
				Parts: []predictor.TrainingPart{{Device: "cpu-0", Kind: "cpu", Threads: 1}},
			}
			if worker == 0 {
				e.Usage.Wall, e.Usage.CPU = 60e9, 60e9
				told.StepSeconds, told.ExchangeSeconds, told.Computed = 0.1, 0.01, 1
			}
			e.Training = told
			state = predictor.Fold(state, e)
		}
		state = fold(state, predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: after(at + 61)})
	}
	state = fold(state, started("r", 0, predictor.Goal{}))
	snap := laptop(1, 1)
	snap.Now = after(1)
	o := state.Outlook("r", predictor.Goal{}, snap)
	if ends := o.Chosen.FinishSeconds; ends.Mid < 50 || ends.Mid > 75 {
		t.Errorf("three workers at one slot end after %+v s, want about a minute: %s", ends, o.Summary)
	}
	state = fold(state, hint("r", "together", 3, 0))
	plan, _ := predictor.Decide(state, snap)
	if !strings.Contains(strings.Join(reasons(plan), "\n"), "a training of 600 steps") {
		t.Errorf("the stage is taken to train no more, because others found their work done: %q", reasons(plan))
	}
}
