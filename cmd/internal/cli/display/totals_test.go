package display_test

import (
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// The rows above have what attempts cost that go on; the sum has not, and says so.
func TestWhatRunsComeToSaysOfWhich(t *testing.T) {
	t.Parallel()
	totals := ledger.NewRunTotals()
	totals.Add(predictor.RunSucceeded, ledger.RunTotals{Runs: 2, Cost: quantity.USD, MissedDeadlines: 1})
	if got, want := display.RunTotals(totals), "2 runs: 2 succeeded; $1.00; 1 missed their deadline"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	totals.Add(predictor.RunRunning, ledger.RunTotals{Runs: 1, Cost: quantity.USD})
	if got, want := display.RunTotals(totals), "3 runs: 1 running, 2 succeeded; $2.00 for attempts that have ended; "+
		"1 missed their deadline"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
