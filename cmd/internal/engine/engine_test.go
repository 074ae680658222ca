package engine_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/chaos"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

type fanInput struct {
	Shards       int `json:"shards"`
	Milliseconds int `json:"milliseconds,omitempty"`
	Hashes       int `json:"hashes,omitempty"`
}

type fanResult struct {
	Shards int   `json:"shards"`
	Sum    int64 `json:"sum"`
	Wrong  int   `json:"wrong"`
}

// check fails the test unless every shard is in the result exactly once, at its place.
func (r fanResult) check(tb testing.TB, shards int) {
	tb.Helper()
	if want := (fanResult{Shards: shards, Sum: int64(shards) * int64(shards-1) / 2}); r != want {
		tb.Errorf("fan over %d shards: got %+v, want %+v", shards, r, want)
	}
}

func TestARunGoesFromEventToSummaryAndLeavesNothing(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	e := startEngine(t, state, buildApp(t, 0))
	succeed[fanResult](e, e.publish("fan", "a", fanInput{Shards: 60, Milliseconds: 5}), patience).check(t, 60)

	view := e.wait("fan-a", patience)
	if got := view.Totals.Tasks[predictor.Pool] + view.Totals.Tasks[predictor.Function]; got != 60 {
		t.Errorf("tasks done: got %d, want 60", got)
	}
	if view.Totals.Cost <= 0 || view.Totals.CPUSeconds <= 0 || view.Stages[0].PeakMemory <= 0 {
		t.Errorf("cost, CPU seconds and peak memory must be measured: %+v", view.Totals)
	}
	if again := e.publish("fan", "a", fanInput{Shards: 60, Milliseconds: 5}); again != "fan-a" {
		t.Errorf("the same event again: got run %s, want fan-a", again)
	}
	runs, err := e.client.Runs(t.Context(), web.RunQuery{})
	if err != nil || len(runs) != 1 {
		t.Errorf("runs: got %d (%v), want 1", len(runs), err)
	}
	e.stop()
	if err := gone(state); err != nil {
		t.Error(err)
	}
}

func TestFailuresAreToldByStageAndTheEngineLivesOn(t *testing.T) {
	t.Parallel()
	e := sharedEngine(t)
	failed := e.wait(e.publish("fail", "f", map[string]int{"index": 1}), patience)
	if failed.State != predictor.RunFailed || !strings.Contains(failed.Error, "stage fail") ||
		!strings.Contains(failed.Error, "it never works") ||
		failed.Stages[0].Failed != 2 {
		t.Errorf("a stage that fails: got %s, %q, %d failures, want the stage, its message and two attempts", failed.State,
			failed.Error, failed.Stages[0].Failed)
	}
	panicked := e.wait(e.publish("boom", "b", map[string]int{"index": 1}), patience)
	if panicked.State != predictor.RunFailed || !strings.Contains(panicked.Error, "stage boom panicked: boom") {
		t.Errorf("a stage that panics: got %s, %q", panicked.State, panicked.Error)
	}
	succeed[map[string]int](e, e.publish("echo", "e", map[string]int{"index": 3}), patience)
	_, err := e.client.Publish(t.Context(), web.Event{Pipeline: "ecko", Input: []byte(`{}`)})
	var refused *web.Error
	if !errors.As(err, &refused) || !strings.Contains(refused.Hint, "echo") {
		t.Errorf("an unknown pipeline: got %v, want a hint with the nearest name", err)
	}
	_, err = e.client.Publish(t.Context(), web.Event{Pipeline: "echo", Input: []byte(`{"index":"one"}`)})
	if err == nil || !strings.Contains(err.Error(), "index") {
		t.Errorf("an input that its schema refuses: got %v, want the field", err)
	}
}

func TestACancelledRunEndsItsAttempts(t *testing.T) {
	t.Parallel()
	e := sharedEngine(t)
	run := e.publish("count", "c", map[string]int{"steps": 100_000, "milliseconds": 10})
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		view, err := e.client.Run(t.Context(), run)
		if err == nil && len(view.Stages) > 0 && view.Stages[0].Step > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the stage never reported progress: %v %+v", err, view)
		}
	}
	if err := e.client.Cancel(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	if view := e.wait(run, patience); view.State != predictor.RunCancelled {
		t.Errorf("state: got %s (%s), want cancelled", view.State, view.Error)
	}
}

// TestKillsAtAnyMomentLoseNothing is a small run of what `make chaos` does.
func TestKillsAtAnyMomentLoseNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("kills the stack again and again: takes minutes")
	}
	t.Parallel()
	app := filepath.Join(t.TempDir(), "app")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", app, "../chaos/app").CombinedOutput(); err !=
		nil {
		t.Fatalf("build the app: %v\n%s", err, output)
	}
	checks, err := chaos.Run(t.Context(), chaos.Config{
		Engine: os.Args[0], Environment: []string{asEngine + "=1"}, App: app, Dir: t.TempDir(), Kills: 8, Seed: 1,
		Patience: 10 * time.Minute, Output: t.Output(),
	})
	if err != nil {
		t.Error(err)
	}
	for _, check := range checks {
		t.Log(check)
		if len(check.Wrong) > 0 {
			t.Errorf("%s: %d things are wrong", check.Name, len(check.Wrong))
		}
	}
}
