package engine_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/client"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
	"github.com/spillway-ml/spillway/workflows/spillwaytest/forms"
)

// formLimit bounds one run: none takes more than seconds where nothing else runs.
const formLimit = 2 * time.Minute

// form takes one run through what its form is about and returns its name; it has ended, as want says.
type form struct {
	want predictor.RunState
	run  func(t *testing.T, e *testEngine) string
}

// allForms are all forms by the name of their history; the histories of a Map's chunks are named after theirs.
var allForms = map[string]form{
	// Their numbers differ, so that none takes what another has made.
	"plain": {predictor.RunSucceeded, publishForm("plain", "a", forms.Input{Number: 100}, nil)},
	"map":   {predictor.RunSucceeded, publishForm("mapped", "a", forms.Input{Number: 5, From: 1000}, nil)},
	"budget": {predictor.RunSucceeded, publishForm("mapped", "b", forms.Input{Number: 7, From: 2000},
		&predictor.Goal{Budget: quantity.USD})},
	"reused": {predictor.RunSucceeded, func(t *testing.T, e *testEngine) string {
		t.Helper()
		e.wait(publishForm("mapped", "first", forms.Input{Number: 9, From: 3000}, nil)(t, e), formLimit)
		return publishForm("mapped", "again", forms.Input{Number: 9, From: 3000}, nil)(t, e)
	}},
	"retry": {predictor.RunSucceeded, func(t *testing.T, e *testEngine) string {
		t.Helper()
		broken := e.wait(publishForm("mended", strings.TrimPrefix(forms.Broken, "-"), forms.Input{Number: 400}, nil)(t, e),
			formLimit)
		retried, err := e.client.Retry(t.Context(), broken.Run, web.Retry{})
		if err != nil || broken.State != predictor.RunFailed || retried.Tasks != 1 {
			t.Fatalf("retry a run that has %s: %+v, %v; want that one task is kept", broken.State, retried, err)
		}
		return retried.Run
	}},
	"failed": {predictor.RunFailed, publishForm("failing", "a", forms.Input{}, nil)},
	"cancelled": {predictor.RunCancelled, func(t *testing.T, e *testEngine) string {
		t.Helper()
		run := publishForm("lingering", "a", forms.Input{}, nil)(t, e)
		e.until("the stage begins", func() bool {
			view, err := e.client.Run(t.Context(), run)
			return err == nil && len(view.Stages) > 0 && view.Stages[0].Step > 0
		})
		if err := e.client.Cancel(t.Context(), run); err != nil {
			t.Fatal(err)
		}
		return run
	}},
	"goal": {predictor.RunSucceeded, steerForm},
	"chain": {predictor.RunSucceeded, func(t *testing.T, e *testEngine) string {
		t.Helper()
		linked, err := forms.Chain()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.client.RegisterChain(t.Context(), linked); err != nil {
			t.Fatal(err)
		}
		return publishForm(linked.Name(), "a", struct{}{}, nil)(t, e)
	}},
	"single": {predictor.RunSucceeded, func(t *testing.T, e *testEngine) string {
		t.Helper()
		single, err := forms.Single()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.client.RegisterChain(t.Context(), single); err != nil {
			t.Fatal(err)
		}
		return publishForm(single.Name(), "a", chain.SingleInput{Command: loopwire.Command{Arguments: []string{"true"}}},
			nil)(t, e)
	}},
	"continued": {predictor.RunSucceeded, continueForm},
	"tune":      {predictor.RunSucceeded, publishForm("tuned", "a", forms.Input{Number: 9}, nil)},
	"tune-again": {predictor.RunSucceeded, func(t *testing.T, e *testEngine) string {
		t.Helper()
		first := e.wait(publishForm("tuned", "b", forms.Input{Number: 6}, nil)(t, e), formLimit)
		retried, err := e.client.Retry(t.Context(), first.Run, web.Retry{})
		if err != nil || first.State != predictor.RunSucceeded {
			t.Fatalf("retry a tuning that has %s: %v", first.State, err)
		}
		if view := e.wait(retried.Run, formLimit); len(view.Stages) != 1 || view.Stages[0].Reused.Tasks != 18 ||
			view.Stages[0].Scheduled != 0 {
			t.Errorf("the retry of a tuning of six trials in three rungs: %+v; want that all of its jobs are taken", view.Stages)
		}
		return retried.Run
	}},
	largeForm: {predictor.RunSucceeded, publishForm("large", "a", forms.Input{Number: 100_000}, nil)},
}

// largeForm is the form whose payloads are too large for a history, and its history too large to be kept here.
const largeForm = "large"

func publishForm(pipeline, id string, input any, goal *predictor.Goal) func(*testing.T, *testEngine) string {
	return func(t *testing.T, e *testEngine) string {
		t.Helper()
		encoded, err := json.Marshal(input)
		if err != nil {
			t.Fatal(err)
		}
		published, err := e.client.Publish(t.Context(), web.Event{Pipeline: pipeline, ID: id, Input: encoded, Goal: goal})
		if err != nil {
			t.Fatal(err)
		}
		return published.Run
	}
}

// steerForm gives a run another goal and another window before it lets it go on.
func steerForm(t *testing.T, e *testEngine) string {
	t.Helper()
	run := publishForm("steered", "a", forms.Input{Number: 500}, nil)(t, e)
	e.until("the first task ends", func() bool {
		view, err := e.client.Run(t.Context(), run)
		return err == nil && len(view.Stages) > 0 && view.Stages[0].Done == 1
	})
	if _, err := e.client.SetGoal(t.Context(), run, predictor.Goal{Deadline: time.Hour, Budget: quantity.USD}); err !=
		nil {
		t.Fatal(err)
	}
	c := e.temporal()
	window := predictor.Window{Run: run, Stage: predictor.StageID{Name: "double"}, Tasks: 7}
	changed, err := c.UpdateWorkflow(t.Context(), client.UpdateWorkflowOptions{
		WorkflowID: run, UpdateName: runs.WindowUpdate, Args: []any{window},
		WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err == nil {
		err = changed.Get(t.Context(), nil)
	}
	if err != nil {
		t.Fatalf("change the window: %v", err)
	}
	if err := c.SignalWorkflow(t.Context(), run, "", forms.Signal, nil); err != nil {
		t.Fatal(err)
	}
	return run
}

// continueForm takes a run through four parts, with another goal from the first on. Nobody outside sees that there were
// four.
func continueForm(t *testing.T, e *testEngine) string {
	t.Helper()
	const steps = 7 // of two in each part, and a task beside them at the end of the first three
	run := publishForm("continued", "a", forms.Progress{Of: steps}, &predictor.Goal{Budget: quantity.USD})(t, e)
	view := e.wait(run, formLimit)
	var result forms.Progress
	if err := json.Unmarshal(view.Result, &result); err != nil ||
		result != (forms.Progress{Steps: steps, Of: steps, Sum: steps * (steps - 1)}) {
		t.Errorf("the run that continued as new returned %+v (%v): %s", result, err, view.Error)
	}
	if len(view.Stages) != 1 || view.Stages[0].Done != steps+3 || view.Stages[0].Scheduled != steps+3 ||
		view.Goal.Budget != quantity.USD {
		t.Errorf("its account: %+v, want one stage whose %d tasks count once", view, steps+3)
	}
	described, err := e.temporal().DescribeWorkflowExecution(t.Context(), run, "")
	if err != nil {
		t.Fatal(err)
	}
	info := described.GetWorkflowExecutionInfo()
	if info.GetFirstRunId() == info.GetExecution().GetRunId() || !view.StartedAt.Before(info.GetStartTime().AsTime()) {
		t.Errorf("its last part began at %s and the account says %s: want that it is a later part",
			info.GetStartTime().AsTime(), view.StartedAt)
	}
	if again := publishForm("continued", "a", forms.Progress{Of: steps}, nil)(t, e); again != run {
		t.Errorf("the same event again: got run %s, want %s", again, run)
	}
	if found, err := e.client.Runs(t.Context(), web.RunQuery{Pipeline: "continued"}); err != nil || len(found) != 1 {
		t.Errorf("%d runs (%v), want one", len(found), err)
	}
	return run
}

// temporal is a client of the engine's Temporal, which is closed when the test ends.
func (e *testEngine) temporal() client.Client {
	e.t.Helper()
	c := e.dialTemporal()
	e.t.Cleanup(c.Close)
	return c
}

func TestARunThatRepeatsContinuesAsNewWhenItIsSuggested(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildPackage(t, "forms", "./testdata/forms", ""), "--no-burst")
	const steps = 25 // of some 220 events each: Temporal suggests it at 4,096
	run := publishForm("repeated", "a", forms.Progress{Of: steps}, nil)(t, e)
	view := e.wait(run, 2*formLimit)
	var result forms.Progress
	if err := json.Unmarshal(view.Result, &result); err != nil ||
		result != (forms.Progress{Steps: steps, Of: steps, Sum: steps * (steps - 1)}) {
		t.Errorf("it returned %+v (%v): %s", result, err, view.Error)
	}
	described, err := e.temporal().DescribeWorkflowExecution(t.Context(), run, "")
	if err != nil {
		t.Fatal(err)
	}
	if info := described.GetWorkflowExecutionInfo(); info.GetFirstRunId() == info.GetExecution().GetRunId() {
		t.Errorf("its history has %d events and it never continued as new", info.GetHistoryLength())
	}
	e.stop()
}

// TestEveryFormOfRunReplaysAsTheEngineRecordedIt holds the engine and package spillwaytest together: what one records
// the other replays. With SPILLWAY_UPDATE=1 it keeps the histories in the testdata of package forms.
func TestEveryFormOfRunReplaysAsTheEngineRecordedIt(t *testing.T) {
	t.Parallel()
	app := buildPackage(t, "forms", "./testdata/forms", "")
	e := startEngine(t, t.TempDir(), app, "--no-burst")
	linked, err := forms.Chain()
	if err != nil {
		t.Fatal(err)
	}
	single, err := forms.Single()
	if err != nil {
		t.Fatal(err)
	}
	pipelines := append(forms.Pipelines(), linked.Pipeline(), single.Pipeline())
	stages := slices.Concat(forms.Stages(), linked.Stages(), single.Stages())
	for _, name := range slices.Sorted(maps.Keys(allForms)) {
		t.Run(name, func(t *testing.T) {
			run := allForms[name].run(t, e)
			if view := e.wait(run, formLimit); view.State != allForms[name].want {
				t.Fatalf("the run has %s: %s", view.State, view.Error)
			}
			for file, history := range e.histories(t, name, run) {
				recorded := filepath.Join(t.TempDir(), file)
				if err := os.WriteFile(recorded, history, 0o600); err != nil {
					t.Fatal(err)
				}
				spillwaytest.Replay(t, recorded, pipelines, stages...)
				if os.Getenv("SPILLWAY_UPDATE") == "1" && name != largeForm {
					keepHistory(t, file, history)
				}
			}
		})
	}
	e.stop()
}

// histories reads the history of a run and of every chunk of its Maps, by the names of their files.
func (e *testEngine) histories(t *testing.T, name, run string) map[string][]byte {
	t.Helper()
	history, err := e.client.History(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{name + ".json": history}
	var events struct {
		Events []struct {
			Child struct {
				Run string `json:"workflowId"`
			} `json:"startChildWorkflowExecutionInitiatedEventAttributes"`
		} `json:"events"`
	}
	if err := json.Unmarshal(history, &events); err != nil {
		t.Fatal(err)
	}
	for _, event := range events.Events {
		if event.Child.Run == "" {
			continue
		}
		chunk, err := e.client.History(t.Context(), event.Child.Run)
		if err != nil {
			t.Fatal(err)
		}
		all[name+strings.ReplaceAll(strings.TrimPrefix(event.Child.Run, run), "/", "-")+".json"] = chunk
	}
	return all
}

// ofThisMachine are the parts of a history that name the machine and its processes: who took a task, and the queues
// that workers poll alone.
var ofThisMachine = regexp.MustCompile(`("identity":|"name":)"([^"]*@[^"]*@|[^":]*:[0-9a-f-]{36})"`)

// keepHistory writes a history where package forms keeps those of this version, one event a line and without the names
// of this machine.
func keepHistory(t *testing.T, file string, history []byte) {
	t.Helper()
	var decoded struct {
		Events []json.RawMessage `json:"events"`
	}
	if err := json.Unmarshal(history, &decoded); err != nil {
		t.Fatal(err)
	}
	text := []byte("{\"events\":[")
	for i, event := range decoded.Events {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, '\n')
		var line bytes.Buffer
		if err := json.Compact(&line, event); err != nil {
			t.Fatal(err)
		}
		text = append(text, ofThisMachine.ReplaceAll(line.Bytes(), []byte(`$1"here"`))...)
	}
	dir := filepath.Join("..", "..", "..", "workflows", "spillwaytest", "forms", "testdata",
		fmt.Sprintf("v%d", loopwire.WorkflowVersion))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), append(text, "\n]}\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
}
