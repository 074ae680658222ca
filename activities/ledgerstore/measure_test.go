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
