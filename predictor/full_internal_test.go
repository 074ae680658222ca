package predictor

import (
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/venue"
)

// TestARefusalIsOverForAStateThatOnlyFolds has an observer take in that a venue refused functions, which never decides:
// it too expects half of them then, and all of them once the venue has had time.
func TestARefusalIsOverForAStateThatOnlyFolds(t *testing.T) {
	t.Parallel()
	dawn := time.Unix(1_800_000_000, 0)
	stage := StageID{App: "app", Build: "b", Name: "s"}
	var state State
	state = Pass(state, dawn)
	refuse := func(task string, at time.Time) {
		state = Pass(state, at)
		state = Fold(state, fact.AttemptStarted{Run: "r", Stage: stage, Task: task, Attempt: 1, Venue: fact.Function, At: at})
		state = Fold(state, fact.Record{
			Run: "r", Stage: stage, Task: task, Attempt: 1, Venue: fact.Function, Outcome: fact.Refused,
			Cause: fact.CauseThrottled, Next: fact.NextPool, At: at,
		})
	}
	limited := func(after time.Duration) bool {
		at := dawn.Add(after)
		return begin(state.memory.Copied(), plan.Snapshot{
			Now: at, Functions: venue.Functions{Concurrency: 8, MaxDuration: time.Minute},
		}).full
	}
	state = Fold(state, fact.RunStarted{Run: "r", Pipeline: "p", App: "app", Build: "b", At: dawn})
	for i, at := range []time.Duration{0, time.Hour} {
		refuse(string(rune('a'+i)), dawn.Add(at))
		if !limited(at + time.Second) {
			t.Errorf("a second after the refusal at %v the venue is taken to have all slots", at)
		}
		if limited(at + 10*time.Minute) {
			t.Errorf("ten minutes after the refusal at %v the venue is taken to have less than it offers", at)
		}
	}
}
