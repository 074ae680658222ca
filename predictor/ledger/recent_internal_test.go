package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

func TestARunThatGoesOnForEverRemembersItsLatestAttemptsOnly(t *testing.T) {
	t.Parallel()
	const tasks = 2 * maxRecent // two keys each
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	l := New()
	l.Apply(predictor.RunStarted{Run: "endless", Pipeline: "watch", At: at})
	stage := predictor.StageID{App: "a", Build: "b", Name: "learn"}
	for i := range tasks {
		record := predictor.Record{
			Run: "endless", Pipeline: "watch", Stage: stage, Task: fmt.Sprintf("learn-%d", i), Attempt: 1,
			Outcome: predictor.Succeeded, At: at,
		}
		l.Apply(record)
		l.Apply(record) // it was published twice
	}
	view, _ := l.Run("endless")
	if done := view.Stages[0].Done; done != tasks {
		t.Errorf("%d tasks are done, want %d", done, tasks)
	}
	seen := l.runs["endless"].seen
	if kept := len(seen.newer) + len(seen.older); kept < maxRecent || kept > 2*maxRecent {
		t.Errorf("it remembers %d keys, want between %d and twice as many", kept, maxRecent)
	}
}
