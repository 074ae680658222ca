package stack_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/ledgerstore/postgrestest"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// copyOf runs ledger copy.
func copyOf(t *testing.T, wantCode int, args ...string) (stdout, stderr string) {
	t.Helper()
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, append([]string{"ledger", "copy"}, args...)...)
	if code != wantCode {
		t.Fatalf("%q: exit %d, want %d: %s%s", args, code, wantCode, stdout, stderr)
	}
	return stdout, stderr
}

func TestALedgerIsCopiedToPostgreSQLAndBack(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	dir, back := t.TempDir(), filepath.Join(t.TempDir(), "back")
	at := time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)
	store, err := ledgerstore.Open(t.Context(), ledgerstore.Path(dir), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = store.Take(t.Context(), []loop.Line{{Sequence: 7, Stored: at, Message: wire.Message{Event: predictor.Record{
		Run: "r", Pipeline: "p", Stage: predictor.StageID{App: "app", Build: "b", Name: "s"}, Task: "t", Attempt: 1,
		Venue: predictor.Function, Host: "fn", Outcome: predictor.Succeeded, At: at, Cost: quantity.USD / 4,
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	url := filepath.Join(dir, "url")
	if err := os.WriteFile(url, []byte(server.Schema("ledger")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, _ := copyOf(t, cli.ExitOK, "--state", dir, "--ledger-url-file", url)
	clitest.Contains(t, "copied", stdout, "copied from "+ledgerstore.Path(dir), "$0.25", "1 attempts", "up to message 7")
	stdout, _ = copyOf(t, cli.ExitOK, "--state", dir, "--ledger-url-file", url)
	clitest.Contains(t, "copied again", stdout, "was there before")
	stdout, _ = copyOf(t, cli.ExitOK, "--state", back, "--ledger-url-file", url, "--back", "--json")
	var copied ledgerstore.Copied
	err = json.Unmarshal([]byte(stdout), &copied)
	if err != nil || copied.Spent != quantity.USD/4 || copied.Sequence != 7 {
		t.Errorf("%+v, %v; want a quarter of a dollar up to 7", copied, err)
	}
}

func TestACopyOfALedgerThatCannotBeMadeIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url := filepath.Join(dir, "url")
	write := func(text string, mode os.FileMode) {
		if err := os.WriteFile(url, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(url, mode); err != nil {
			t.Fatal(err)
		}
	}
	write("postgres://me:sesame@localhost:1/db", 0o644)
	if _, stderr := copyOf(t, cli.ExitUsage, "--state", dir, "--ledger-url-file", url); !strings.Contains(stderr,
		"chmod 600") {
		t.Errorf("a file that all can read: %s", stderr)
	}
	_, stderr := copyOf(t, cli.ExitUsage, "--state", dir)
	if !strings.Contains(stderr, "spillway: ledger copy: which database") {
		t.Errorf("no file: %s", stderr)
	}
	if _, stderr := copyOf(t, cli.ExitUsage, "--state", dir, "--ledger-url-file", url+"2"); !strings.Contains(stderr,
		"no such file") {
		t.Errorf("a file that is not there: %s", stderr)
	}
	write("postgres://me:sesame@localhost:1/db", 0o600)
	if _, stderr := copyOf(t, cli.ExitUsage, "--state", dir, "--ledger-url-file", url); !strings.Contains(stderr,
		"there is no ledger in") {
		t.Errorf("nothing to copy: %s", stderr)
	}
}
