package memory

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// A state that an earlier build kept does not say that a run has begun: the wait of a task hours later is not that of
// its first.
func TestARunOfAnEarlierBuildHasBegun(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	stage := fact.StageID{App: "app", Build: "b", Name: "train"}
	state := New()
	for _, e := range []fact.Event{
		fact.RunStarted{Run: "r", Pipeline: "p", App: "app", At: begin},
		fact.Scheduled{Run: "r", Stage: stage, Tasks: 2, At: begin},
		fact.AttemptStarted{Run: "r", Stage: stage, Task: "t0", Attempt: 1, Venue: fact.Pool, At: begin.Add(time.Second)},
	} {
		state.Fold(e)
	}
	for _, r := range state.Runs {
		r.Begun, r.Waited = false, 0 // as an earlier build has it
	}
	encoded, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	encoded = bytes.Replace(encoded, []byte(`,"begins":true`), nil, 1)
	kept := New()
	if err := json.Unmarshal(encoded, kept); err != nil {
		t.Fatal(err)
	}
	kept.Fold(fact.AttemptStarted{
		Run: "r", Stage: stage, Task: "t1", Attempt: 1, Venue: fact.Pool, Queue: 50 * time.Minute,
		At: begin.Add(2 * time.Hour),
	})
	if r := kept.Runs["r"]; !r.Begun || r.Waited != 0 {
		t.Errorf("the run has begun: %v, after %v; want that it had begun before", r.Begun, time.Duration(r.Waited))
	}
}
