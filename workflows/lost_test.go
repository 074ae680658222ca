package workflows

import (
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// TestATaskThatWasAskedToStopAndLostIsCancelled: its host went away before it could say that it had stopped.
func TestATaskThatWasAskedToStopAndLostIsCancelled(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]predictor.RunState{wire.LostError: predictor.RunCancelled, wire.StageError: predictor.RunFailed} {
		cost := spending{Spent: 7}
		err := lostIsCancelled(temporal.NewApplicationError("it ended", kind, cost), cost)
		if over := Conclude(predictor.RunStarted{}, nil, err, time.Time{}); over.Ended.State != want {
			t.Errorf("%s: the run ended as %s, want %s", kind, over.Ended.State, want)
		}
		if told, ok := spendingOf(err); !ok || told.Spent != 7 {
			t.Errorf("%s: the error says that %+v is spent, want 7", kind, told)
		}
	}
}
