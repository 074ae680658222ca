package engine

import (
	"errors"
	"net/http"
	"testing"

	"go.temporal.io/api/common/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/converter"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// ofTeam is a memo that says whose a run is.
func ofTeam(t *testing.T, team string) *common.Memo {
	t.Helper()
	payload, err := converter.GetDefaultDataConverter().ToPayload(loopwire.RunOptions{Team: team})
	if err != nil {
		t.Fatal(err)
	}
	return &common.Memo{Fields: map[string]*common.Payload{runs.OptionsMemo: payload}}
}

// beganAs is how the history of a workflow begins, which is a child of a parent where that is not empty.
func beganAs(memo *common.Memo, parent string) *historypb.HistoryEvent {
	started := &historypb.WorkflowExecutionStartedEventAttributes{Memo: memo}
	if parent != "" {
		started.ParentWorkflowExecution = &common.WorkflowExecution{WorkflowId: parent, RunId: parent + " at noon"}
	}
	return &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
		WorkflowExecutionStartedEventAttributes: started,
	}}
}

// TestAttackABuildSaysThatItsRunIsAnotherTeams has a build tell of its runs, in starts and in memos that it has
// rewritten, that they are vision's.
func TestAttackABuildSaysThatItsRunIsAnotherTeams(t *testing.T) {
	t.Parallel()
	known := &someTemporal{
		workflows: running(map[string]string{"score-e2": "score"}),
		began: map[string]*historypb.HistoryEvent{
			"score-e1":   beganAs(ofTeam(t, "robots"), ""),
			"score-e1/a": beganAs(ofTeam(t, "vision"), "score-e1"), // which its parent has written
			"score-e2":   beganAs(ofTeam(t, "robots"), ""),
			"score-e3/a": beganAs(ofTeam(t, "vision"), "score-e3"), // whose parent is gone
		},
	}
	known.workflows["score-e2"].Memo = ofTeam(t, "vision")
	e, stream := engineOver(t, known,
		predictor.RunStarted{Run: "score-e1", Pipeline: "score", Team: "vision", At: noon},
		predictor.RunStarted{Run: "score-e1/a", Pipeline: "score", Team: "vision", At: noon},
		predictor.Scheduled{Run: "score-e2", Stage: someStage, Tasks: 1, At: noon},
		predictor.RunStarted{Run: "score-e3/a", Pipeline: "score", Team: "vision", At: noon},
		predictor.RunStarted{Run: "score-gone", Pipeline: "score", Team: "vision", At: noon},
	)
	for run, want := range map[string]string{"score-e1": "robots", "score-e1/a": "robots", "score-gone": "vision"} {
		if got, err := e.TeamOf(t.Context(), run); got != want || err != nil {
			t.Errorf("run %s is of team %q (%v), want %q", run, got, err, want)
		}
	}
	for run, want := range map[string]int{"score-none": http.StatusNotFound, "score-e3/a": http.StatusGone} {
		team, err := e.TeamOf(t.Context(), run)
		if refused, is := errors.AsType[*web.Error](err); !is || refused.Status != want {
			t.Errorf("run %s is of team %q (%v), want status %d", run, team, err, want)
		}
	}
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
	told := 0
	for _, event := range inStream(t, stream) {
		if started, is := event.(predictor.RunStarted); is {
			told++
			if started.Team != "robots" {
				t.Errorf("the engine tells of %s that it is of team %q, want robots", started.Run, started.Team)
			}
		}
	}
	if told != 1 {
		t.Errorf("told are %d starts, want that of score-e2", told)
	}
}
