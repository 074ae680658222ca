package ledgerstore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// runNames are those of a list of runs.
func runNames(views []ledger.RunView) (names []string) {
	for _, view := range views {
		names = append(names, view.Run)
	}
	return names
}

func runOf(t tester, store *ledgerstore.Store, run string) (view ledger.RunView, known bool) {
	t.Helper()
	view, known, err := store.Run(context.Background(), run)
	if err != nil {
		t.Fatal(err)
	}
	return view, known
}

func TestRunsAreListedAndKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	store := open(t, path, nil)
	goal := predictor.Goal{Deadline: 5}
	events := []predictor.Event{
		predictor.RunStarted{Run: "a", Pipeline: "p", App: "app", Build: "b", Goal: goal, At: after(1)},
		predictor.RunStarted{Run: "b", Pipeline: "q", At: after(2)},
		predictor.RunEnded{Run: "a", State: predictor.RunFailed, Error: "boom", At: after(3)},
		predictor.GoalChanged{Run: "b", Goal: goal, At: after(4)},
		line("late", "s", "t", predictor.Pool, "h", 4, 5, 7), // whose start is told after
		predictor.RunStarted{Run: "late", Pipeline: "p", At: after(4)},
		predictor.RunEnded{Run: "lost", State: predictor.RunSucceeded, At: after(6)},
	}
	take(t, store, linesOf(1, events...)...)
	whole, known := runOf(t, store, "a")
	if !known || whole.State != predictor.RunFailed || whole.Error != "boom" || whole.Goal != goal ||
		whole.Actual.Seconds != 2 {
		t.Errorf("a: %+v", whole)
	}
	whole.Totals.Attempts, whole.Stages = 3, []ledger.StageView{{Name: "s"}}
	if err := store.KeepRuns(t.Context(), []ledger.RunView{whole, {Run: "b", EndedAt: after(9)}}); err != nil {
		t.Fatal(err)
	}
	take(t, store, linesOf(8, events[0], events[2])...) // told again
	shut(t, store)
	store = open(t, path, nil)
	defer shut(t, store)
	if view, _ := runOf(t, store, "a"); !cmp.Equal(view, whole) {
		t.Error(cmp.Diff(whole, view))
	}
	if view, _ := runOf(t, store, "b"); view.State != predictor.RunRunning || view.Goal != goal ||
		!view.StartedAt.Equal(after(2)) {
		t.Errorf("b goes on and has another goal: %+v", view)
	}
	if _, known := runOf(t, store, "nobody"); known {
		t.Error("nobody is known")
	}
	for _, c := range []struct {
		query ledger.Query
		want  []string
	}{
		{ledger.Query{}, []string{"lost", "late", "b", "a"}},
		{ledger.Query{Limit: 2}, []string{"lost", "late"}},
		{ledger.Query{Limit: 2, After: ledger.Place{StartedAt: after(4), Run: "late"}}, []string{"b", "a"}},
		{ledger.Query{State: predictor.RunRunning}, []string{"late", "b"}},
		{ledger.Query{Pipeline: "p", Since: after(4)}, []string{"late"}},
		{ledger.Query{Pipeline: "none"}, nil},
	} {
		part, err := store.Runs(t.Context(), c.query)
		if got := runNames(part.Runs); err != nil || !cmp.Equal(got, c.want) || part.End.IsZero() != (c.query.Limit == 0) {
			t.Errorf("%+v: %v up to %v, %v; want %v", c.query, got, part.End, err, c.want)
		}
	}
}

// TestEachRunThatGoesOnOrHasEndedOfLateIsListed lists runs as those need it who delete what none of them needs.
func TestEachRunThatGoesOnOrHasEndedOfLateIsListed(t *testing.T) {
	t.Parallel()
	store := open(t, "", nil)
	defer shut(t, store)
	take(t, store, linesOf(1,
		predictor.RunStarted{Run: "goes on", At: after(0)},
		predictor.RunStarted{Run: "early", At: after(1)}, predictor.RunEnded{Run: "early", At: after(2)},
		predictor.RunStarted{Run: "late", At: after(1)}, predictor.RunEnded{Run: "late", At: after(9)},
		predictor.RunStarted{Run: "removed", At: after(1)}, predictor.RunEnded{Run: "removed", At: after(9)},
	)...)
	if err := store.RemoveRun(t.Context(), "removed"); err != nil {
		t.Fatal(err)
	}
	got := map[string]time.Time{}
	err := store.EachRun(t.Context(), after(5), func(run string, began, ended, told time.Time) error {
		if began.IsZero() || told.IsZero() {
			t.Errorf("%s began %v and was told %v", run, began, told)
		}
		got[run] = ended
		return nil
	})
	if diff := cmp.Diff(map[string]time.Time{"goes on": {}, "late": after(9)}, got); diff != "" || err != nil {
		t.Errorf("runs with their ends (-want +got):\n%s%v", diff, err)
	}
}

// TestARunIsRemovedAndItsSumsStay removes a run before and after its minutes are closed.
func TestARunIsRemovedAndItsSumsStay(t *testing.T) {
	t.Parallel()
	store := open(t, "", nil)
	defer shut(t, store)
	const week = 7 * 24 * 3600
	take(t, store, linesOf(1,
		predictor.RunStarted{Run: "r", Pipeline: "p", At: after(0)},
		predictor.RunStarted{Run: "goes", Pipeline: "p", At: after(0)},
		held("h", 0, 60, 60*cent), line("r", "s", "t1", predictor.Pool, "h", 0, 10, 1_000_003),
		line("goes", "s", "t1", predictor.Pool, "h", 0, 20, 2_000_003),
		predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: after(11)},
	)...)
	before := billOf(t, store, ledger.BillQuery{By: ledger.ByRun}, after(100))
	for _, run := range []string{"r", "goes", "nobody"} {
		if err := store.RemoveRun(t.Context(), run); err != nil {
			t.Fatal(err)
		}
	}
	_, known := runOf(t, store, "r")
	if _, goes := runOf(t, store, "goes"); known || !goes || store.Attempts() != 2 {
		t.Errorf("r is known: %t, the run that goes on is: %t, %d attempts", known, goes, store.Attempts())
	}
	take(t, store, linesOf(7, held("h", 2*week, 2*week+1, 60*cent))...) // closes the minutes
	if store.Attempts() != 1 {
		t.Errorf("%d attempts are kept one by one, want that of the run that goes on", store.Attempts())
	}
	bill := billOf(t, store, ledger.BillQuery{By: ledger.ByRun, Until: after(100)}, after(100))
	bill.Until = before.Until
	if diff := cmp.Diff(before, bill); diff != "" {
		t.Error(diff)
	}
	if part, err := store.Runs(t.Context(), ledger.Query{}); err != nil ||
		!cmp.Equal(runNames(part.Runs), []string{"goes"}) {
		t.Errorf("listed: %v, %v", runNames(part.Runs), err)
	}
}

// TestRunsOfAnEarlierEngineAreShown follows a stream of which a ledger of schema 2 has taken in the most.
func TestRunsOfAnEarlierEngineAreShown(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.Connect()
	if err := loop.EnsureStreams(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	store := open(t, path, nil)
	events := []predictor.Event{
		predictor.RunStarted{Run: "over", Pipeline: "p", At: after(0)},
		line("over", "s", "t1", predictor.Pool, "h", 0, 10, 1_000_003),
		predictor.RunStarted{Run: "over", Pipeline: "p", At: after(0)},
		predictor.RunEnded{Run: "over", State: predictor.RunSucceeded, At: after(11)},
		predictor.RunStarted{Run: "goes", Pipeline: "q", At: after(12)},
	}
	stop := follow(t, store, js)
	if err := store.Reach(t.Context(), publish(t, js, events...)); err != nil {
		t.Fatal(err)
	}
	stop()
	shut(t, store)
	toSchema2(t, path)
	publish(t, js, predictor.RunStarted{Run: "new", Pipeline: "p", At: after(13)})
	store = open(t, path, nil)
	defer shut(t, store)
	if _, err := os.Stat(path + ".schema-2"); err != nil && os.Getenv(ledgerstore.InPostgres) == "" {
		t.Error(err)
	}
	defer follow(t, store, js)()
	if err := store.Reach(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	part, err := store.Runs(t.Context(), ledger.Query{})
	var got []string
	for _, view := range part.Runs {
		got = append(got, fmt.Sprint(view.Run, " ", view.Pipeline, " ", view.State, " ", view.StartedAt.Sub(epoch)))
	}
	want := []string{"new p running 13s", "goes q running 12s", "over p succeeded 0s"}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if bill := billOf(t, store, ledger.BillQuery{By: ledger.ByRun}, after(20)); bill.Attempts != 1_000_003 {
		t.Errorf("the bill is %+v", bill)
	}
}

// toSchema2 makes a ledger one of schema 2.
func toSchema2(t *testing.T, path string) {
	t.Helper()
	change(t, path, append(totalsOff(),
		`DROP TABLE sums`, `DROP INDEX spent_from`, `DROP INDEX spent_across`,
		`DROP INDEX runs_started`, `DROP INDEX runs_pipeline`, `DROP INDEX runs_state`, `DROP INDEX runs_open`,
		`ALTER TABLE runs DROP COLUMN first_sequence`, `ALTER TABLE runs DROP COLUMN last_sequence`,
		`ALTER TABLE runs DROP COLUMN started_ns`,
		`ALTER TABLE runs DROP COLUMN state`, `ALTER TABLE runs DROP COLUMN whole`, `ALTER TABLE runs DROP COLUMN shown`,
		`DELETE FROM meta WHERE name = 'shown'`, `UPDATE meta SET value = 2 WHERE name = 'schema'`)...)
}

// TestALedgerThatWasNotClosedIsLookedThrough opens a ledger that is damaged and that another has not closed, as after a
// kill.
func TestALedgerThatWasNotClosedIsLookedThrough(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	path := filepath.Join(t.TempDir(), "ledger.db")
	first := open(t, path, nil)
	defer func() { _ = first.Close() }() // what is damaged may not close as it should
	take(t, first, linesOf(1, spending()...)...)
	damage(t, path)
	second := open(t, path, nil)
	defer shut(t, second)
	if aside, err := filepath.Glob(path + ".damaged-*"); err != nil || len(aside) == 0 {
		t.Errorf("put aside are %v (%v), want the damaged file", aside, err)
	}
}

func TestAttemptsAreCountedAcrossStarts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	store := open(t, path, nil)
	take(t, store, linesOf(1, spending()...)...)
	attempts := store.Attempts()
	shut(t, store)
	store = open(t, path, nil)
	defer shut(t, store)
	if got := store.Attempts(); got != attempts || got == 0 {
		t.Errorf("%d attempts after a start, want %d", got, attempts)
	}
}
