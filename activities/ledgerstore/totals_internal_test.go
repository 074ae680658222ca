package ledgerstore

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// TestTotalsReadNoRuns asks how the database adds up runs: from one index, whatever the filter.
func TestTotalsReadNoRuns(t *testing.T) {
	t.Parallel()
	OfFiles(t)
	store, err := Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close() //nolint:errcheck // it was only read
	now := time.Unix(1e9, 0)
	for _, query := range []ledger.Query{
		{},
		{State: predictor.RunRunning},
		{Pipeline: "p"},
		{Since: now},
		{State: predictor.RunFailed, Pipeline: "p", Since: now},
	} {
		statement, values := totalsStatement(query, now)
		rows, err := store.db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+statement, values...)
		if err != nil {
			t.Fatal(err)
		}
		var plan []string
		for rows.Next() {
			var id, parent, unused int
			var step string
			if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, step)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		if len(plan) != 1 || !strings.Contains(plan[0], "COVERING INDEX runs_totals") {
			t.Errorf("%+v is answered so: %q", query, plan)
		}
	}
}
