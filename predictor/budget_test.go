package predictor_test

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestANarrowBudgetKeepsNoOtherRunFromFunctions(t *testing.T) {
	t.Parallel()
	latency := func(budget quantity.Money) predictor.Goal {
		return predictor.Goal{Minimise: predictor.Latency, Budget: budget}
	}
	for name, c := range map[string]struct {
		goals []predictor.Goal // of the runs, of each of which 100 tasks wait
		want  int
		told  string
	}{
		"one run that can pay for nothing": {[]predictor.Goal{latency(1)}, 0, "so it is 0 slots"},
		"beside one without a budget": {
			[]predictor.Goal{latency(1), latency(0)},
			8,
			"8 function slots finish",
		},
		"beside one with a wide budget": {
			[]predictor.Goal{latency(1), latency(quantity.USD)},
			8,
			"8 function slots finish",
		},
		"beside one that wants none": {[]predictor.Goal{latency(1), {Minimise: predictor.Cost}}, 0, ""},
		"a wide budget beside one that can pay for a few": {[]predictor.Goal{
			latency(quantity.USD / 500),
			latency(quantity.USD),
		}, 8, "8 function"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := learn(predictor.State{}, "score", 10, 1)
			for i, goal := range c.goals {
				run := string(rune('a' + i))
				state = fold(state, started(run, 0, goal), hint(run, "score", 100, 0))
			}
			plan, _ := predictor.Decide(state, laptop(0, 1))
			told := strings.Join(reasons(plan), "\n")
			if got := slots(plan, "score", predictor.Function); got != c.want || !strings.Contains(told, c.told) {
				t.Errorf("%d function slots, want %d with a reason that has %q:\n%s", got, c.want, c.told, told)
			}
		})
	}
}
