package ledgerstore_test

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// TestNamesThatNoDatabaseTakesKeepNoLedgerFromGoingOn has names of a thousand characters that cannot be made shorter,
// and of characters that PostgreSQL has in no text.
func TestNamesThatNoDatabaseTakesKeepNoLedgerFromGoingOn(t *testing.T) {
	t.Parallel()
	var odd strings.Builder
	for i := range 400 {
		odd.WriteRune(rune(0x4E00 + i*37%20000))
	}
	long := odd.String() // 1,200 bytes
	var events []predictor.Event
	for _, run := range []string{long[:999], "zero\x00", "\xff"} {
		for _, name := range []string{long, long + "2", "a\x00b", "\xfe"} {
			e := line(run, name, "t"+name, predictor.Pool, name, 0, 10, cent)
			e.Pipeline, e.Stage.App = name, name
			events = append(events, predictor.RunStarted{Run: run, Pipeline: name, App: "app", At: after(0)},
				held(name, 0, 60, 0), e)
		}
		events = append(events, predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: after(20)})
	}
	store := open(t, "", nil)
	defer shut(t, store)
	take(t, store, linesOf(1, events...)...)
	for by, lines := range map[ledger.Dimension]int{ledger.ByRun: 3, ledger.ByStage: 4, ledger.ByHost: 4} {
		bill := billOf(t, store, ledger.BillQuery{By: by}, after(60))
		if bill.Attempts != 12*cent || len(bill.Lines) != lines {
			t.Errorf("by %s: %s in %d lines, want %s in %d", by, bill.Attempts, len(bill.Lines), 12*cent, lines)
		}
	}
	for _, run := range []string{"zero\x00", "\xff"} { // who asks says what was told
		if bill := billOf(t, store, ledger.BillQuery{Run: run}, after(60)); bill.Attempts != 4*cent {
			t.Errorf("of run %q: %s, want %s", run, bill.Attempts, 4*cent)
		}
		if _, known, err := store.Run(t.Context(), run); err != nil || !known {
			t.Errorf("run %q is known: %v, %v", run, known, err)
		}
	}
	if _, err := store.Runs(t.Context(), ledger.Query{Pipeline: long, State: "a\x00b"}); err != nil {
		t.Error(err)
	}
}
