package spill

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot/slottest"
)

func TestAnInvokeIsBoundedByTheMoneyForItsTask(t *testing.T) {
	t.Parallel()
	bounds := make(chan time.Duration, 8)
	s := start(t, func(_ context.Context, start wire.StartAttempt, _ quantity.Bytes) (activities.FunctionAnswer, error) {
		bounds <- start.Bound
		if start.Task.ID == "stopped" {
			return answer(t, wire.Answer{Error: &wire.StageFailure{Message: "context deadline exceeded", Bounded: true}}), nil
		}
		return answer(t, wire.Answer{Output: start.Input}), nil
	})
	class := 512 * quantity.MiB
	most := venue.Price(class, venue.MaxDuration+venue.ColdStart)
	s.frontend.Answer(func(wire.Reserve) wire.Reserved { return wire.Reserved{Amount: 5, Budget: 5} })
	run := func(id string, reserved quantity.Money, timeout time.Duration) error {
		_, err := s.frontend.Submit(t, stage.Queue(), wire.Task{
			Version: wire.Version, Run: "r", Stage: stage, ID: id, MaxAttempts: 3, Budgeted: true, Reserved: reserved,
			Timeout: timeout,
		}, "in").Wait(t)
		return err
	}
	refusal := func(err error) bool {
		var failed *temporal.ApplicationError
		return errors.As(err, &failed) && failed.Type() == wire.RefusedError
	}
	if err := run("poor", 5, 0); !refusal(err) || len(bounds) > 0 {
		t.Errorf("without money for it: got %v and %d invokes, want it refused before that", err, len(bounds))
	}
	if err := run("rich", 2*most, 0); err != nil || <-bounds != 0 {
		t.Errorf("with money for all that it may take: got %v, want no bound", err)
	}
	if err := run("stopped", 2*most, 0); !refusal(err) {
		t.Errorf("stopped at its bound: got %v, want it given to the pool", err)
	}
}

// TestAnInvokeHasTheTimeAndTheMoneyThatItNeeds: with what it needs, its code has as long as expected, and it cannot
// cost more than it has.
func TestAnInvokeHasTheTimeAndTheMoneyThatItNeeds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		venue := venue
		venue.ColdStart = time.Duration(rapid.IntRange(0, 500).Draw(t, "cold start in ms")) * time.Millisecond
		venue.PerGiBSecond = quantity.Money(rapid.Int64Range(1000, 1_000_000_000).Draw(t, "price"))
		class := rapid.SampledFrom(venue.Classes).Draw(t, "class")
		timeout := time.Duration(rapid.IntRange(0, 100).Draw(t, "timeout in s")) * time.Second
		wall := predictor.Interval{High: rapid.Float64Range(0, 1000).Draw(t, "high")}
		expected := longest(venue, class, timeout, predictor.Prediction{Wall: wall})
		full := venue.Price(class, venue.ColdStart+limitOf(venue, timeout))
		left := quantity.Money(rapid.Int64Range(0, int64(full)).Draw(t, "left"))
		need := needs(venue, class, timeout, expected, left)
		if need > full {
			t.Fatalf("needs %d, and %d is the price of all that it may take", need, full)
		}
		given := max(left, need)
		within := bound(venue, class, timeout, given, true)
		if most := most(venue, class, timeout, within); most > given {
			t.Errorf("with %d: bounded to %s, it may cost %d", given, within, most)
		}
		if code := within - wire.BoundGrace(within); within > 0 && code < expected {
			t.Errorf("with %d: bounded to %s, the code has %s of the %s expected", given, within, code, expected)
		}
	})
}

// TestAShortTaskThatAsksForMoneyHasTimeForMoreThanItsCode: code that takes a moment is late by more than a share of
// that.
func TestAShortTaskThatAsksForMoneyHasTimeForMoreThanItsCode(t *testing.T) {
	t.Parallel()
	const class = 512 * quantity.MiB
	expected := 4 * time.Millisecond
	need := needs(venue, class, 0, expected, 0)
	if within := bound(venue, class, 0, need, true); within < expected+wire.MaxBoundGrace {
		t.Errorf("bounded to %s, want at least %s more than the %s expected", within, wire.MaxBoundGrace, expected)
	}
	if again := needs(venue, class, 0, expected, need); again > need {
		t.Errorf("with %s it asks for %s, want it to begin", need, again)
	}
}

// TestAnInvokeThatIsGivenUpCostsWhatItsMoneyBounds: it ends by itself when its money is used up, whoever gave it up and
// why.
func TestAnInvokeThatIsGivenUpCostsWhatItsMoneyBounds(t *testing.T) {
	t.Parallel()
	reserved := venue.Price(512*quantity.MiB, 20*time.Second)
	for name, tt := range map[string]struct {
		giveUp func(*testing.T, *stack, *slottest.Activity)
		want   predictor.Outcome
	}{
		"its task is cancelled": {func(t *testing.T, _ *stack, a *slottest.Activity) {
			t.Helper()
			a.Cancel()
			if _, err := a.Wait(t); err == nil {
				t.Error("cancelled: got no error")
			}
		}, predictor.Cancelled},
		"its worker is stopped": {func(_ *testing.T, s *stack, _ *slottest.Activity) { s.stop() }, predictor.Lost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bounds := make(chan time.Duration, 1)
			s := start(t, func(
				ctx context.Context, start wire.StartAttempt, _ quantity.Bytes,
			) (activities.FunctionAnswer, error) {
				bounds <- start.Bound
				<-ctx.Done()
				return activities.FunctionAnswer{}, ctx.Err()
			})
			s.expect(4 * time.Second)
			a := s.frontend.Submit(t, stage.Queue(), wire.Task{
				Version: wire.Version, Run: "r", Stage: stage, ID: "score-1", MaxAttempts: 3, Budgeted: true, Reserved: reserved,
			}, "in")
			if within := <-bounds; within != 20*time.Second {
				t.Errorf("told to end within %s, want that its money is for 20s", within)
			}
			tt.giveUp(t, s, a)
			if record := s.only(t); record.Outcome != tt.want || record.Cost != reserved {
				t.Errorf("Record: got %s for %s, want %s for all of %s", record.Outcome, record.Cost, tt.want, reserved)
			}
		})
	}
}

// expect has the plan say how long tasks take in the pool, and waits until the worker obeys. It has one slot: a poll
// that is open beside a task might bring a worker that stops the same task once more.
func (s *stack) expect(wall time.Duration) {
	plan := grant(1)
	plan.Sizings = []predictor.Sizing{{
		Stage: stage, Base: quantity.Size{Memory: 100 * quantity.MiB}, Learned: true,
		Wall: predictor.Interval{Mid: wall.Seconds(), High: wall.Seconds()},
	}}
	for range 2 { // the second is taken when the first is obeyed
		s.plans <- plan
	}
}

// TestAnInvokeThatIsLostCostsWhatItMay: before it begins, the server knows what it costs if nobody hears of it again.
func TestAnInvokeThatIsLostCostsWhatItMay(t *testing.T) {
	t.Parallel()
	invoked, end := make(chan struct{}), make(chan struct{})
	s := start(t, func(context.Context, wire.StartAttempt, quantity.Bytes) (activities.FunctionAnswer, error) {
		close(invoked)
		<-end
		return answer(t, wire.Answer{Output: []byte("1")}), nil
	})
	a := s.submit(t, nil)
	<-invoked
	want := venue.Price(512*quantity.MiB, venue.MaxDuration)
	a.AwaitDetails(t, "the price at its limit", func(left wire.Heartbeat) bool { return left.Running == want })
	close(end)
	if result, err := a.Wait(t); err != nil || result.Cost >= want {
		t.Errorf("got %s, %v; want what it has cost", result.Cost, err)
	}
}
