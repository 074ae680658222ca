package account

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// mapUnder plays one Map of 2,000 tasks in four parts under a budget of so many times what it costs, and returns the
// mean number of tasks in flight as tasks end and the messages that were sent; 0 is no budget.
func mapUnder(t *testing.T, times float64) (mean float64, messages int) {
	t.Helper()
	const parts, tasks, window, usual = 4, 500, 16, 1000
	w := newWorld(7, true)
	w.prices["a"] = usual
	// Costs are the usual to twice as much in one of ten.
	w.limit = quantity.Money(float64(parts*tasks*usual) * times)
	w.allowed = w.limit
	w.run = New(w.limit, Carried{})
	for range parts {
		w.open("a", tasks, window)
	}
	for len(w.works) > 0 || len(w.flying) > 0 {
		for _, one := range w.works {
			one.cost, one.waits = usual, false
			if one.id[len(one.id)-1] == '7' {
				one.cost = 2 * usual
			}
		}
		// A message takes as long as a tenth of a task.
		if len(w.flying) > 0 && w.rand.IntN(4) > 0 {
			messages++
			w.deliver()
		} else if len(w.works) > 0 {
			w.act(w.works[w.rand.IntN(len(w.works))])
		}
		w.send()
		if err := w.check(); err != nil {
			t.Fatal(err)
		}
	}
	if w.spent > w.limit && w.limit > 0 {
		t.Fatalf("%d spent of %d", w.spent, w.limit)
	}
	return float64(w.sum) / float64(w.ends), messages
}

// TestABudgetThatIsWideEnoughCostsNoParallelism tells how many tasks of a Map are in flight under budgets, beside none.
func TestABudgetThatIsWideEnoughCostsNoParallelism(t *testing.T) {
	t.Parallel()
	unlimited, _ := mapUnder(t, 0)
	for _, c := range []struct{ times, least float64 }{{1.15, 0.9}, {1.3, 0.95}, {2, 0.97}, {10, 0.97}} {
		mean, messages := mapUnder(t, c.times)
		t.Logf("a budget of %.2f times the cost: %.1f tasks in flight, %.1f without a budget; %d messages", c.times, mean,
			unlimited, messages)
		if mean < c.least*unlimited {
			t.Errorf("a budget of %.2f times the cost: %.1f tasks in flight, want %.2f of the %.1f without one", c.times, mean,
				c.least, unlimited)
		}
		if messages > 200 {
			t.Errorf("a budget of %.2f times the cost: %d messages for 2,000 tasks", c.times, messages)
		}
	}
}
