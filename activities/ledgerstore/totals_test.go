package ledgerstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func totalsOf(t tester, store *ledgerstore.Store, query ledger.Query, now time.Time) ledger.RunTotals {
	t.Helper()
	totals, err := store.Totals(context.Background(), query, now)
	if err != nil {
		t.Fatal(err)
	}
	return totals
}

// states are how many runs there are that go on, succeeded, failed and were cancelled.
func states(running, succeeded, failed, cancelled int) map[predictor.RunState]int {
	return map[predictor.RunState]int{
		predictor.RunRunning: running, predictor.RunSucceeded: succeeded, predictor.RunFailed: failed,
		predictor.RunCancelled: cancelled,
	}
}

// totalled tells of runs in several states, with goals that some of them miss.
func totalled() []predictor.Event {
	return []predictor.Event{
		predictor.RunStarted{Run: "slow", Pipeline: "p", Goal: predictor.Goal{Deadline: 5 * time.Second}, At: after(1)},
		predictor.RunStarted{Run: "quick", Pipeline: "p", Goal: predictor.Goal{Deadline: 5 * time.Second}, At: after(2)},
		predictor.RunStarted{Run: "dear", Pipeline: "q", Goal: predictor.Goal{Budget: 100}, At: after(3)},
		predictor.RunStarted{Run: "goes", Pipeline: "q", At: after(4)},
		line("slow", "s", "t1", predictor.Pool, "h", 1, 2, 1_000_003),
		line("slow", "s", "t2", predictor.Function, "", 1, 2, 40),
		line("slow", "s", "t1", predictor.Pool, "h", 1, 2, 1_000_003), // told again
		predictor.RunEnded{Run: "slow", State: predictor.RunFailed, At: after(9)},
		line("slow", "s", "t3", predictor.Pool, "h", 1, 2, 7), // late
		predictor.RunEnded{Run: "quick", State: predictor.RunSucceeded, At: after(7)},
		line("dear", "s", "t1", predictor.Pool, "h", 3, 4, 101),
		predictor.RunEnded{Run: "dear", State: predictor.RunCancelled, At: after(9)},
		predictor.GoalChanged{Run: "goes", Goal: predictor.Goal{Deadline: 10 * time.Second}, At: after(6)},
		line("goes", "s", "t1", predictor.Pool, "h", 4, 5, 11),
	}
}

func TestRunsAreAddedUp(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	store := open(t, path, nil)
	events := totalled()
	for from := 0; from < len(events); from += 3 {
		take(t, store, linesOf(uint64(from+1), events[from:min(from+3, len(events))]...)...)
	}
	take(t, store, linesOf(uint64(len(events)+1), events...)...)
	shut(t, store)
	store = open(t, path, nil)
	defer func() { shut(t, store) }()
	all := ledger.RunTotals{
		Runs: 4, States: states(1, 1, 1, 1), Cost: 1_000_003 + 40 + 7 + 101 + 11, MissedDeadlines: 1, MissedBudgets: 1,
	}
	for _, c := range []struct {
		query ledger.Query
		now   float64
		want  ledger.RunTotals
	}{
		{ledger.Query{}, 10, all},
		{ledger.Query{Limit: 1, After: ledger.Place{StartedAt: after(2), Run: "quick"}}, 10, all}, // whichever page
		{
			ledger.Query{State: predictor.RunRunning},
			20,
			ledger.RunTotals{Runs: 1, States: states(1, 0, 0, 0), Cost: 11, MissedDeadlines: 1},
		},
		{
			ledger.Query{Pipeline: "p"},
			10,
			ledger.RunTotals{Runs: 2, States: states(0, 1, 1, 0), Cost: 1_000_050, MissedDeadlines: 1},
		},
		{
			ledger.Query{Pipeline: "p", Since: after(2)},
			10,
			ledger.RunTotals{Runs: 1, States: states(0, 1, 0, 0)},
		},
		{ledger.Query{Pipeline: "none"}, 10, ledger.RunTotals{States: states(0, 0, 0, 0)}},
	} {
		if diff := cmp.Diff(c.want, totalsOf(t, store, c.query, after(c.now))); diff != "" {
			t.Errorf("%+v at %v (-want +got):\n%s", c.query, c.now, diff)
		}
	}
	// What is kept as a whole changes nothing, a run that is removed counts no more, and one that starts anew begins at
	// nothing.
	whole, _ := runOf(t, store, "slow")
	if err := errors.Join(store.KeepRuns(t.Context(), []ledger.RunView{whole}),
		store.RemoveRun(t.Context(), "dear")); err != nil {
		t.Fatal(err)
	}
	take(t, store, linesOf(100, line("slow", "s", "t4", predictor.Pool, "h", 1, 2, 9),
		predictor.RunStarted{Run: "slow", Pipeline: "p", At: after(3600)},
		line("slow", "s", "t1", predictor.Pool, "h", 3600, 3601, 5))...)
	want := ledger.RunTotals{Runs: 3, States: states(2, 1, 0, 0), Cost: 5 + 11}
	if diff := cmp.Diff(want, totalsOf(t, store, ledger.Query{}, after(14))); diff != "" {
		t.Errorf("after another start (-want +got):\n%s", diff)
	}
}

func TestTotalsOfMoreThanThereIsRoomForStopAtTheMost(t *testing.T) {
	t.Parallel()
	store := open(t, "", nil)
	defer shut(t, store)
	events := []predictor.Event{predictor.RunStarted{Run: "r", Pipeline: "p", At: after(0)}}
	for i := range 4 {
		events = append(events, line("r", "s", fmt.Sprint("t", i), predictor.Pool, "h", 1, 2, math.MaxInt64))
	}
	take(t, store, linesOf(1, events[:3]...)...)
	take(t, store, linesOf(4, events[3:]...)...)
	most := quantity.Money(math.MaxInt64).Plus(0)
	if got := totalsOf(t, store, ledger.Query{}, after(9)).Cost; got != most {
		t.Errorf("the cost is %d, want %d", got, most)
	}
}

// TestTotalsOfAnEarlierSchemaAreFilled opens a ledger that has no columns for totals.
func TestTotalsOfAnEarlierSchemaAreFilled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	store := open(t, path, nil)
	take(t, store, linesOf(1, totalled()...)...)
	want := totalsOf(t, store, ledger.Query{}, after(20))
	shut(t, store)
	toSchema4(t, path)
	store = open(t, path, nil)
	defer shut(t, store)
	if diff := cmp.Diff(want, totalsOf(t, store, ledger.Query{}, after(20))); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

// TestGoalsOfManyRunsOfAnEarlierSchemaAreFilled opens a ledger of more runs than are looked at at a time.
func TestGoalsOfManyRunsOfAnEarlierSchemaAreFilled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	store := open(t, path, nil)
	var events []predictor.Event
	const runs = 2000
	for i := range runs {
		run := fmt.Sprintf("r%04d", i)
		events = append(events,
			predictor.RunStarted{Run: run, Pipeline: "p", Goal: predictor.Goal{Deadline: time.Second}, At: after(0)},
			predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: after(2)})
	}
	take(t, store, linesOf(1, events...)...)
	shut(t, store)
	toSchema4(t, path)
	store = open(t, path, nil)
	defer shut(t, store)
	if got := totalsOf(t, store, ledger.Query{}, after(20)); got.Runs != runs || got.MissedDeadlines != runs {
		t.Errorf("%d runs, %d of which have missed their deadlines; want %d and all", got.Runs, got.MissedDeadlines, runs)
	}
}

// toSchema4 makes a ledger one of schema 4.
func toSchema4(t *testing.T, path string) {
	t.Helper()
	change(t, path, append(totalsOff(), `UPDATE meta SET value = 4 WHERE name = 'schema'`)...)
}

// totalsOff removes what schema 5 has more than schema 4.
func totalsOff() []string {
	return []string{
		`DROP INDEX runs_totals`, `ALTER TABLE runs DROP COLUMN deadline_ns`, `ALTER TABLE runs DROP COLUMN budget_pd`,
		`ALTER TABLE runs DROP COLUMN cost_pd`,
	}
}

// change runs statements on the file of a ledger that is closed.
func change(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := ledgerstore.OpenRaw(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(statement, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTotalsOfManyRunsAreMeasured adds up 20,000 runs.
func TestTotalsOfManyRunsAreMeasured(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("measures only with SPILLWAY_MEASURE=1")
	}
	store := open(t, filepath.Join(t.TempDir(), "ledger.db"), nil)
	defer shut(t, store)
	var batch []loop.Line
	for i := range 20_000 {
		run := fmt.Sprint("r", i)
		batch = append(batch, linesOf(uint64(3*i+1),
			predictor.RunStarted{Run: run, Pipeline: fmt.Sprint("p", i%7), At: after(float64(i))},
			line(run, "s", "t", predictor.Pool, "h", float64(i), float64(i)+1, 1_000_003),
			predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: after(float64(i) + 2)})...)
		if len(batch) >= 900 {
			take(t, store, batch...)
			batch = batch[:0]
		}
	}
	take(t, store, batch...)
	for _, query := range []ledger.Query{{}, {Pipeline: "p3"}, {State: predictor.RunSucceeded}, {Since: after(19_000)}} {
		begun := time.Now()
		totals := totalsOf(t, store, query, after(30_000))
		took := time.Since(begun)
		t.Logf("%+v: %d runs, %s in %s", query, totals.Runs, totals.Cost, took)
		if took > 300*time.Millisecond {
			t.Errorf("%+v takes %s, want 300 ms at most", query, took)
		}
	}
}
