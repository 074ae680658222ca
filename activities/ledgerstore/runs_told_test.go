package ledgerstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

func startOf(run string, at float64) predictor.RunStarted {
	return predictor.RunStarted{Run: run, Pipeline: "p-" + run, App: "app", Build: "b1", At: after(at)}
}

func endOf(run string, at float64) predictor.RunEnded {
	return predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: after(at)}
}

// TestAStreamThatIsTakenInTwiceCostsOnce has runs of one name that follow each other, the last of which may go on.
func TestAStreamThatIsTakenInTwiceCostsOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var events []predictor.Event
		at := 0.0
		runs := rapid.IntRange(1, 4).Draw(t, "runs")
		for i := range runs {
			events = append(events, startOf("r", at), predictor.Reused{
				Run: "r", Stage: predictor.StageID{App: "app", Build: "b1", Name: "prep"}, Tasks: 3, From: "q", At: after(at + 1),
			})
			for task := range rapid.IntRange(0, 3).Draw(t, "tasks") {
				skew := rapid.SampledFrom([]float64{0, 3600, -3600}).Draw(t, "skew") // of a host's clock
				e := line("r", "score", fmt.Sprint("t", task), predictor.Pool, "h", at+10, at+20+float64(task), cent)
				e.At = e.At.Add(time.Duration(skew) * time.Second)
				events = append(events, e)
			}
			at += 100
			if i < runs-1 || rapid.Bool().Draw(t, "the last one ends") {
				events = append(events, endOf("r", at))
			}
			at += 100
		}
		lines := make([]loop.Line, len(events))
		for i, event := range events {
			lines[i] = loop.Line{Sequence: uint64(i + 1), Stored: after(float64(i) * 10), Message: wire.Message{Event: event}}
		}
		store := open(t, "", nil)
		defer shut(t, store)
		take(t, store, lines...)
		once := billOf(t, store, ledger.BillQuery{}, after(at))
		take(t, store, lines[:rapid.IntRange(1, len(lines)).Draw(t, "part")]...)
		take(t, store, lines...)
		if diff := cmp.Diff(once, billOf(t, store, ledger.BillQuery{}, after(at))); diff != "" {
			t.Fatalf("(-once +twice):\n%s", diff)
		}
	})
}

func TestAnotherAppTellsNothingOfARun(t *testing.T) {
	t.Parallel()
	first := line("r", "score", "t0", predictor.Pool, "h", 0, 10, cent)
	other := predictor.RunStarted{Run: "r", Pipeline: "stolen", App: "other", Build: "b9", At: after(4e9)}
	a := apply(t, startOf("r", 0), first, endOf("r", 20))
	lines := []loop.Line{
		{Sequence: 4, Stored: after(30), Message: wire.Message{Event: other}},
		{Sequence: 5, Stored: after(31), Message: wire.Message{Event: first}},
		{
			Sequence: 6, Stored: after(32),
			Message: wire.Message{Event: line("r", "score", "t1", predictor.Pool, "h", 0, 10, cent)},
		},
	}
	take(t, a.store, lines...)
	got := a.bill(t, ledger.BillQuery{By: ledger.ByPipeline}, after(200))
	if got.Attempts != 2*cent || len(got.Lines) != 1 || got.Lines[0].Name != "p-r" {
		t.Errorf("the bill is %+v, want two attempts of the pipeline that it was", got)
	}
}

// TestARunIsNotSettledBecauseSomebodyTellsOfItsEnd says that it ended in 1970, while it goes on.
func TestARunIsNotSettledBecauseSomebodyTellsOfItsEnd(t *testing.T) {
	t.Parallel()
	store := open(t, "", &ledgerstore.Options{Attempts: 1})
	defer shut(t, store)
	const day = 86400
	var lines []loop.Line
	for i := range 12 {
		at := float64(i) * day
		lines = append(lines, linesOf(uint64(3*i+1), held("h", at, at+60, 60*cent),
			line("r", "score", fmt.Sprint("t", i), predictor.Function, "fn", at, at+10, cent))...)
		end := predictor.RunEnded{Run: "r", State: predictor.RunFailed, At: time.Unix(0, 0)}
		lines = append(lines, loop.Line{Sequence: uint64(3*i + 3), Stored: after(at + 60), Message: wire.Message{Event: end}})
	}
	for i := range lines {
		take(t, store, lines[i])
	}
	if got := billOf(t, store, ledger.BillQuery{}, after(12*day)); got.Attempts != 12*cent {
		t.Errorf("the attempts cost %s, want %s", got.Attempts, 12*cent)
	}
}

// count asks a ledger's file that is closed.
func count(t *testing.T, path, query string) (found int) {
	t.Helper()
	db, err := ledgerstore.OpenRaw(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.QueryRowContext(t.Context(), query).Scan(&found), db.Close()); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestWhatARunReusedIsSummedUpWithItsAttemptsAndTheRunForgottenAfterAYear(t *testing.T) {
	t.Parallel()
	const day = 86400
	path := filepath.Join(t.TempDir(), "ledger.db")
	store := open(t, path, &ledgerstore.Options{Attempts: 1})
	var events []predictor.Event
	for i := range 3 {
		id := fmt.Sprint("r", i)
		events = append(events, startOf(id, 0), line(id, "score", "t0", predictor.Function, "fn", 1, 2, cent))
		for second := range 10 {
			events = append(events, predictor.Reused{
				Run: id, Stage: predictor.StageID{App: "app", Build: "b1", Name: "prep"}, Tasks: 2, From: "q",
				At: after(float64(second)),
			})
		}
		events = append(events, endOf(id, 20))
	}
	events = append(events, startOf("told of, and nothing more", 30))
	take(t, store, linesOf(1, events...)...)
	before := billOf(t, store, ledger.BillQuery{}, after(9*day))
	take(t, store, linesOf(uint64(len(events)+1), held("h", 9*day, 9*day+60, 0))...)
	if diff := cmp.Diff(before, billOf(t, store, ledger.BillQuery{}, after(9*day))); diff != "" {
		t.Errorf("(-one by one +summed up):\n%s", diff)
	}
	if kept := store.Attempts(); kept != 0 {
		t.Errorf("%d are kept one by one, want none", kept)
	}
	if err := store.Forget(t.Context(), after(400*day), 0); err != nil {
		t.Fatal(err)
	}
	if got := billOf(t, store, ledger.BillQuery{}, after(9*day)); got.Attempts != 3*cent {
		t.Errorf("a year later the attempts cost %s, want %s", got.Attempts, 3*cent)
	}
	shut(t, store)
	if rows, runs := count(t, path, "SELECT COUNT(*) FROM spent"),
		count(t, path, "SELECT COUNT(*) FROM runs"); rows != 0 || runs != 1 {
		t.Errorf("%d rows and %d runs are kept, want none, and the run that goes on", rows, runs)
	}
}

// TestALedgerOfSchema1GoesOn opens one in which a clock of 2030 has closed all minutes.
func TestALedgerOfSchema1GoesOn(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	path := filepath.Join(t.TempDir(), "ledger.db")
	script, err := os.ReadFile(filepath.Join("testdata", "schema1.sql"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), string(script))
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	store := open(t, path, nil)
	defer shut(t, store)
	take(t, store, linesOf(12, line("r", "score", "t3", predictor.Function, "fn", 100, 110, cent),
		held("h", 7200, 7260, 60*cent), endOf("r", 7300), held("h", 7260, 7320, 60*cent))...)
	got := billOf(t, store, ledger.BillQuery{}, after(8000))
	if got.Function != 6*cent || got.Unused != 2*cent || got.Lines[1].Reused+got.Lines[2].Reused != 3 {
		t.Errorf("the bill is %+v", got)
	}
	if _, err := os.Stat(path + ".schema-1"); err != nil {
		t.Errorf("the file of before: %v", err)
	}
}

// TestARemovedRunHoldsUpNoOther removes a run whose minutes are open while there are too many attempts of earlier ones.
func TestARemovedRunHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	const day = 86400
	store := open(t, "", &ledgerstore.Options{Attempts: 1})
	defer shut(t, store)
	at := func(id string, from float64) []predictor.Event {
		return []predictor.Event{
			startOf(id, from), line(id, "score", "t0", predictor.Function, "fn", from, from+1, cent), endOf(id, from+2),
		}
	}
	take(t, store, linesOf(1, slices.Concat(at("a", 0), at("b", 10), at("c", 8*day))...)...)
	if err := store.RemoveRun(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	take(t, store, linesOf(10, held("h", 9*day, 9*day+60, 0))...)
	if kept := store.Attempts(); kept != 1 {
		t.Errorf("%d attempts are kept one by one, want that of the run that was removed", kept)
	}
}
