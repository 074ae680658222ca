package slot_test

import (
	"context"
	"encoding/json"
	"sync"
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

// TestATaskOfARunWithoutABudgetHearsOfOneThatComesLater lets a task run on while it costs ever more: it asks seldom, is
// never stopped for want of an answer, and obeys the budget once there is one.
func TestATaskOfARunWithoutABudgetHearsOfOneThatComesLater(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	var mu sync.Mutex
	var asked []wire.Reserve
	answers := []wire.Reserved{{Unlimited: true, Amount: 120}, {Amount: 120, Budget: 150}, {Amount: 150, Budget: 150}}
	f.Answer(func(ask wire.Reserve) wire.Reserved {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, ask)
		return answers[min(len(asked), len(answers))-1]
	})
	w := start(t, c, func(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
		a, err := slot.Begin(ctx, task, input, nil, time.Now())
		if err != nil {
			return wire.Result{}, err
		}
		defer a.Close()
		// until goes from look to look until the attempt may go on no more, or the cost is reached.
		until := func(from, to quantity.Money) quantity.Money {
			for cost := from; cost < to; cost++ {
				if !a.Afford(ctx, cost, 1) {
					return cost
				}
			}
			return to
		}
		await := func(what string, happened func() bool) {
			for limit := time.Now().Add(time.Minute); !happened(); time.Sleep(time.Millisecond) {
				if time.Now().After(limit) {
					t.Errorf("waited a minute until %s", what)
					return
				}
			}
		}
		heard := func(budgeted bool, reserved quantity.Money) {
			await("the answer is heard", func() bool {
				state := a.State()
				return state.Reserved == reserved && state.Budgeted == budgeted
			})
		}
		if at := until(0, 50); at != 50 {
			t.Errorf("without a budget it was stopped at %d", at)
		}
		heard(false, 120)
		if at := until(50, 95); at != 95 {
			t.Errorf("without a budget it was stopped at %d", at)
		}
		heard(true, 120)
		a.Afford(ctx, 96, 1)
		heard(true, 150)
		if at := until(97, 200); at > 152 {
			t.Errorf("with 150 for it, it went on until %d", at)
		}
		await("the refusal is heard", func() bool { return a.Unaffordable().Outcome == predictor.Failed })
		return wire.Result{Output: input}, nil
	})
	set(t, w, 1, false)
	rich := task("score-1")
	rich.Asks = true
	if _, err := f.Submit(t, stage.Queue(), rich, "in").Wait(t); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for i, ask := range asked {
		if ask.Unlimited != (i < 2) {
			t.Errorf("question %d of %d: %+v; want two without a budget, and the others within it", i, len(asked), ask)
		}
	}
}
