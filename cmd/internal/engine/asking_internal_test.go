package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

func TestAGoalIsAskedAboutOnceAndAgainWhileNoPlanMeetsIt(t *testing.T) {
	t.Parallel()
	asked := asking{}
	answers := map[string]whatif.Answer{
		"met": {Known: true, Promise: &whatif.Promise{Met: true}}, "unknown": {},
		"never": {Known: true, Goal: predictor.Goal{Deadline: time.Second}, Promise: &whatif.Promise{LeastDeadline: 9}},
	}
	deadline, hosts := time.Second, true
	look := func(number int, runs ...string) (names []string, readings []alerting.Reading) {
		for _, run := range runs {
			readings = append(readings, alerting.Reading{Run: run, Goal: predictor.Goal{Deadline: deadline}})
		}
		asked.ask(readings, number, hosts, func(run string, _ predictor.Goal) whatif.Answer {
			names = append(names, run)
			return answers[run]
		})
		return names, readings
	}
	names, readings := look(0, "met", "never", "unknown")
	if !slices.Equal(names, []string{"met", "never", "unknown"}) || !readings[0].Asked || readings[0].Impossible != "" ||
		readings[1].Impossible == "" || readings[2].Asked {
		t.Errorf("at first: asked %v, got %+v", names, readings)
	}
	if names, readings = look(1, "met", "never", "unknown"); len(names) > 0 || readings[1].Asked {
		t.Errorf("at once again: asked %v", names)
	}
	if names, _ = look(frontierAgain, "met", "never", "unknown"); !slices.Equal(names, []string{"never", "unknown"}) {
		t.Errorf("later: asked %v, want those that may change", names)
	}
	deadline *= 2
	if names, _ = look(frontierAgain+1, "met"); !slices.Equal(names, []string{"met"}) {
		t.Errorf("another goal: asked %v", names)
	}
	if len(asked) != 1 {
		t.Errorf("runs that are over are remembered: %v", asked)
	}
	var many []string
	for i := range frontiersAtOnce + 3 {
		many = append(many, string(rune('a'+i)))
	}
	if names, _ = look(99, many...); len(names) != frontiersAtOnce {
		t.Errorf("%d at once, want %d", len(names), frontiersAtOnce)
	}
	if names, _ = look(100, many...); len(names) != 3 {
		t.Errorf("then %d, want the others", len(names))
	}
	// All of these stay unknown: a run that comes then is asked about first, whatever its place in the ledger.
	if names, _ = look(200, append(many, "z")...); !slices.Contains(names, "z") {
		t.Errorf("asked %v before one that nobody has asked about", names)
	}
	hosts = false
	if names, readings = look(300, "never"); len(names) != 1 || readings[0].Asked || readings[0].Impossible != "" {
		t.Errorf("without hosts: asked %v, got %+v, want nothing told at first", names, readings)
	}
	if _, readings = look(300+frontierAgain, "never"); !readings[0].Asked || readings[0].Impossible == "" {
		t.Errorf("without hosts, again: got %+v, want that it is told", readings)
	}
}
