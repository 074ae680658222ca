package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// has says whether the engine's store has an artifact.
func (e *testEngine) has(digest string) bool {
	e.t.Helper()
	store, err := artifact.Open(filepath.Join(e.state, "artifacts"))
	if err != nil {
		e.t.Fatal(err)
	}
	_, err = activities.ReadAll(e.t.Context(), store, digest)
	if err != nil && !errors.Is(err, activities.ErrMissing) {
		e.t.Fatal(err)
	}
	return err == nil
}

// collect has the engine collect until a collection says what is wanted: runs end, and what was just written becomes
// old.
func (e *testEngine) collect(what string, want func(retention.Collection) bool) (last retention.Collection) {
	e.t.Helper()
	e.until(what, func() bool {
		var err error
		if last, err = e.client.Collect(e.t.Context(), false); err != nil {
			e.t.Fatalf("collect: %v\n%s", err, e.printed())
		}
		return want(last)
	})
	return last
}

// age makes an artifact two hours old: what was just written stays for a while.
func (e *testEngine) age(digest string) {
	e.t.Helper()
	then := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(filepath.Join(e.state, "artifacts", digest[:2], digest[2:]), then, then); err != nil {
		e.t.Fatal(err)
	}
}

// outputOf waits until a stage of a chain has written an output, and returns the digests that its result names.
func (e *testEngine) outputOf(stage string) (digest string) {
	e.t.Helper()
	e.until("an output of "+stage, func() bool {
		entries, err := filepath.Glob(filepath.Join(e.state, "artifacts", "??", "*"))
		if err != nil {
			e.t.Fatal(err)
		}
		for _, entry := range entries {
			text, err := os.ReadFile(entry)
			if err == nil && strings.Contains(string(text), "the output of "+stage) {
				digest = filepath.Base(filepath.Dir(entry)) + filepath.Base(entry)
			}
		}
		return digest != ""
	})
	return digest
}

// TestSpaceIsGivenBack has one run end and another go on. A collection removes what only the ended one reached, and the
// run says so; what the other one reaches is there when its second stage takes it, after a kill of the engine and many
// collections.
func TestSpaceIsGivenBack(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), "", "--keep-for", "1s", "--no-burst")
	stage := func(name string) string {
		return fmt.Sprintf("name: %s\ncode: none\nstages:\n  first: {run: [sh, -c, 'echo the output of %s > made'], "+
			"outputs: {made: made}}\n", name, name)
	}
	goOn := filepath.Join(t.TempDir(), "go")
	second := "  second:\n    files: {made: first.made}\n    run: [sh, -c, 'while [ ! -e " + goOn +
		" ]; do sleep 0.1; done; cat made > copy']\n" +
		"    outputs: {copy: copy}\n"
	for _, text := range []string{stage("ended"), stage("goes-on") + second} {
		if _, err := e.client.RegisterChain(t.Context(), packedChain(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	going, ended := e.publish("goes-on", "1", struct{}{}), e.publish("ended", "1", struct{}{})
	succeed[chain.Result](e, ended, patience)
	kept, gone := e.outputOf("goes-on"), e.outputOf("ended")
	e.age(kept)
	e.age(gone)

	dry, err := e.client.Collect(t.Context(), true)
	if err != nil || !dry.DryRun || !e.has(gone) {
		t.Fatalf("a dry run: %+v, %v; what would go is there: %v", dry, err, e.has(gone))
	}
	e.collect("the ended run gives its space back", func(retention.Collection) bool { return !e.has(gone) })
	view, err := e.client.Run(t.Context(), ended)
	if err != nil || view.State != predictor.RunSucceeded ||
		!strings.Contains(view.Notice, "to give space back: run "+ended+" ended") {
		t.Errorf("the ended run says %q (%s), %v; want that its artifacts were removed, and why", view.Notice, view.State,
			err)
	}
	for _, path := range []string{"", "/history", "/result", "/attempts", "/timeline", "/breakdown"} {
		answer := e.get(t.Context(), "/api/v1/runs/"+ended+path)
		if err := answer.Body.Close(); err != nil {
			t.Error(err)
		}
		if answer.StatusCode >= http.StatusInternalServerError {
			t.Errorf("GET of the ended run's %q: %s", path, answer.Status)
		}
	}
	again, err := e.client.Retry(t.Context(), ended, web.Retry{})
	if err != nil || again.Tasks != 0 {
		t.Errorf("the ended run is tried again with %d of its tasks, %v; want none, as what they made is gone", again.Tasks,
			err)
	}
	succeed[chain.Result](e, again.Run, patience)

	for range 3 {
		e.collect("a collection", func(retention.Collection) bool { return true })
		if !e.has(kept) {
			t.Fatal("what a run that goes on reaches is gone")
		}
	}
	e.kill()
	e = startEngine(t, e.state, "", "--keep-for", "1s", "--no-burst")
	e.collect("a collection", func(retention.Collection) bool { return true })
	if view, err = e.client.Run(t.Context(), ended); err != nil || view.Notice == "" {
		t.Errorf("after a restart, the ended run says %q, %v", view.Notice, err)
	}
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	result := succeed[json.RawMessage](e, going, patience)
	if !e.has(kept) {
		t.Errorf("what the run took is gone before it ended: %s", result)
	}
	e.age(kept) // the second stage may have put it again
	e.collect("the other run gives its space back, too", func(retention.Collection) bool { return !e.has(kept) })
	e.stop()
}
