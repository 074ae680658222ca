package ledger_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

func TestALateWordOfARunThatEndedAndWasForgottenOpensNoRun(t *testing.T) {
	t.Parallel()
	ended := predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: after(1)}
	forgotten := func() *ledger.Ledger {
		l := apply(started("r"), ended)
		for i := 0; ; i++ { // a burst
			if _, known := l.Run("r"); !known {
				return l
			}
			l.Apply(predictor.RunStarted{Run: fmt.Sprint("burst-", i), Pipeline: "burst", At: after(2)})
			l.Apply(predictor.RunEnded{Run: fmt.Sprint("burst-", i), State: predictor.RunSucceeded, At: after(3)})
		}
	}
	for name, late := range map[string]predictor.Event{
		"scheduled": predictor.Scheduled{Run: "r", Stage: score, Tasks: 1, At: after(1)},
		"started":   predictor.AttemptStarted{Run: "r", Stage: score, Task: "t0", Attempt: 1, At: after(1)},
		"sampled":   predictor.Sampled{Run: "r", Stage: score, Task: "t0", Attempt: 1, Memory: 90e6, At: after(1)},
		"lost":      record(0, 1, predictor.Pool, predictor.Lost),
		"reused":    predictor.Reused{Run: "r", Stage: score, Tasks: 1, From: "q", At: after(1)},
		"ended":     ended,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := forgotten()
			l.Apply(late)
			if view, known := l.Run("r"); known || slices.Contains(l.Going(), "r") {
				t.Errorf("the run is there again, as %s", view.State)
			}
			l.Apply(started("r")) // the same name started again
			l.Apply(late)
			if view, known := l.Run("r"); !known || view.Pipeline != "digits" {
				t.Errorf("a run that started under its name is known: %v, with pipeline %q", known, view.Pipeline)
			}
		})
	}
}
