package wire_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

type fanInput struct {
	Shards       int `json:"shards"`
	Milliseconds int `json:"milliseconds,omitempty"`
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
	succeed[fanResult](e, e.publish("fan", "a", fanInput{Shards: 60, Milliseconds: 5}), time.Minute).check(t, 60)

	view := e.wait("fan-a", time.Second)
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
	if err := gone(t, state); err != nil {
		t.Error(err)
	}
}

func TestFailuresAreToldByStageAndTheEngineLivesOn(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0))
	failed := e.wait(e.publish("fail", "f", map[string]int{"index": 1}), time.Minute)
	if failed.State != predictor.RunFailed || !strings.Contains(failed.Error, "stage fail") || !strings.Contains(failed.Error, "it never works") ||
		failed.Stages[0].Failed != 2 {
		t.Errorf("a stage that fails: got %s, %q, %d failures, want the stage, its message and two attempts", failed.State, failed.Error, failed.Stages[0].Failed)
	}
	panicked := e.wait(e.publish("boom", "b", map[string]int{"index": 1}), time.Minute)
	if panicked.State != predictor.RunFailed || !strings.Contains(panicked.Error, "stage boom panicked: boom") {
		t.Errorf("a stage that panics: got %s, %q", panicked.State, panicked.Error)
	}
	succeed[map[string]int](e, e.publish("echo", "e", map[string]int{"index": 3}), time.Minute)
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
	e := startEngine(t, t.TempDir(), buildApp(t, 0))
	run := e.publish("count", "c", map[string]int{"steps": 100_000, "milliseconds": 10})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
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
	if view := e.wait(run, time.Minute); view.State != predictor.RunCancelled {
		t.Errorf("state: got %s (%s), want cancelled", view.State, view.Error)
	}
}

// TestKillsAtAnyMomentLoseNothing kills the whole stack at 20 seeded moments while events keep coming, each sent three times.
func TestKillsAtAnyMomentLoseNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("kills the stack twenty times: takes minutes")
	}
	t.Parallel()
	const kills, shards = 20, 40
	random := rand.New(rand.NewPCG(1, 20))
	state, app := t.TempDir(), buildApp(t, 0)
	var runs []string
	counting := ""
	for i := range kills {
		e := startEngine(t, state, app)
		id := fmt.Sprintf("k%d", i)
		for range 3 {
			runs = append(runs, e.publish("fan", id, fanInput{Shards: shards, Milliseconds: 10}))
		}
		if i == 0 {
			counting = e.publish("count", "long", map[string]int{"steps": 400, "milliseconds": 20})
		}
		time.Sleep(time.Duration(random.Int64N(int64(1500 * time.Millisecond))))
		e.kill()
		if err := gone(t, state); err != nil {
			t.Fatalf("after kill %d: %v", i+1, err)
		}
	}
	e := startEngine(t, state, app)
	for _, run := range runs {
		succeed[fanResult](e, run, 3*time.Minute).check(t, shards)
	}
	if began := succeed[int](e, counting, 3*time.Minute); began == 0 {
		t.Error("the long stage began from the start although it had saved checkpoints")
	}
	listed, err := e.client.Runs(t.Context(), web.RunQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if want := kills + 1; len(listed) != want {
		t.Errorf("runs: got %d, want %d: one for each event, however often it was sent", len(listed), want)
	}
}
