package slot

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/temporal"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestAnAttemptIsConcludedByItsOutcome(t *testing.T) {
	t.Parallel()
	checkpoint := activities.Ref{Digest: "d", Bytes: 1}
	held := quantity.Size{Memory: 100}
	for _, tt := range []struct {
		name      string
		attempts  int
		before    wire.Heartbeat
		ending    Ending
		after     wire.Heartbeat
		kind      string // of the application error; empty for none
		final     bool
		cancelled bool
		told      activities.Ref // the checkpoint that the error names
	}{
		{
			name: "success adds its cost and fails nothing", attempts: 3,
			before: wire.Heartbeat{Spent: 5, Failures: 1}, ending: Ending{Outcome: predictor.Succeeded, Cost: 7},
			after: wire.Heartbeat{Spent: 12, Failures: 1},
		},
		{
			name: "a failure is tried again and keeps its checkpoint", attempts: 3,
			before: wire.Heartbeat{Checkpoint: checkpoint}, ending: Ending{Outcome: predictor.Failed, Cost: 7},
			after: wire.Heartbeat{Checkpoint: checkpoint, Failures: 1, Spent: 7}, kind: wire.StageError,
		},
		{
			name: "the last allowed failure is final", attempts: 3,
			before: wire.Heartbeat{Failures: 2}, ending: Ending{Outcome: predictor.Failed},
			after: wire.Heartbeat{Failures: 3}, kind: wire.StageError, final: true,
		},
		{
			name: "a final failure tells of the checkpoint", attempts: 1,
			before: wire.Heartbeat{Checkpoint: checkpoint}, ending: Ending{Outcome: predictor.TimedOut},
			after: wire.Heartbeat{Checkpoint: checkpoint, Failures: 1}, kind: wire.TimeoutError, final: true,
			told: checkpoint,
		},
		{
			name: "so does a cancellation", attempts: 3,
			before: wire.Heartbeat{Checkpoint: checkpoint}, ending: Ending{Outcome: predictor.Cancelled},
			after: wire.Heartbeat{Checkpoint: checkpoint}, cancelled: true, told: checkpoint,
		},
		{
			name: "no allowance means one attempt", ending: Ending{Outcome: predictor.Failed},
			after: wire.Heartbeat{Failures: 1}, kind: wire.StageError, final: true,
		},
		{
			name: "a permanent failure is final at once", attempts: 3,
			ending: Ending{Outcome: predictor.Failed, Permanent: true},
			after:  wire.Heartbeat{Failures: 1}, kind: wire.StageError, final: true,
		},
		{
			name: "running out of memory says at which grant", attempts: 3,
			before: wire.Heartbeat{LargestFailed: 40}, ending: Ending{Outcome: predictor.OutOfMemory, Grant: held},
			after: wire.Heartbeat{OutOfMemory: 1, LargestFailed: 100}, kind: wire.MemoryError,
		},
		{
			name: "running out of memory uses up no attempt", attempts: 1,
			before: wire.Heartbeat{OutOfMemory: 3, LargestFailed: 100},
			ending: Ending{Outcome: predictor.OutOfMemory, Grant: quantity.Size{Memory: 200}},
			after:  wire.Heartbeat{OutOfMemory: 4, LargestFailed: 200}, kind: wire.MemoryError,
		},
		{
			name: "but it does not go on for ever", attempts: 1, before: wire.Heartbeat{OutOfMemory: 10, LargestFailed: 100},
			ending: Ending{Outcome: predictor.OutOfMemory, Grant: quantity.Size{Memory: 200}},
			after:  wire.Heartbeat{OutOfMemory: 11, LargestFailed: 200}, kind: wire.MemoryError, final: true,
		},
		{
			name: "device memory that nobody granted cannot grow, so it counts", attempts: 1,
			ending: Ending{Outcome: predictor.OutOfMemory, Cause: predictor.CauseDeviceMemory},
			after:  wire.Heartbeat{Failures: 1, OutOfMemory: 1}, kind: wire.MemoryError, final: true,
		},
		{
			name: "memory that was refused for another reason than the grant counts", attempts: 2,
			before: wire.Heartbeat{OutOfMemory: 3, LargestFailed: 100},
			ending: Ending{Outcome: predictor.OutOfMemory, Counts: true, Grant: quantity.Size{Memory: 200}},
			after:  wire.Heartbeat{Failures: 1, OutOfMemory: 4, LargestFailed: 200}, kind: wire.MemoryError,
		},
		{
			name: "running out of time counts", attempts: 2, ending: Ending{Outcome: predictor.TimedOut},
			after: wire.Heartbeat{Failures: 1}, kind: wire.TimeoutError,
		},
		{
			name: "a lost attempt counts for nothing", attempts: 1, ending: Ending{Outcome: predictor.Lost, Cost: 3},
			after: wire.Heartbeat{Spent: 3}, kind: wire.LostError,
		},
		{
			name: "a lost attempt is tried again even when marked permanent", attempts: 1,
			ending: Ending{Outcome: predictor.Lost, Permanent: true},
			kind:   wire.LostError,
		},
		{
			name: "a refusal goes to the pool and counts for nothing", attempts: 1, ending: Ending{Outcome: predictor.Refused},
			kind: wire.RefusedError, final: true,
		},
		{
			name: "a venue's own limit counts and goes to the pool", attempts: 3,
			ending: Ending{Outcome: predictor.TimedOut, ToPool: true},
			after:  wire.Heartbeat{Failures: 1}, kind: wire.RefusedError, final: true,
		},
		{
			name: "unless no attempt is left", attempts: 1, ending: Ending{Outcome: predictor.TimedOut, ToPool: true},
			after: wire.Heartbeat{Failures: 1}, kind: wire.TimeoutError, final: true,
		},
		{
			name: "what may be a venue's lack has one try at the pool in any case", attempts: 1,
			ending: Ending{Outcome: predictor.Failed, ToPool: true},
			after:  wire.Heartbeat{Failures: 1}, kind: wire.RefusedError, final: true,
		},
		{
			name: "but not where a retry cannot help", attempts: 1,
			ending: Ending{Outcome: predictor.Failed, ToPool: true, Permanent: true},
			after:  wire.Heartbeat{Failures: 1}, kind: wire.StageError, final: true,
		},
		{
			name: "a cancellation counts for nothing", attempts: 1, ending: Ending{Outcome: predictor.Cancelled, Cost: 2},
			after: wire.Heartbeat{Spent: 2}, cancelled: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			task := wire.Task{ID: "score-1", Stage: predictor.StageID{Name: "score"}, MaxAttempts: tt.attempts}
			after, err := Conclude(task, 2, tt.before, tt.ending)
			if diff := cmp.Diff(tt.after, after); diff != "" {
				t.Errorf("left for the next attempt (-want +got):\n%s", diff)
			}
			var cancelled *temporal.CanceledError
			if got := errors.As(err, &cancelled); got != tt.cancelled {
				t.Errorf("cancelled: got %v (%v), want %v", got, err, tt.cancelled)
			}
			var failed *temporal.ApplicationError
			if got := errors.As(err, &failed); got != (tt.kind != "") {
				t.Fatalf("application error: got %v, want type %q", err, tt.kind)
			}
			var text string
			var detail Failure
			switch {
			case failed != nil:
				err = failed.Details(&detail)
			case cancelled != nil:
				err = cancelled.Details(&text, &detail)
			}
			if err != nil || detail.Checkpoint != tt.told {
				t.Errorf("the error names checkpoint %+v (%v), want %+v", detail.Checkpoint, err, tt.told)
			}
			want := predictor.Next("")
			switch {
			case tt.kind == wire.RefusedError:
				want = predictor.NextPool
			case tt.final || tt.cancelled:
				want = predictor.NextNothing
			}
			if got := next(task, 2, tt.before, tt.ending); got != want {
				t.Errorf("next: got %q, want %q", got, want)
			}
			if failed != nil && (failed.Type() != tt.kind || failed.NonRetryable() != tt.final) {
				t.Errorf("error: got type %q, final %v, want %q, %v", failed.Type(), failed.NonRetryable(), tt.kind, tt.final)
			}
		})
	}
}

func TestAnErrorTellsStageTaskAttemptMessageAndStack(t *testing.T) {
	t.Parallel()
	task := wire.Task{ID: "score-1", Stage: predictor.StageID{Name: "score"}, MaxAttempts: 2}
	_, err := Conclude(task, 4, wire.Heartbeat{Failures: 1, Spent: 1},
		Ending{Outcome: predictor.Failed, Message: "boom", Stack: "goroutine 1", Cost: 2})
	var failed *temporal.ApplicationError
	if !errors.As(err, &failed) {
		t.Fatalf("got %v, want an application error", err)
	}
	told := "stage score, task score-1, attempt 4: boom (2 of 2 attempts failed; 2 more got lost, which counts for " +
		"nothing)"
	if failed.Message() != told {
		t.Errorf("message: got %q, want %q", failed.Message(), told)
	}
	var got Failure
	if err := failed.Details(&got); err != nil {
		t.Fatal(err)
	}
	want := Failure{
		Stage: "score", Task: "score-1", Attempt: 4, Failures: 2, Outcome: predictor.Failed,
		Cause: predictor.CausePanic, Message: "boom", Stack: "goroutine 1", Spent: 3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
}

func TestTheNumberOfTheLastAttemptGoesTogetherWithWhatWasAllowed(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		attempt, allowed int
		before           wire.Heartbeat
		ending           Ending
	}{
		"attempt 1: boom":                          {1, 1, wire.Heartbeat{}, Ending{}},
		"attempt 3: boom (3 of 3 attempts failed)": {3, 3, wire.Heartbeat{Failures: 2}, Ending{}},
		"attempt 4: boom (1 of 1 attempt failed; 3 more ran out of memory, which counts for nothing)": {
			4, 1, wire.Heartbeat{OutOfMemory: 3}, Ending{},
		},
		"attempt 6: boom (2 of 2 attempts failed; 3 more ran out of memory and 1 got lost, which counts for nothing)": {
			6, 2, wire.Heartbeat{OutOfMemory: 3, Failures: 1}, Ending{},
		},
		"attempt 1: boom (not tried again, although 2 of 3 attempts are left: the next one would fail in the same way)": {
			1, 3, wire.Heartbeat{}, Ending{Permanent: true},
		},
		"attempt 2: boom": {2, 3, wire.Heartbeat{}, Ending{}}, // it is tried again
	} {
		task := wire.Task{ID: "score-1", Stage: predictor.StageID{Name: "score"}, MaxAttempts: c.allowed}
		c.ending.Outcome, c.ending.Message = predictor.Failed, "boom"
		_, err := Conclude(task, c.attempt, c.before, c.ending)
		var failed *temporal.ApplicationError
		if !errors.As(err, &failed) || failed.Message() != "stage score, task score-1, "+want {
			t.Errorf("got %v, want ... %s", err, want)
		}
	}
}

func TestClippedTextIsShortAndValid(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Repeat(rapid.StringN(1, 20, -1).Draw(t, "text"), 20)
		limit := rapid.IntRange(20, 400).Draw(t, "limit")
		got := clip(text, limit)
		if len(got) > limit || !utf8.ValidString(got) {
			t.Fatalf("clip(%q, %d): got %q of %d bytes", text, limit, got, len(got))
		}
		if len(text) <= limit && got != text {
			t.Fatalf("clip(%q, %d): got %q, want it unchanged", text, limit, got)
		}
	})
}
