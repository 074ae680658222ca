package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/types/known/timestamppb"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/runs"
)

func TestManyBlockedRunsAreExplainedAFewAtATime(t *testing.T) {
	t.Parallel()
	const blocked = 2*measureMost + 1
	var listed []*workflowpb.WorkflowExecutionInfo
	for i := range blocked {
		id := fmt.Sprintf("run-%d", i)
		listed = append(listed, &workflowpb.WorkflowExecutionInfo{Execution: &common.WorkflowExecution{
			WorkflowId: id,
			RunId:      id,
		}})
	}
	reads := map[string]int{}
	n := &notices{reason: func(_ context.Context, execution *common.WorkflowExecution) (string, error) {
		reads[execution.GetRunId()]++
		if execution.GetRunId() == "run-0" {
			return "", errors.New("it has just ended")
		}
		return "a mismatch", nil
	}}
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	sweep := func(wantReads int) {
		t.Helper()
		clear(reads)
		n.explain(t.Context(), listed, now)
		if len(reads) != wantReads {
			t.Errorf("%d runs were looked at, want %d", len(reads), wantReads)
		}
		now = now.Add(noticeEvery)
	}
	sweep(measureMost)
	sweep(measureMost)
	sweep(2) // the last, and again the one that could not be read
	sweep(1)
	for _, info := range listed[1:] {
		if id := info.GetExecution().GetRunId(); n.reasons[id].why != "a mismatch" {
			t.Errorf("run %s has the reason %q", id, n.reasons[id].why)
		}
	}
	now = now.Add(measureAgain)
	sweep(measureMost)
	listed = listed[:2]
	sweep(1)
	if len(n.reasons) != len(listed) {
		t.Errorf("%d reasons are kept of %d runs that are blocked", len(n.reasons), len(listed))
	}
}

// running are workflows of this engine that go on, by their ID, of these types.
func running(kinds map[string]string) map[string]*workflowpb.WorkflowExecutionInfo {
	described := map[string]*workflowpb.WorkflowExecutionInfo{}
	for id, kind := range kinds {
		described[id] = workflowOf(id, kind, enums.WORKFLOW_EXECUTION_STATUS_RUNNING)
	}
	return described
}

// allBlocked are notices to which everything that goes on is blocked.
func allBlocked(t *someTemporal) *notices {
	why := func(context.Context, *common.WorkflowExecution) (string, error) { return "a mismatch", nil }
	return &notices{temporal: t, measured: map[string]measurement{}, reason: why}
}

func TestARunWhoseNameHasASlashIsNoPartOfAnother(t *testing.T) {
	t.Parallel()
	n := allBlocked(&someTemporal{workflows: running(map[string]string{
		"score-b/1":        "score",
		"score-c/2/draw-0": runs.MapWorkflow,
		"score-e/fit-tune": runs.TuneWorkflow,
		"plain":            "score",
	})})
	foreign := workflowOf("score-d", "theirs", enums.WORKFLOW_EXECUTION_STATUS_RUNNING)
	foreign.TaskQueue = "a queue of somebody else"
	n.temporal.(*someTemporal).workflows["score-d"] = foreign
	blocked, err := n.blocked(t.Context(), noon)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"score-b/1": "blocked: a mismatch",
		"score-c/2": "blocked: part draw-0 of a Map cannot go on: a mismatch",
		"score-e":   "blocked: tuning fit-tune cannot go on: a mismatch",
		"plain":     "blocked: a mismatch",
	}
	for run, text := range want {
		if blocked[run].text != text {
			t.Errorf("run %s: %q, want %q", run, blocked[run].text, text)
		}
	}
	if len(blocked) != len(want) {
		t.Errorf("%d runs are blocked, want %d: %+v", len(blocked), len(want), blocked)
	}
}

func TestMoreRunsThanFitIntoAllSweepsAreMeasuredInTurn(t *testing.T) {
	t.Parallel()
	const sweeps = 2 * int(measureAgain/noticeEvery)
	const all = sweeps * measureMost
	var going []string
	known := &someTemporal{workflows: map[string]*workflowpb.WorkflowExecutionInfo{}}
	for i := range all {
		id := fmt.Sprintf("run-%d", i)
		going = append(going, id)
		if i == 0 {
			continue // Temporal does not answer for the oldest
		}
		known.workflows[id] = workflowOf(id, "score", enums.WORKFLOW_EXECUTION_STATUS_RUNNING)
		known.workflows[id].HistoryLength = mostEvents
	}
	n := &notices{temporal: known}
	now := noon
	n.measure(t.Context(), going, now)
	now = now.Add(measureAgain)
	for range sweeps {
		n.measure(t.Context(), going, now)
		now = now.Add(noticeEvery)
	}
	if len(known.looked) != all {
		t.Errorf("%d looks in %d sweeps, want %d", len(known.looked), sweeps, all)
	}
	for _, run := range going[1:] {
		if n.measured[run].notice == "" {
			t.Fatalf("run %s was not looked at", run)
		}
	}
}

func TestARunThatWasBlockedBeforeItsFirstWordKeepsItsGoal(t *testing.T) {
	t.Parallel()
	goal := predictor.Goal{Deadline: time.Hour, Budget: quantity.USD}
	fields := map[string]*common.Payload{}
	for key, value := range map[string]any{
		runs.GoalMemo:    goal,
		runs.EventMemo:   "e1",
		runs.OptionsMemo: loopwire.RunOptions{EventAt: noon, RetryOf: "score-e0", Traceparent: "00-1-2-01"},
	} {
		payload, err := converter.GetDefaultDataConverter().ToPayload(value)
		if err != nil {
			t.Fatal(err)
		}
		fields[key] = payload
	}
	known := &someTemporal{workflows: running(map[string]string{
		"score-e1": "score", "score-e2": "score", "score-e3": "score",
	})}
	for _, info := range known.workflows {
		info.Memo, info.StartTime = &common.Memo{Fields: fields}, timestamppb.New(noon)
	}
	other := predictor.Goal{Deadline: 2 * time.Hour}
	e, stream := engineOver(t, known,
		predictor.Scheduled{Run: "score-e2", Stage: someStage, Tasks: 1, At: noon},
		predictor.GoalChanged{Run: "score-e2", Goal: other, At: noon},
		predictor.RunStarted{Run: "score-e3", Pipeline: "score", At: noon},
		predictor.RunEnded{Run: "score-e3", State: predictor.RunCancelled, At: noon.Add(time.Second)},
	)
	if err := e.notice(t.Context(), allBlocked(known), noon); err != nil {
		t.Fatal(err)
	}
	if err := e.recorder.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// All before it is stored once this is.
	if err := e.recorder.Started(t.Context(), predictor.HostStarted{Host: "h", At: noon}); err != nil {
		t.Fatal(err)
	}
	want := predictor.RunStarted{
		Run: "score-e1", Pipeline: "score", App: "app", Build: "b1", Goal: goal, Event: "e1", EventAt: noon,
		RetryOf: "score-e0", Traceparent: "00-1-2-01", At: noon,
	}
	unseen := want
	unseen.Run, unseen.Goal = "score-e2", other // its first word has left the stream, but not that it has another goal
	got := map[string]predictor.Event{}
	for _, event := range inStream(t, stream) {
		if started, is := event.(predictor.RunStarted); is {
			got[started.Run] = started
		}
	}
	if diff := cmp.Diff(map[string]predictor.Event{"score-e1": want, "score-e2": unseen}, got); diff != "" {
		t.Errorf("what was told (-want +got):\n%s", diff)
	}
}

// blockedRun is an engine one of whose runs is blocked, with two parts.
func blockedRun(t *testing.T) (*Engine, *someTemporal, func() []predictor.RunEnded) {
	t.Helper()
	known := &someTemporal{
		workflows: running(map[string]string{
			"r": "score", "r/draw-0": runs.MapWorkflow, "r/draw-1": runs.MapWorkflow,
		}),
		children: map[string][]string{"r": {"r/draw-0", "r/draw-1"}},
	}
	e, stream := engineOver(t, known, predictor.RunStarted{Run: "r", Pipeline: "score", At: noon})
	e.observer.note("r", blockedPrefix+"a mismatch")
	return e, known, func() (ends []predictor.RunEnded) {
		for _, event := range inStream(t, stream) {
			if ended, is := event.(predictor.RunEnded); is {
				ends = append(ends, ended)
			}
		}
		return ends
	}
}

func TestABlockedRunIsCancelledWholeAlthoughWhoeverAskedGoesAway(t *testing.T) {
	t.Parallel()
	e, known, ends := blockedRun(t)
	asking, leave := context.WithCancel(t.Context())
	known.terminate = func(string) { leave() }
	if err := e.Cancel(asking, "r"); err != nil {
		t.Errorf("cancel: %v", err)
	}
	if want := []string{"r", "r/draw-0", "r/draw-1"}; !slices.Equal(known.terminated, want) {
		t.Errorf("ended are %q, want %q", known.terminated, want)
	}
	if told := ends(); len(told) != 1 || told[0].State != predictor.RunCancelled {
		t.Errorf("told are the ends %+v, want that the run was cancelled", told)
	}
}

func TestABlockedRunWhoseEndIsToldWhileItIsCancelledWasCancelled(t *testing.T) {
	t.Parallel()
	e, known, ends := blockedRun(t)
	known.terminate = func(id string) {
		if id == "r" {
			newReconciler(e).sweep(t.Context(), e.observer.silent(noon.Add(time.Hour)))
		}
	}
	if err := e.Cancel(t.Context(), "r"); err != nil {
		t.Errorf("cancel: %v", err)
	}
	if told := ends(); len(told) != 1 || told[0].State != predictor.RunCancelled {
		t.Errorf("told are the ends %+v, want that the run was cancelled", told)
	}
	if view, err := e.Run(t.Context(), "r"); err != nil || view.State != predictor.RunCancelled {
		t.Errorf("the run is %s, %v", view.State, err)
	}
}

func TestPartsThatAreBlockedEndWithTheirRun(t *testing.T) {
	t.Parallel()
	e, known, _ := blockedRun(t)
	n := allBlocked(known)
	sweep := func(want ...string) {
		t.Helper()
		if err := e.notice(t.Context(), n, noon); err != nil {
			t.Fatal(err)
		}
		slices.Sort(known.terminated)
		if !slices.Equal(known.terminated, want) {
			t.Errorf("ended are %q, want %q", known.terminated, want)
		}
	}
	sweep()
	ended := predictor.RunEnded{Run: "r", State: predictor.RunCancelled, At: noon}
	if err := e.observer.apply(lineOf(2, ended)); err != nil {
		t.Fatal(err)
	}
	sweep() // it has told its end, and is about to end
	known.workflows["r"].Status = enums.WORKFLOW_EXECUTION_STATUS_CANCELED
	sweep("r/draw-0", "r/draw-1")
	sweep("r/draw-0", "r/draw-1")
}
