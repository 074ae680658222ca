package slot_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/slot/slottest"
)

// TestNoAnswerIsNoRefusal asks for money while the run does not answer, then is refused, then is given it.
func TestNoAnswerIsNoRefusal(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	back := make(chan struct{})
	var given atomic.Int64
	f.Answer(func(wire.Reserve) wire.Reserved {
		<-back
		return wire.Reserved{Amount: quantity.Money(given.Load()), Budget: 100}
	})
	w := start(t, c, func(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
		a, err := slot.Begin(ctx, task, input, nil, time.Now())
		if err != nil {
			return wire.Result{}, err
		}
		defer a.Close()
		if a.Secure(ctx, 10, 100*time.Millisecond) {
			t.Error("without an answer it may go on")
		}
		if ending := a.Unaffordable(); ending.Outcome != predictor.Lost || ending.Permanent {
			t.Errorf("without an answer: got %+v, want that the task is taken again", ending)
		}
		close(back)
		if a.Secure(ctx, 11, time.Hour) {
			t.Error("refused, it may go on")
		}
		if ending := a.Unaffordable(); ending.Outcome != predictor.Failed || !ending.Permanent {
			t.Errorf("refused: got %+v, want that the task has failed", ending)
		}
		given.Store(12)
		if !a.Secure(ctx, 12, time.Hour) {
			t.Error("with money for it it may not go on")
		}
		return wire.Result{Output: input}, nil
	})
	set(t, w, 1, false)
	poor := task("score-1")
	poor.Budgeted = true
	if _, err := f.Submit(t, stage.Queue(), poor, "in").Wait(t); err != nil {
		t.Error(err)
	}
}
