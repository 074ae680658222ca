package ledger_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestRunsThatGoOnAreAllKept(t *testing.T) {
	t.Parallel()
	const runs, ends = 12_000, 1500
	l := ledger.New()
	id := func(i int) string { return fmt.Sprint("run-", i) }
	for i := range runs {
		l.Apply(predictor.RunStarted{
			Run: id(i), Pipeline: "digits", App: "app", Build: "b1", Goal: predictor.Goal{Budget: quantity.USD},
			At: after(float64(i)),
		})
	}
	for i := range runs {
		l.Apply(predictor.Scheduled{Run: id(i), Stage: score, Tasks: 1, At: after(runs + float64(i))})
		e := record(0, 1, predictor.Pool, predictor.Succeeded)
		e.Run = id(i)
		l.Apply(e)
	}
	for i := range ends {
		l.Apply(predictor.RunEnded{Run: id(i), State: predictor.RunSucceeded, At: after(2*runs + float64(i))})
	}
	if got := len(l.Going()); got != runs-ends {
		t.Errorf("%d runs go on, want %d", got, runs-ends)
	}
	for i := ends - 1000; i < runs; i++ {
		got, known := l.Run(id(i))
		if !known || got.Pipeline != "digits" || got.Goal.Budget != quantity.USD ||
			!got.StartedAt.Equal(after(float64(i))) || got.Totals.Attempts != 1 {
			t.Fatalf("run %d is known: %v, as %+v", i, known, got)
		}
	}
	if _, known := l.Run(id(ends - 1001)); known {
		t.Error("more than 1000 runs are kept that have ended")
	}
	silent := l.Silent(after(runs + ends + 100))
	if len(silent) != 100 || silent[0].Run != id(ends) || silent[0].Pipeline != "digits" ||
		silent[0].Actual.Seconds != runs {
		t.Errorf("%d runs are silent, the first %+v; want 100 from %s on", len(silent), silent[:min(1, len(silent))],
			id(ends))
	}
	if _, _, going := l.Goal(id(0)); going {
		t.Error("a run that has ended has a goal")
	}
	if pipeline, goal, going := l.Goal(id(runs - 1)); !going || pipeline != "digits" || goal.Budget != quantity.USD {
		t.Errorf("the goal of a run of %q is %+v, going %v", pipeline, goal, going)
	}
}

// TestStaticSizesOfALargeRunAreNotComparedAtEachLook looks at a run of 20,000 attempts after each of them: what it says
// may be of an earlier look while the run goes on, and is exact at its end.
func TestStaticSizesOfALargeRunAreNotComparedAtEachLook(t *testing.T) {
	t.Parallel()
	const attempts = 20_000
	l := apply(run("r"), held("h", 0, 60, 100*cent))
	var seen []quantity.Money
	for i := range attempts {
		l.Apply(line("r", "score", fmt.Sprint("t", i), predictor.Pool, "h", 0, 1, 1))
		got := view(t, l, "r")
		if n := quantity.Money(i + 1); got.Static.Actual > n || i < 1000 && got.Static.Actual != n ||
			got.Static.Actual < n*97/100 {
			t.Fatalf("after %d attempts of a picodollar each they have cost %d", n, got.Static.Actual)
		}
		seen = append(seen, got.Static.Actual)
	}
	if looks := len(slices.Compact(seen)); looks > 1500 {
		t.Errorf("static sizes were compared %d times, want about 1,150", looks)
	}
	l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: after(2)})
	if got := view(t, l, "r"); got.Static.Actual != attempts {
		t.Errorf("at its end it is %d, want %d", got.Static.Actual, attempts)
	}
}
