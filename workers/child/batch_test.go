package child_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/child"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// several is an invoke of these attempts.
func several(starts ...wire.StartAttempt) wire.Invoke {
	for i := range starts {
		starts[i].Task.ID += string(rune('a' + i))
	}
	return wire.Invoke{Version: wire.Version, Start: starts[0], More: starts[1:]}
}

// TestTasksOfAnInvokeAreAnsweredEachForItself: errors and panics are those of one task, and the marks tell where each
// began.
func TestTasksOfAnInvokeAreAnsweredEachForItself(t *testing.T) {
	t.Parallel()
	var printed bytes.Buffer
	invoke := child.Batch(stages(), openStore(t), slog.New(slog.DiscardHandler), &printed)
	got, err := invoke(t.Context(), several(attempt("double", "4"), attempt("fail", `"permanent"`),
		attempt("panic", `"boom"`), attempt("nobody", "1"), attempt("count", "3")))
	if err != nil || len(got.Answers) != 5 || got.Version != wire.Version {
		t.Fatalf("got %+v, %v, want five answers", got, err)
	}
	answers := got.Answers
	if string(answers[0].Output) != "8" || answers[0].Wall <= 0 || answers[0].Error != nil {
		t.Errorf("the first: %+v", answers[0])
	}
	if answers[1].Error == nil || !answers[1].Error.Permanent || answers[2].Error == nil || answers[2].Error.Stack == "" ||
		answers[3].Error == nil {
		t.Errorf("those that fail: %+v, %+v, %+v", answers[1].Error, answers[2].Error, answers[3].Error)
	}
	if answers[4].Progress == nil || answers[4].Progress.Step != 3 || answers[4].Checkpoint == nil {
		t.Errorf("the last tells what it reported: %+v", answers[4])
	}
	if lines := strings.Split(printed.String(), "\n"); len(lines) != 6 || lines[2] != wire.BatchMark(3, 5, "panic-7c") {
		t.Errorf("marks: got %q", lines)
	}
	if _, err := invoke(t.Context(), wire.Invoke{Version: wire.Version + 1}); !errors.Is(err, wire.ErrVersion) {
		t.Errorf("another version: got %v, want %v", err, wire.ErrVersion)
	}
}

// TestABatchKeepsWithinWhatAnInvokeReturnsAndLasts: what does not fit is not begun, or is told to have run for nothing.
func TestABatchKeepsWithinWhatAnInvokeReturnsAndLasts(t *testing.T) {
	t.Parallel()
	listed := child.NewStages([]runs.AnyStage{
		workflows.NewStage("write", func(_ context.Context, megabytes int) (string, error) {
			return strings.Repeat("x", megabytes<<20), nil
		}),
		workflows.NewStage("take", func(_ context.Context, seconds int) (int, error) {
			time.Sleep(time.Duration(seconds) * time.Second)
			return seconds, nil
		}),
	})
	for _, tt := range []struct {
		name    string
		stage   string
		asked   []string
		left    time.Duration // of the invoke; 0 for no end
		begun   int
		crowded bool // the last of them
	}{
		{name: "three of two megabytes", stage: "write", asked: []string{"2", "2", "2"}, begun: 2},
		{
			name: "one that is larger than those before", stage: "write", asked: []string{"1", "1", "5", "1"}, begun: 3,
			crowded: true,
		},
		{name: "one that is too large for any", stage: "write", asked: []string{"7", "1"}, begun: 1},
		{name: "an end in time", stage: "take", asked: []string{"1", "1", "1"}, left: 10 * time.Second, begun: 3},
		{name: "an end before a third", stage: "take", asked: []string{"3", "3", "3"}, left: 10 * time.Second, begun: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store := openStore(t)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				if tt.left > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), tt.left)
				}
				defer cancel()
				var starts []wire.StartAttempt
				for _, input := range tt.asked {
					starts = append(starts, attempt(tt.stage, input))
				}
				got, err := child.Batch(listed, store, slog.New(slog.DiscardHandler), io.Discard)(ctx, several(starts...))
				if err != nil || len(got.Answers) != tt.begun {
					t.Fatalf("got %d answers, %v, want %d", len(got.Answers), err, tt.begun)
				}
				for i, answer := range got.Answers {
					if crowded := answer.Error != nil; crowded != (tt.crowded && i == tt.begun-1) ||
						crowded && (!answer.Error.Crowded || answer.Output != nil) {
						t.Errorf("answer %d: %+v", i, answer.Error)
					}
				}
			})
		})
	}
}

// TestATaskOfABatchHasItsStagesTimeout: the others do not wait for ever for one that hangs.
func TestATaskOfABatchHasItsStagesTimeout(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	synctest.Test(t, func(t *testing.T) {
		released, ended := make(chan struct{}), make(chan struct{})
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
		call := func(stage string) (answers wire.Answers, panicked any) {
			defer func() { panicked = recover() }()
			first := attempt(stage, "1")
			first.Task.Timeout = time.Second
			answers, err := child.Batch(listed, store, slog.New(slog.DiscardHandler), io.Discard)(t.Context(),
				several(first, first))
			if err != nil {
				t.Error(err)
			}
			return answers, nil
		}
		if answers, panicked := call("obeys"); panicked != nil || len(answers.Answers) != 2 ||
			answers.Answers[0].Error == nil || !answers.Answers[0].Error.TimedOut {
			t.Errorf("code that stops: got %+v and a panic of %v", answers, panicked)
		}
		if answers, panicked := call("ignores"); panicked != wire.TimeoutPassed {
			t.Errorf("code that does not stop: got %+v and a panic of %v, want the environment to end", answers, panicked)
		}
		close(released)
		<-ended
	})
}
