package spill

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
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
			Version: wire.Version, Run: "r", Stage: stage, ID: id, MaxAttempts: 3, Budgeted: true, Reserved: reserved, Timeout: timeout,
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
	if got := bound(venue, class, 0, venue.Price(class, 3*time.Second+venue.ColdStart), true); got < 2900*time.Millisecond || got > 3*time.Second {
		t.Errorf("with money for 3 s: bounded to %s", got)
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
