package engine_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/ledgerstore/postgrestest"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// TestRunsGoOnWhileTheLedgersDatabaseIsAway ends the database in the middle of a run, of which every attempt is billed
// once when it is back; and looks for the password of its URL in all that the engine has written.
func TestRunsGoOnWhileTheLedgersDatabaseIsAway(t *testing.T) {
	t.Parallel()
	const password = "sesame-opens-no-door"
	server := postgrestest.Start(t)
	state, file := t.TempDir(), filepath.Join(t.TempDir(), "url")
	url := strings.Replace(server.Schema("ledger"), "spillway@", "spillway:"+password+"@", 1)
	if err := os.WriteFile(file, []byte(url), 0o600); err != nil {
		t.Fatal(err)
	}
	e := startEngine(t, state, buildApp(t, 0), "--no-burst", "--ledger-url-file", file)
	going := e.publish("fan", "going", fanInput{Shards: 20, Milliseconds: 50})
	e.scheduled(going)
	server.Stop()
	succeed[fanResult](e, going, patience).check(t, 20)
	whole := e.publish("fan", "whole", fanInput{Shards: 5, Milliseconds: 20})
	succeed[fanResult](e, whole, patience).check(t, 5)
	e.until("the engine says that its ledger is not kept", func() bool {
		stack, err := e.client.Stack(t.Context())
		return err == nil && strings.Contains(stack.Ledger, "PostgreSQL") && stack.LedgerFailing != ""
	})
	if _, err := e.client.Cost(t.Context(), ledger.BillQuery{}); err == nil ||
		!strings.Contains(err.Error(), "not kept now") {
		t.Errorf("a bill without its database: %v", err)
	}
	server.Restart()
	e.until("every attempt is billed once", func() bool {
		bill, err := e.client.Cost(t.Context(), ledger.BillQuery{By: ledger.ByRun})
		if err != nil {
			return false
		}
		attempts := map[string]int{}
		for _, line := range bill.Lines {
			attempts[line.Name] = line.Count
		}
		return attempts[going] == 20 && attempts[whole] == 5 && len(bill.Incomplete) == 0
	})
	e.stop()
	if _, err := os.Stat(ledgerstore.Path(state)); err == nil {
		t.Error("there is a ledger in the state directory as well")
	}
	if err := filepath.WalkDir(state, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(password)) {
			t.Errorf("%s has the password", path)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
