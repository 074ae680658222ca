package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// cutBlocks cuts the files of a stream of an engine that is off so that nothing behind a part of their bytes is left.
func cutBlocks(t *testing.T, state, stream string, part float64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(state, "nats", "jetstream", "*", "streams", stream, "msgs", "*.blk"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files of stream %s: %v, %v", stream, files, err)
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if err == nil {
			err = os.Truncate(file, int64(part*float64(info.Size())))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A start that goes on no further says why: what it had opened before is closed without a panic that hides it.
func TestAnEngineThatCannotReadItsLedgerSaysSo(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	db, err := sql.Open("sqlite", ledgerstore.Path(state))
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), `CREATE TABLE meta (name TEXT PRIMARY KEY, value);
		INSERT INTO meta VALUES ('schema', 1000000)`)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	arguments := append([]string{"dev", "--state", state, "--no-ui"}, ports(false, nil)...)
	e := exec.CommandContext(ctx, os.Args[0], arguments...)
	e.Env = append(os.Environ(), asEngine+"=1")
	said, err := e.CombinedOutput()
	if text := string(said); err == nil || strings.Contains(text, "panic") || !strings.Contains(text, "schema 1000000") {
		t.Errorf("it ended with %v, want an error that says which schema the ledger has:\n%s", err, text)
	}
}

// told waits for an alert that says all of this.
func (e *testEngine) told(kind alerting.Kind, texts ...string) (alert alerting.Alert) {
	e.t.Helper()
	e.until("it is told: "+strings.Join(texts, ", "), func() bool {
		alerts, err := e.client.Alerts(e.t.Context(), 100)
		for _, alert = range alerts {
			lacks := func(text string) bool { return !strings.Contains(alert.Message, text) }
			if alert.Kind == kind && !slices.ContainsFunc(texts, lacks) {
				return true
			}
		}
		return err != nil
	})
	return alert
}

// The file of the loop's stream is cut behind a part of it, with what was told of runs that have ended and that go on.
func TestADamagedFileOfTheLoopLosesNoRunAndNoBill(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]float64{"half": 0.5, "nearly all": 0.02} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			e := startEngine(t, state, buildApp(t, 0), "--no-burst")
			var before []ledger.RunView
			for _, id := range []string{"one", "two", "three"} {
				run := e.publish("fan", id, fanInput{Shards: 5, Milliseconds: 20})
				succeed[fanResult](e, run, patience).check(t, 5)
			}
			going := e.publish("fan", "going", fanInput{Shards: 40, Milliseconds: 300})
			e.scheduled(going)
			bill, err := e.client.Cost(t.Context(), ledger.BillQuery{By: ledger.ByRun})
			if err != nil {
				t.Fatal(err)
			}
			e.stop()
			e = startEngine(t, state, "", "--no-burst")
			for _, id := range []string{"fan-one", "fan-two", "fan-three"} {
				view, err := e.client.Run(t.Context(), id)
				if err != nil || view.Totals.Attempts != 5 {
					t.Fatalf("run %s: %+v, %v", id, view, err)
				}
				before = append(before, view)
			}
			e.stop()
			cutBlocks(t, state, wire.LoopStream, part)

			e = startEngine(t, state, "", "--no-burst")
			alert := e.told(alerting.KindStreamsLost, wire.LoopStream, "has lost")
			for _, was := range before {
				view := e.wait(was.Run, patience)
				if view.State != predictor.RunSucceeded || view.Totals.Cost != was.Totals.Cost || view.Totals.Attempts != 5 ||
					!view.EndedAt.Equal(was.EndedAt) || string(view.Result) != string(was.Result) {
					t.Errorf("run %s was\n%+v, and after the damage is\n%+v", was.Run, was, view)
				}
			}
			listed, err := e.client.Runs(t.Context(), web.RunQuery{})
			if err != nil || len(listed) != 4 {
				t.Errorf("%d runs are listed, want 4: %v", len(listed), err)
			}
			for _, view := range listed {
				if view.Pipeline != "fan" || view.State == predictor.RunSucceeded && view.Totals.Cost == 0 {
					t.Errorf("listed: %+v", view)
				}
			}
			e.until("what goes on is known as what it is", func() bool {
				view, err := e.client.Run(t.Context(), going)
				return err == nil && view.Pipeline == "fan"
			})
			succeed[fanResult](e, going, patience).check(t, 40)
			after, err := e.client.Cost(t.Context(), ledger.BillQuery{By: ledger.ByRun})
			if err != nil || after.Attempts < bill.Attempts {
				t.Errorf("the bill was %s and is %s, %v", bill.Attempts, after.Attempts, err)
			}
			e.stop()

			e = startEngine(t, state, "", "--no-burst") // it is told once, and what was made good stays so
			for _, was := range before {
				if view, err := e.client.Run(t.Context(), was.Run); err != nil || view.Totals.Cost != was.Totals.Cost {
					t.Errorf("run %s was %s, and after another start is %+v, %v", was.Run, was.Totals.Cost, view, err)
				}
			}
			alerts, err := e.client.Alerts(t.Context(), 100)
			lost := slices.DeleteFunc(alerts, func(one alerting.Alert) bool {
				return one.Kind != alerting.KindStreamsLost || !strings.Contains(one.Message, wire.LoopStream)
			})
			if err != nil || len(lost) != 1 || lost[0].ID != alert.ID {
				t.Errorf("told %+v, %v; want it once", lost, err)
			}
			e.stop()
		})
	}
}
