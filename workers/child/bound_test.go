package child_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/child"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

func TestAFunctionStopsAtItsBoundOrEndsWithItsEnvironment(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		ended := make(chan struct{})
		listed := child.NewStages([]runs.AnyStage{
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
		invoke := child.Function(listed, store, slog.New(slog.DiscardHandler))
		call := func(stage string) (answer wire.Answer, panicked any) {
			defer func() { panicked = recover() }()
			start := attempt(stage, "1")
			start.Bound = time.Second
			answer, err := invoke(t.Context(), wire.Invoke{Version: wire.Version, Start: start})
			if err != nil {
				t.Error(err)
			}
			return answer, nil
		}
		// The code that obeys is told before its bound, and has the rest of it to stop.
		if answer, panicked := call("obeys"); panicked != nil || answer.Error == nil || !answer.Error.Bounded {
			t.Errorf("code that stops: got %+v and a panic of %v, want an answer that says so", answer, panicked)
		}
		if answer, panicked := call("ignores"); panicked != wire.BoundPassed {
			t.Errorf("code that does not stop: got %+v and a panic of %v, want the environment to end", answer, panicked)
		}
		close(released)
		<-ended
	})
}

// TestCodeHasMostOfItsBound: code that ends in time, and looks at its context as a client of a store does, succeeds
// however short its bound is.
func TestCodeHasMostOfItsBound(t *testing.T) {
	t.Parallel()
	listed := child.NewStages([]runs.AnyStage{
		workflows.NewStage("takes", func(ctx context.Context, took time.Duration) (time.Duration, error) {
			if err := ctx.Err(); err != nil {
				return 0, errors.New("its context has ended before it began")
			}
			time.Sleep(took)
			return took, ctx.Err()
		}),
	})
	invoke := child.Function(listed, openStore(t), slog.New(slog.DiscardHandler))
	for _, tt := range []struct {
		bound, takes time.Duration
		bounded      bool
	}{
		{bound: 2 * time.Millisecond, takes: time.Millisecond},
		{bound: 100 * time.Millisecond, takes: 70 * time.Millisecond},
		{bound: 100 * time.Millisecond, takes: 80 * time.Millisecond, bounded: true},
		{bound: time.Second, takes: 700 * time.Millisecond},
		{bound: 10 * time.Second, takes: 9400 * time.Millisecond},
		{bound: 10 * time.Second, takes: 9600 * time.Millisecond, bounded: true},
	} {
		t.Run(tt.takes.String()+" of "+tt.bound.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := attempt("takes", strconv.FormatInt(int64(tt.takes), 10))
				start.Bound = tt.bound
				answer, err := invoke(t.Context(), wire.Invoke{Version: wire.Version, Start: start})
				if err != nil || (answer.Error != nil) != tt.bounded || answer.Error != nil && !answer.Error.Bounded {
					t.Errorf("got %+v, %v; want it stopped at its bound: %t", answer.Error, err, tt.bounded)
				}
			})
		})
	}
}

// TestAnErrorThatIsNotTheBoundsIsTheCodesOwn: only what the bound ended has used up its run's money.
func TestAnErrorThatIsNotTheBoundsIsTheCodesOwn(t *testing.T) {
	t.Parallel()
	listed := child.NewStages([]runs.AnyStage{workflows.NewStage("fail", func(context.Context, int) (int, error) {
		time.Sleep(time.Millisecond)
		return 0, errPlain
	})})
	invoke := child.Function(listed, openStore(t), slog.New(slog.DiscardHandler))
	for _, tt := range []struct {
		name  string
		bound time.Duration
		ended bool // the venue has ended the context
	}{
		{name: "of a short bound", bound: 100 * time.Millisecond},
		{name: "of a long one", bound: time.Minute},
		{name: "when the venue has ended the context", bound: time.Minute, ended: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.ended {
					cancel()
				}
				start := attempt("fail", "0")
				start.Bound = tt.bound
				answer, err := invoke(ctx, wire.Invoke{Version: wire.Version, Start: start})
				if err != nil || answer.Error == nil || answer.Error.Bounded {
					t.Errorf("got %+v, %v; want an error that is not put down to the bound", answer.Error, err)
				}
			})
		})
	}
}
