package ledger_test

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

func TestARunThatWasKeptBeforeItsStreamWasDamagedIsListedAsItWas(t *testing.T) {
	t.Parallel()
	ended := func(attempts int) ledger.RunView {
		view := ledger.RunView{Run: "r", State: predictor.RunSucceeded, StartedAt: epoch, EndedAt: epoch.Add(60)}
		view.Totals.Attempts = attempts
		return view
	}
	other := ended(9)
	other.EndedAt = epoch.Add(120) // another run of that name
	going := ended(9)
	going.State = predictor.RunRunning
	for name, test := range map[string]struct {
		live, kept ledger.RunView
		want       int
	}{
		"more is kept":          {ended(2), ended(5), 5},
		"a Record has come":     {ended(6), ended(5), 6},
		"as much is kept":       {ended(5), ended(5), 5},
		"another run is kept":   {ended(2), other, 2},
		"what goes on was kept": {ended(2), going, 2},
	} {
		page := ledger.Join(ledger.Query{}, ledger.Part{Runs: []ledger.RunView{test.live}},
			ledger.Part{Runs: []ledger.RunView{test.kept}})
		if len(page.Runs) != 1 || page.Runs[0].Totals.Attempts != test.want {
			t.Errorf("%s: %+v, want one run of %d attempts", name, page.Runs, test.want)
		}
	}
}
