package ledgerstore_test

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Teams share stages, and each pays what its own attempts cost; by stage those of all teams are one line.
func TestABillSaysWhichTeamSpentWhat(t *testing.T) {
	t.Parallel()
	events := []predictor.Event{run("r"), run("s"), run("u"), held("h", 0, 600, 60*cent)}
	for i, of := range []struct {
		run, team string
		costs     quantity.Money
	}{{"r", "vision", 3 * cent}, {"s", "text-2", 2 * cent}, {"s", "text-2", cent}, {"u", "", 7 * cent}} {
		spent := line(of.run, "score", string(rune('a'+i)), predictor.Function, "fn", 0, 60, of.costs)
		spent.Stage.Team = of.team
		events = append(events, spent)
	}
	a := apply(t, events...)
	for _, c := range []struct {
		query ledger.BillQuery
		want  map[string]quantity.Money
	}{
		{
			ledger.BillQuery{By: ledger.ByTeam},
			map[string]quantity.Money{"vision": 3 * cent, "text-2": 3 * cent, "default": 7 * cent},
		},
		{ledger.BillQuery{By: ledger.ByStage}, map[string]quantity.Money{"app/score": 13 * cent}},
		{ledger.BillQuery{By: ledger.ByStage, Team: "text-2"}, map[string]quantity.Money{"app/score": 3 * cent}},
		{ledger.BillQuery{By: ledger.ByRun, Team: "vision"}, map[string]quantity.Money{"r": 3 * cent}},
		{ledger.BillQuery{By: ledger.ByRun, Team: "default"}, map[string]quantity.Money{"u": 7 * cent}},
		{ledger.BillQuery{By: ledger.ByRun, Team: "ext-2"}, nil},
		{ledger.BillQuery{By: ledger.ByRun, Team: "vision", Since: after(30)}, map[string]quantity.Money{"r": 3 * cent / 2}},
	} {
		got := a.bill(t, c.query, after(600))
		lines := 0
		for _, one := range got.Lines {
			if one.Function == 0 {
				continue // what hosts cost while nobody held them
			}
			if lines++; one.Function != c.want[one.Name] {
				t.Errorf("%+v: %s costs %s, want %s", c.query, one.Name, one.Function, c.want[one.Name])
			}
		}
		if lines != len(c.want) {
			t.Errorf("%+v: %d lines, want %d: %+v", c.query, lines, len(c.want), got.Lines)
		}
	}
}
