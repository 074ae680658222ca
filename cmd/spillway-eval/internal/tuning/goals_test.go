package tuning

import (
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/frontier"
)

// No job costs more than its budget, spent and reserved, and what who knows all finds is never worse.
func TestNoBudgetIsPassed(t *testing.T) {
	t.Parallel()
	goals := Goals{Seed: 2, Noise: 0.1, Confidence: 0.9}
	for number := range 5 {
		out, err := goals.Budget(t.Context(), number)
		switch {
		case err != nil:
			t.Fatal(err)
		case out.Most > 1 || out.Most == 0:
			t.Errorf("job %d: %g of its budget was spent and reserved", number, out.Most)
		case out.Met && out.Oracle.Seconds > 1.01*out.Seconds:
			t.Errorf("job %d took %g s, and %g s who knows all", number, out.Seconds, out.Oracle.Seconds)
		}
		if out, err = goals.Deadline(t.Context(), number); err != nil {
			t.Fatal(err)
		}
		if out.Met && float64(out.Oracle.Cost) > 1.01*float64(out.Cost) {
			t.Errorf("job %d cost %v, and %v who knows all", number, out.Cost, out.Oracle.Cost)
		}
	}
}

func TestAJobThatRunsOutOfMoneyIsStopped(t *testing.T) {
	t.Parallel()
	e, err := (Goals{Seed: 3, Noise: 0.1, Confidence: 0.9}).draw(0)
	if err != nil {
		t.Fatal(err)
	}
	oracle, err := e.oracle()
	if err != nil {
		t.Fatal(err)
	}
	_, least := oracle.Pair(oracle.Len() - 1)
	forEver := frontier.Goal{Seconds: 1e9, Cost: least / 2, Confidence: 0.9}
	out, err := e.perform(t.Context(), forEver)
	if err != nil {
		t.Fatal(err)
	}
	if out.Met || out.Promised || out.Cost > forEver.Cost || out.Most > 1 {
		t.Errorf("with half of what it takes at least, %v: %+v", forEver.Cost, out)
	}
}

// That a cluster is held to the end is one of the plans where hosts can be taken, so nothing is lost by planning.
func TestHoldingAClusterIsOneOfThePlans(t *testing.T) {
	t.Parallel()
	all, stages := allocations(), halving(64)
	for _, m := range models {
		c := Case{Against: map[string]*Saving{}}
		functions, err := frontier.New(job(stages, all, m.epochs(all)))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.compareHeld(m, stages, all, functions, functions); err != nil {
			t.Fatal(err)
		}
		held := c.Against["held cluster"]
		if held.None > 0 || slices.Min(held.Time) < -bucket || slices.Min(held.Cost) < -bucket {
			t.Errorf("%s: %+v", m.name, held)
		}
	}
}
