package slot_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/slot/slottest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var stage = predictor.StageID{App: "digits", Build: "b1", Name: "score"}

func task(id string) wire.Task {
	return wire.Task{Version: wire.Version, Run: "r", Pipeline: "p", Stage: stage, ID: id, MaxAttempts: 3}
}

// start returns a worker without slots that is closed when the test ends.
func start(t *testing.T, c client.Client, handler slot.Handler) *slot.Worker {
	t.Helper()
	w := slot.New(c, stage, handler, slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		if err := w.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close the worker: %v", err)
		}
	})
	return w
}

func set(t *testing.T, w *slot.Worker, slots int, poolOnly bool) {
	t.Helper()
	if err := w.Set(slots, poolOnly); err != nil {
		t.Fatalf("Set(%d, %v): %v", slots, poolOnly, err)
	}
}

func echo(_ context.Context, _ wire.Task, input json.RawMessage) (wire.Result, error) {
	return wire.Result{Output: input, Venue: predictor.Pool}, nil
}

func TestBothQueuesAreServedByOneSlotAndZeroSlotsPollNothing(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	w := start(t, c, echo)
	set(t, w, 1, true)
	f.AwaitPolls(t, stage.Queue(), 1)
	f.AwaitPolls(t, stage.PoolQueue(), 1)
	for _, queue := range []string{stage.PoolQueue(), stage.Queue(), stage.PoolQueue()} {
		result, err := f.Submit(t, queue, task("score-1"), map[string]int{"x": 7}).Wait(t)
		if err != nil || string(result.Output) != `{"x":7}` {
			t.Errorf("result from %s: got %s, %v, want the input", queue, result.Output, err)
		}
	}
	set(t, w, 1, false)
	f.AwaitPolls(t, stage.PoolQueue(), 0)
	set(t, w, 0, true)
	f.AwaitPolls(t, stage.Queue(), 0)
}

func TestLoweringToZeroInterruptsNothing(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	started, finish := make(chan struct{}), make(chan struct{})
	w := start(t, c, func(ctx context.Context, _ wire.Task, _ json.RawMessage) (wire.Result, error) {
		close(started)
		select {
		case <-finish:
			return wire.Result{Output: json.RawMessage(`"whole"`)}, nil
		case <-ctx.Done():
			return wire.Result{}, ctx.Err()
		}
	})
	set(t, w, 2, false)
	running := f.Submit(t, stage.Queue(), task("score-1"), nil)
	<-started
	set(t, w, 0, false)
	f.AwaitPolls(t, stage.Queue(), 0)
	if got := w.Running(); got != 1 {
		t.Errorf("running after lowering: got %d, want 1", got)
	}
	if w.Idle() {
		t.Error("idle while an attempt runs")
	}
	close(finish)
	if result, err := running.Wait(t); err != nil || string(result.Output) != `"whole"` {
		t.Errorf("result: got %s, %v, want the whole output", result.Output, err)
	}
}

func TestNeverMoreAttemptsThanSlots(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	var now, most atomic.Int64
	w := start(t, c, func(context.Context, wire.Task, json.RawMessage) (wire.Result, error) {
		for n := now.Add(1); ; {
			if old := most.Load(); n <= old || most.CompareAndSwap(old, n) {
				break
			}
		}
		now.Add(-1)
		return wire.Result{Output: json.RawMessage("1")}, nil
	})
	set(t, w, 3, false)
	var all []*slottest.Activity
	for range 50 {
		all = append(all, f.Submit(t, stage.Queue(), task("score-1"), nil))
	}
	for _, a := range all {
		if _, err := a.Wait(t); err != nil {
			t.Error(err)
		}
	}
	if got := most.Load(); got > 3 {
		t.Errorf("attempts at a time: got %d, want at most 3", got)
	}
}

func TestCloseInterruptsWhatDoesNotEndInTime(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	started, cause := make(chan struct{}), make(chan error, 1)
	w := start(t, c, func(ctx context.Context, _ wire.Task, _ json.RawMessage) (wire.Result, error) {
		close(started)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return wire.Result{}, temporal.NewNonRetryableApplicationError("lost", "test", nil)
	})
	set(t, w, 1, false)
	a := f.Submit(t, stage.Queue(), task("score-1"), nil)
	<-started
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	if got := <-cause; !errors.Is(got, slot.ErrInterrupted) {
		t.Errorf("cause: got %v, want ErrInterrupted", got)
	}
	if _, err := a.Wait(t); err == nil {
		t.Error("the interrupted attempt: got no error, want the handler's")
	}
	if err := w.Set(1, false); !errors.Is(err, slot.ErrClosed) {
		t.Errorf("Set after Close: got %v, want ErrClosed", err)
	}
}

func TestATaskThatDoesNotReadIsRefusedForGood(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	w := start(t, c, echo)
	set(t, w, 1, false)
	future, elsewhere, nameless := task("score-1"), task("score-1"), task("")
	future.Version = 99
	elsewhere.Stage.Name = "other"
	for _, tt := range []struct {
		name      string
		arguments []any
	}{
		{"no arguments", nil},
		{"a task that is text", []any{"task", json.RawMessage("1")}},
		{"a version of the future", []any{future, json.RawMessage("1")}},
		{"another stage's task", []any{elsewhere, json.RawMessage("1")}},
		{"a task without an ID", []any{nameless, json.RawMessage("1")}},
	} {
		_, err := f.SubmitOf(t, "r", stage.Queue(), tt.arguments...).Wait(t)
		var failed *temporal.ApplicationError
		if !errors.As(err, &failed) || failed.Type() != slot.MalformedError || !failed.NonRetryable() {
			t.Errorf("%s: got %v, want a final %s", tt.name, err, slot.MalformedError)
		}
	}
}

// TestAttackATaskThatItsRunHasNotScheduledIsRefused puts tasks on a stage's queues as whoever reaches Temporal may: by
// an activity without a workflow, or of another.
func TestAttackATaskThatItsRunHasNotScheduledIsRefused(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	w := start(t, c, echo)
	set(t, w, 1, true)
	nobodys := task("score-1")
	nobodys.Run = ""
	for _, tt := range []struct {
		name, workflow string
		task           wire.Task
	}{
		{"no workflow", "", task("score-1")},
		{"no workflow and no run", "", nobodys},
		{"another workflow", "other", task("score-1")},
		{"a workflow whose name begins alike", "r2", task("score-1")},
		{"no run", "r", nobodys},
	} {
		_, err := f.SubmitOf(t, tt.workflow, stage.PoolQueue(), tt.task, json.RawMessage("1")).Wait(t)
		var failed *temporal.ApplicationError
		if !errors.As(err, &failed) || failed.Type() != slot.MalformedError || !failed.NonRetryable() {
			t.Errorf("%s: got %v, want a final %s", tt.name, err, slot.MalformedError)
		}
	}
	for _, workflow := range []string{"r", "r/score-1"} {
		if _, err := f.SubmitOf(t, workflow, stage.PoolQueue(), task("score-1"), json.RawMessage("1")).Wait(t); err != nil {
			t.Errorf("workflow %s: %v, want the task to run", workflow, err)
		}
	}
}

func TestTheNextAttemptKnowsWhatTheLastOneLeft(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	checkpoint := activities.Ref{Digest: "abc", Bytes: 3}
	recorder := &recorder{}
	w := start(t, c, func(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
		a, err := slot.Begin(ctx, task, nil, nil, time.Now())
		if err != nil {
			return wire.Result{}, err
		}
		ending := slot.Ending{Outcome: predictor.Failed, Message: "not yet", Cost: 10}
		if state := a.State(); a.Number == 3 {
			ending = slot.Ending{Outcome: predictor.Succeeded, Cost: 1}
			if want := (wire.Heartbeat{Failures: 2, Spent: 20, Checkpoint: checkpoint, Step: 2}); !cmp.Equal(want, state) {
				t.Errorf("third attempt starts from %+v, want %+v", state, want)
			}
		}
		a.Progress(wire.Progress{Step: a.Number})
		a.Checkpoint(checkpoint)
		return a.End(ctx, slot.Durable{Recorder: recorder}, a.Record(predictor.Pool, "h", ending), ending, input)
	})
	set(t, w, 1, false)
	result, err := f.Submit(t, stage.Queue(), task("score-1"), "in").Wait(t)
	want := wire.Result{Output: json.RawMessage(`"in"`), Venue: predictor.Pool, Cost: 21}
	if diff := cmp.Diff(want, result); err != nil || diff != "" {
		t.Errorf("result (-want +got), error %v:\n%s", err, diff)
	}
	if got := recorder.count.Load(); got != 3 {
		t.Errorf("Records: got %d, want 3", got)
	}
}

func TestACheckpointReachesTheServerAtOnceAndACancellationTheAttempt(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	w := start(t, c, func(ctx context.Context, task wire.Task, _ json.RawMessage) (wire.Result, error) {
		a, err := slot.Begin(ctx, task, nil, nil, time.Now())
		if err != nil {
			return wire.Result{}, err
		}
		// the second and third come while Temporal's worker holds details back
		for _, digest := range []string{"first", "second", "third"} {
			a.Checkpoint(activities.Ref{Digest: digest})
		}
		<-ctx.Done()
		outcome, message := slot.Stopped(ctx)
		ending := slot.Ending{Outcome: outcome, Message: message}
		return a.End(ctx, slot.Durable{Recorder: &recorder{}}, a.Record(predictor.Pool, "h", ending), ending, nil)
	})
	set(t, w, 1, false)
	a := f.Submit(t, stage.Queue(), task("score-1"), nil)
	a.AwaitDetails(t, "the third checkpoint", func(h wire.Heartbeat) bool { return h.Checkpoint.Digest == "third" })
	a.Cancel()
	_, err := a.Wait(t)
	if _, cancelled := errors.AsType[*temporal.CanceledError](err); !cancelled {
		t.Errorf("got %v, want a cancellation", err)
	}
}

// recorder counts Records; it fails every first try.
type recorder struct{ count, tries atomic.Int64 }

func (r *recorder) Record(context.Context, predictor.Record) error {
	if r.tries.Add(1) == 1 {
		return errors.New("the stream has no leader")
	}
	r.count.Add(1)
	return nil
}

func (r *recorder) Tell(predictor.Event) {}
