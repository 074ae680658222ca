package child_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/child"
	"github.com/spillway-ml/spillway/workflows"
)

func TestAFunctionStopsAtItsBoundOrEndsWithItsEnvironment(t *testing.T) {
	t.Parallel()
	released := make(chan struct{})
	ended := make(chan struct{})
	listed := child.NewStages([]workflows.AnyStage{
		workflows.NewStage("obeys", func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}),
		workflows.NewStage("ignores", func(context.Context, int) (int, error) {
			defer close(ended)
			<-released
			return 0, nil
		}),
	})
	invoke := child.Function(listed, openStore(t), slog.New(slog.DiscardHandler))
	call := func(stage string, bound time.Duration) (answer wire.Answer, panicked any) {
		defer func() { panicked = recover() }()
		start := attempt(stage, "1")
		start.Bound = bound
		answer, err := invoke(t.Context(), wire.Invoke{Version: wire.Version, Start: start})
		if err != nil {
			t.Error(err)
		}
		return answer, nil
	}
	// The code that obeys is told before its bound, and has the rest of it to stop.
	if answer, _ := call("obeys", time.Second); answer.Error == nil || !answer.Error.Bounded {
		t.Errorf("code that stops: got %+v, want an answer that says so", answer)
	}
	if answer, panicked := call("ignores", time.Millisecond); panicked != wire.BoundPassed {
		t.Errorf("code that does not stop: got %+v and a panic of %v, want the environment to end", answer, panicked)
	}
	close(released)
	<-ended
}
