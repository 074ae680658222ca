package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/converter"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// attemptsOf counts the attempts of each stage of a run.
func attemptsOf(view ledger.RunView) string {
	counts := map[string]int{}
	for _, stage := range view.Stages {
		counts[stage.Name] = stage.Attempts
	}
	return fmt.Sprint(counts)
}

// answered returns the Error that the API answered with.
func answered(t *testing.T, err error) *web.Error {
	t.Helper()
	var said *web.Error
	if !errors.As(err, &said) {
		t.Fatalf("got error %v, want an answer of the API", err)
	}
	return said
}

func TestARetryRunsOnlyTheFixedStageAndWhatFollows(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	e := startEngine(t, state, buildAppWith(t, "testapp-broken", "-X main.broken=yes"), "--no-burst")
	run := e.publish("relay", "r1", map[string]int{"shards": 6, "milliseconds": 1})
	if view := e.wait(run, patience); view.State != predictor.RunFailed || !strings.Contains(view.Error, "<b>yes</b>") {
		t.Fatalf("the broken build: got %s: %q", view.State, view.Error)
	}
	e.stop()

	e = startEngine(t, state, buildApp(t, 0), "--no-burst") // the fix; what is kept outlives the engine
	retried, err := e.client.Retry(t.Context(), run, web.Retry{})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(retried.Stages, " "); retried.Tasks != 7 || !strings.Contains(got, "gather") ||
		!strings.Contains(got, "work") {
		t.Errorf("reused: got %d tasks of %q, want the 7 of gather and work", retried.Tasks, got)
	}
	result := succeed[struct{ Shards, Sum int }](e, retried.Run, patience)
	view := e.wait(retried.Run, patience)
	if got := attemptsOf(view); result.Shards != 6 || result.Sum != 15 || got != "map[finish:1 gather:0 mend:1 work:0]" {
		t.Errorf("the retry: got %+v with attempts %s, want mend and finish alone to run", result, got)
	}
	if view.RetryOf != run || view.Reused.Tasks != 7 || view.Reused.From != run || view.Reused.Saved <= 0 {
		t.Errorf("the retry's account: got retry of %q, reused %+v", view.RetryOf, view.Reused)
	}

	twice, err := e.client.Retry(t.Context(), retried.Run, web.Retry{})
	if err != nil {
		t.Fatal(err)
	}
	if view := e.wait(twice.Run, time.Minute); twice.Tasks != 9 || view.Reused.Tasks != 9 ||
		attemptsOf(view) != "map[finish:0 gather:0 mend:0 work:0]" {
		t.Errorf("a retry of the retry: got %d results, %d of them reused, and attempts %s, want what the first run and "+
			"its retry had finished",
			twice.Tasks, view.Reused.Tasks, attemptsOf(view))
	}
	plain := e.publish("relay", "r2", map[string]int{"shards": 6, "milliseconds": 1})
	if view := e.wait(plain, time.Minute); view.Reused.Tasks != 0 ||
		attemptsOf(view) != "map[finish:1 gather:1 mend:1 work:6]" {
		t.Errorf("the same input in a run that asks for nothing: got %d reused, attempts %s", view.Reused.Tasks,
			attemptsOf(view))
	}
	asked, err := e.client.Publish(t.Context(), web.Event{
		Pipeline: "relay", ID: "r3",
		Input: []byte(`{"milliseconds":1,"shards":6}`), Cache: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if view := e.wait(asked.Run, time.Minute); view.Reused.Tasks != 9 {
		t.Errorf("in one that asks for all: got %d reused, attempts %s", view.Reused.Tasks, attemptsOf(view))
	}

	again, err := e.client.Retry(t.Context(), run, web.Retry{From: "work"})
	if err != nil {
		t.Fatal(err)
	}
	if view := e.wait(again.Run, patience); attemptsOf(view) != "map[finish:1 gather:0 mend:1 work:6]" {
		t.Errorf("from work: got attempts %s", attemptsOf(view))
	}
	if _, err := e.client.Retry(t.Context(), run, web.Retry{From: "polish"}); answered(t, err).Status !=
		http.StatusNotFound || !strings.Contains(err.Error(), `no stage "polish"`) {
		t.Errorf("a stage that is not in the run: got %v", err)
	}

	gone := e.loseArtifacts(run)
	_, err = e.client.Retry(t.Context(), run, web.Retry{})
	if said := answered(t, err); said.Status != http.StatusGone || !strings.Contains(said.Message, gone) ||
		!strings.Contains(said.Hint, "--from gather") {
		t.Errorf("artifacts that are gone: got %d %q, hint %q, want 410 that names %s", said.Status, said.Message, said.Hint,
			gone)
	}
	fresh, err := e.client.Retry(t.Context(), run, web.Retry{From: "gather"})
	if err != nil {
		t.Fatal(err)
	}
	if view := e.wait(fresh.Run, patience); view.State != predictor.RunSucceeded || view.Reused.Tasks != 0 {
		t.Errorf("made again: got %s, reused %+v", view.State, view.Reused)
	}
	e.stop()
}

// steps is a program that counts from its checkpoint on, keeps each step, and fails after so many unless a file is
// there; or goes on until it is killed, where it is to wait.
const steps = `import json, os, sys, time
def tell(**what):
    with open(os.environ["SPILLWAY_REPORT"], "w") as report:
        report.write(json.dumps(what) + "\n")
begun = step = int(open(os.environ["SPILLWAY_RESUME"]).read()) if os.environ.get("SPILLWAY_RESUME") else 0
while step < begun + 2:
    step += 1
    with open(f"step-{step}", "w") as file:
        file.write(str(step))
    tell(progress=step, checkpoint=f"step-{step}")
fixed, waits = sys.argv[1:]
while waits == "yes" and not os.path.exists(fixed):
    time.sleep(0.05)
if not os.path.exists(fixed):
    sys.exit("it is not fixed")
tell(result={"begun": begun, "step": step})
`

// TestARetryGoesOnFromTheNewestCheckpoint tries a command again that fails, twice, and one that was cancelled.
func TestARetryGoesOnFromTheNewestCheckpoint(t *testing.T) {
	t.Parallel()
	needPython(t)
	e := startEngine(t, t.TempDir(), "")
	// again tries a run again, which ends as it should, and returns its name and where its command began.
	again := func(run string, request web.Retry, resumed string, want predictor.RunState) (retried string, begun any) {
		t.Helper()
		answer, err := e.client.Retry(t.Context(), run, request)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(answer.Resumed, " "); got != resumed {
			t.Errorf("the retry of %s says that %q goes on, want %q", run, got, resumed)
		}
		view := e.wait(answer.Run, patience)
		if view.State != want {
			t.Fatalf("the retry of %s has %s: %s\n%s", run, view.State, view.Error, e.output)
		}
		if want != predictor.RunSucceeded {
			return answer.Run, nil
		}
		return answer.Run, succeed[chain.Result](e, answer.Run, patience).Stages["fit"].Values[0]["begun"]
	}
	serve := func(name, waits string) (fixed string) {
		t.Helper()
		fixed = filepath.Join(t.TempDir(), "fixed")
		program, err := json.Marshal([]string{"python3", "-c", steps, fixed, waits})
		if err != nil {
			t.Fatal(err)
		}
		c := packedChain(t, fmt.Sprintf("name: %s\ncode: none\nstages:\n  fit: {run: %s, attempts: 1}\n", name, program))
		if _, err := e.client.RegisterChain(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		return fixed
	}
	fix := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	fixed := serve("fails", "no")
	run := e.publish("fails", "1", struct{}{})
	if view := e.wait(run, patience); view.State != predictor.RunFailed {
		t.Fatalf("the first run has %s: %s", view.State, view.Error)
	}
	second, _ := again(run, web.Retry{}, "fit", predictor.RunFailed)
	fix(fixed)
	if _, begun := again(second, web.Retry{}, "fit", predictor.RunSucceeded); begun != 4.0 {
		t.Errorf("a retry of the retry began at %v, want 4", begun)
	}
	if _, begun := again(run, web.Retry{}, "fit", predictor.RunSucceeded); begun != 2.0 {
		t.Errorf("a retry of the first began at %v, want 2", begun)
	}
	if _, begun := again(run, web.Retry{From: "fit"}, "", predictor.RunSucceeded); begun != 0.0 {
		t.Errorf("with --from it began at %v, want 0", begun)
	}

	fixed = serve("waits", "yes")
	run = e.publish("waits", "2", struct{}{})
	e.checkpointed(run)
	if err := e.client.Cancel(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	if view := e.wait(run, patience); view.State != predictor.RunCancelled {
		t.Fatalf("the cancelled run has %s: %s", view.State, view.Error)
	}
	fix(fixed)
	if _, begun := again(run, web.Retry{}, "fit", predictor.RunSucceeded); begun != 1.0 && begun != 2.0 {
		t.Errorf("after a cancellation it began at %v, want 1 or 2", begun)
	}
	e.stop()
}

// loseArtifacts deletes what gather made in a run and returns its digest.
func (e *testEngine) loseArtifacts(run string) string {
	e.t.Helper()
	numbers, err := json.Marshal([]int{0, 1, 2, 3, 4, 5})
	if err != nil {
		e.t.Fatal(err)
	}
	var found string
	err = filepath.WalkDir(filepath.Join(e.state, "artifacts"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if content, err := os.ReadFile(path); err != nil || string(content) != string(numbers) {
			return err
		}
		found = filepath.Base(path)
		return os.Remove(path)
	})
	if err != nil || found == "" {
		e.t.Fatalf("find the artifact of run %s: %q, %v", run, found, err)
	}
	return found
}

func TestAGoalChangesWhileTheRunGoesOn(t *testing.T) {
	t.Parallel()
	alerts := make(chan alerting.Alert, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var alert alerting.Alert
		if err := json.NewDecoder(r.Body).Decode(&alert); err == nil {
			alerts <- alert
		}
	}))
	defer hook.Close()
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--no-burst", "--alert-webhook", hook.URL)
	run := e.publish("count", "g1", map[string]int{"steps": 3000, "milliseconds": 10})
	goal := predictor.Goal{Deadline: time.Hour, Budget: quantity.USD}
	var err error
	// the event may not have started it yet
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if _, err = e.client.SetGoal(t.Context(), run, goal); err == nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	history, err := e.client.History(t.Context(), run)
	if err != nil || !strings.Contains(string(history), "spillway.goal") {
		t.Errorf("the run's history does not have the update: %v", err)
	}
	e.until("the goal is in the account", func() bool {
		view, err := e.client.Run(t.Context(), run)
		return err == nil && view.Goal == goal
	})
	_, err = e.client.PipelineFrontier(t.Context(), "count", json.RawMessage(`{"steps": "many"}`), goal)
	if said := answered(t, err); said.Status != http.StatusBadRequest || !strings.Contains(said.Message, "at steps") {
		t.Errorf("the frontier with an input that the pipeline does not take: got %d %q", said.Status, said.Message)
	}
	_, err = e.client.SetGoal(t.Context(), run, predictor.Goal{Deadline: time.Millisecond})
	if said := answered(t, err); said.Status != http.StatusUnprocessableEntity ||
		!strings.Contains(said.Message, "is past") || said.Hint == "" {
		t.Errorf("a deadline that is past: got %d %q, hint %q", said.Status, said.Message, said.Hint)
	}
	view, err := e.client.Run(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	soon := time.Duration((view.Actual.Seconds + 2) * float64(time.Second))
	if _, err := e.client.SetGoal(t.Context(), run, predictor.Goal{Deadline: soon}); err != nil {
		t.Fatal(err)
	}
	select {
	case alert := <-alerts:
		if alert.Run != run || alert.Kind != alerting.KindDeadlineAtRisk || alert.Goal.Deadline != soon {
			t.Errorf("got alert %+v, want one about the deadline of %s", alert, soon)
		}
	case <-time.After(patience):
		t.Error("no alert came although the deadline has passed")
	}
	if told, err := e.client.Alerts(t.Context(), 10); err != nil || len(told) != 1 {
		t.Errorf("alerts: got %+v and error %v, want one", told, err)
	}
	if err := e.client.Cancel(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	if view := e.wait(run, patience); view.State != predictor.RunCancelled {
		t.Errorf("got %s, want a cancelled run", view.State)
	}
	_, err = e.client.SetGoal(t.Context(), run, goal)
	if said := answered(t, err); said.Status != http.StatusConflict {
		t.Errorf("the goal of a run that has ended: got %d %q", said.Status, said.Message)
	}
	e.stop()
}

// checkpointed waits until Temporal knows of a checkpoint of the one task of a run that goes on: who is killed before
// has told nobody of any.
func (e *testEngine) checkpointed(run string) {
	e.t.Helper()
	temporal := e.temporal()
	e.until("the server has a checkpoint", func() bool {
		var beat wire.Heartbeat
		description, err := temporal.DescribeWorkflowExecution(e.t.Context(), run, "")
		if err != nil || len(description.GetPendingActivities()) != 1 {
			return false
		}
		details := description.GetPendingActivities()[0].GetHeartbeatDetails()
		err = converter.GetDefaultDataConverter().FromPayloads(details, &beat)
		return err == nil && beat.Checkpoint.Digest != ""
	})
}
