package ledgerstore_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// TestTheLedgerOfManyAttemptsIsMeasured takes in 250,000 attempts of 5,000 runs, which is how many are kept one by one.
func TestTheLedgerOfManyAttemptsIsMeasured(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("measures only with SPILLWAY_MEASURE=1")
	}
	const runs, tasks = 5000, 50
	path := filepath.Join(t.TempDir(), "ledger.db")
	store := open(t, path, nil)
	var sequence uint64
	var batch []loop.Line
	begun := time.Now()
	tell := func(event predictor.Event) {
		sequence++
		batch = append(batch, linesOf(sequence, event)...)
		if len(batch) == 1000 {
			take(t, store, batch...)
			batch = batch[:0]
		}
	}
	for i := range runs {
		id, start := fmt.Sprint("r", i), float64(i)*20
		tell(predictor.RunStarted{Run: id, Pipeline: "p", App: "app", Build: "b1", At: after(start)})
		tell(held("h", start, start+20, 60*cent))
		for task := range tasks {
			stage, name := fmt.Sprint("s", task%5), fmt.Sprint("t", task)
			tell(line(id, stage, name, predictor.Pool, "h", start, start+float64(task%20), 1_234_567))
		}
		tell(predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(start + 20)})
	}
	take(t, store, batch...)
	took := time.Since(begun)
	shut(t, store)
	size := ledgerstore.SizeOf(t, path)
	begun = time.Now()
	store = open(t, path, nil)
	t.Logf("%d messages taken in within %s (%.0f a second); %d MiB, %d bytes for an attempt; opened within %s",
		sequence, took, float64(sequence)/took.Seconds(), size>>20, size/(runs*tasks), time.Since(begun))
	now := after(runs * 20)
	for name, query := range map[string]ledger.BillQuery{
		"by stage": {}, "by run": {By: ledger.ByRun}, "of an hour by run": {By: ledger.ByRun, Since: now.Add(-time.Hour)},
		"of a run": {Run: "r77"},
	} {
		begun := time.Now()
		bill := billOf(t, store, query, now)
		t.Logf("a bill %s takes %s: %s in %d lines", name, time.Since(begun), bill.Total, len(bill.Lines))
	}
	shut(t, store)
}

// TestABillOfAYearIsMeasured asks what a year of 20 runs a day has cost, by stage, by pipeline and by run.
func TestABillOfAYearIsMeasured(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("measures only with SPILLWAY_MEASURE=1")
	}
	const days, runs, tasks, apart = 365, 20, 5, 4320.0
	store := open(t, filepath.Join(t.TempDir(), "ledger.db"), nil)
	defer shut(t, store)
	var sequence uint64
	begun := time.Now()
	for day := range days {
		var batch []loop.Line
		tell := func(event predictor.Event) {
			sequence++
			batch = append(batch, linesOf(sequence, event)...)
		}
		for i := range runs {
			id, start := fmt.Sprint("r", day, "-", i), float64(day*runs+i)*apart
			tell(predictor.RunStarted{Run: id, Pipeline: fmt.Sprint("p", i), App: "app", Build: "b1", At: after(start)})
			tell(held("h", start, start+apart, 60*cent))
			for task := range tasks {
				stage, name := fmt.Sprint("s", task%5), fmt.Sprint("t", task)
				tell(line(id, stage, name, predictor.Pool, "h", start, start+600, 1_234_567))
			}
			tell(predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(start + 700)})
		}
		take(t, store, batch...)
	}
	took := time.Since(begun)
	t.Logf("%d messages of a year in a batch a day taken in within %s (%.0f a second)", sequence, took,
		float64(sequence)/took.Seconds())
	now := after(days * runs * apart)
	for name, query := range map[string]ledger.BillQuery{
		"by stage": {}, "by pipeline": {By: ledger.ByPipeline}, "by run": {By: ledger.ByRun},
		"by pipeline, from noon to noon": {
			By: ledger.ByPipeline, Since: now.Add(-300*24*time.Hour - 12*time.Hour), Until: now.Add(-12 * time.Hour),
		},
	} {
		for _, again := range []string{"", " again"} {
			begun := time.Now()
			bill := billOf(t, store, query, now)
			took := time.Since(begun)
			t.Logf("a bill of the year %s%s takes %s: %s in %d lines", name, again, took, bill.Total, len(bill.Lines))
		}
	}
}
