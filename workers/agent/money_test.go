package agent

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
)

// budgetFailure checks that a task failed for want of money, for good, and returns the detail of its error.
func budgetFailure(t *testing.T, err error) (detail slot.Failure) {
	t.Helper()
	var failed *temporal.ApplicationError
	if !errors.As(err, &failed) || failed.Type() != wire.BudgetError ||
		!strings.Contains(failed.Message(), "raise --budget") {
		t.Fatalf("got %v, want an error of type %s that says what to do", err, wire.BudgetError)
	}
	if err := failed.Details(&detail); err != nil {
		t.Fatal(err)
	}
	return detail
}

// TestAnAttemptThatOutgrowsItsReservationAsksAndIsStopped runs an attempt that never ends by itself, on a host on
// which it costs about 69 millionths of a dollar in a second.
func TestAnAttemptThatOutgrowsItsReservationAsksAndIsStopped(t *testing.T) {
	t.Parallel()
	const reserved, most quantity.Money = 70_000_000, 210_000_000
	h := start(t, 1, nil)
	var mu sync.Mutex
	var asked []wire.Reserve
	h.frontend.Answer(func(ask wire.Reserve) wire.Reserved {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, ask)
		return wire.Reserved{Amount: min(ask.Want, most), Budget: most}
	})
	_, err := h.submit(t, order{Do: "hang"}, func(task *wire.Task) {
		task.Budgeted, task.Reserved = true, reserved
	}).Wait(t)
	detail := budgetFailure(t, err)
	if detail.Spent <= reserved/2 {
		t.Errorf("it was stopped at %s of the %s that it was given in the end", detail.Spent, most)
	}
	mu.Lock()
	defer mu.Unlock()
	grows := slices.IsSortedFunc(asked, func(a, b wire.Reserve) int { return int(a.Least - b.Least) })
	if len(asked) == 0 || asked[0].Least <= reserved || asked[0].Task != "score-1" || !grows {
		t.Errorf("it asked for %+v, want for more than the %s that it had, and then for more again", asked, reserved)
	}
	if records := h.records(); len(records) != 1 || records[0].Cause != predictor.CauseBudget ||
		records[0].Cost != detail.Spent {
		t.Errorf("Records: got %+v, want one that says why, with a cost of %s", records, detail.Spent)
	}
}

func TestAnAttemptThatCannotPayForItsStartDoesNotStart(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	h.frontend.Answer(func(wire.Reserve) wire.Reserved { return wire.Reserved{Budget: 5} })
	_, err := h.submit(t, order{Do: "report"}, func(task *wire.Task) { task.Budgeted = true }).Wait(t)
	if detail := budgetFailure(t, err); detail.Spent != 0 {
		t.Errorf("it has cost %s", detail.Spent)
	}
	if started := told[predictor.AttemptStarted](h.recorder); len(started) != 0 {
		t.Errorf("starts told: %+v, want none", started)
	}
}

// TestAnAttemptWhoseRunDoesNotAnswerIsTakenAgain: no answer is no refusal.
func TestAnAttemptWhoseRunDoesNotAnswerIsTakenAgain(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	back := make(chan struct{})
	h.frontend.Answer(func(wire.Reserve) wire.Reserved {
		<-back
		return wire.Reserved{Budget: 5}
	})
	task := h.submit(t, order{Do: "hang"}, func(task *wire.Task) {
		task.Budgeted, task.Reserved, task.MaxAttempts = true, 70_000_000, 1
	})
	for len(task.Failures()) == 0 && t.Context().Err() == nil {
		select {
		case <-task.Closed():
			_, err := task.Wait(t)
			t.Fatalf("it ended with %v before the run had answered", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	var lost *temporal.ApplicationError
	if !errors.As(task.Failures()[0], &lost) || lost.Type() != wire.LostError || lost.NonRetryable() {
		t.Errorf("without an answer it ended with %v, want that it is taken again", task.Failures()[0])
	}
	close(back)
	_, err := task.Wait(t)
	budgetFailure(t, err)
}

// TestAWorkflowThatRefusesToBeAskedIsAskedOnce: an answer that will not change is not waited for.
func TestAWorkflowThatRefusesToBeAskedIsAskedOnce(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	h.frontend.Reject("unknown update " + wire.ReserveUpdate)
	began := time.Now()
	_, err := h.submit(t, order{Do: "report"}, func(task *wire.Task) { task.Budgeted = true }).Wait(t)
	budgetFailure(t, err)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it was asked for %s", took)
	}
}

// TestAnAttemptThatCannotPayForTheWaitForItsChildIsStopped has a child that is never ready, on the same host as above.
func TestAnAttemptThatCannotPayForTheWaitForItsChildIsStopped(t *testing.T) {
	t.Parallel()
	const most quantity.Money = 70_000_000
	h := start(t, 1, func(o *Options) {
		o.Environment = map[string]string{"TEST_STUCK": "1"}
		o.ReadyTimeout = time.Hour
	})
	h.frontend.Answer(func(ask wire.Reserve) wire.Reserved {
		return wire.Reserved{Amount: min(ask.Want, most), Budget: most}
	})
	_, err := h.submit(t, order{Do: "report"}, func(task *wire.Task) { task.Budgeted = true }).Wait(t)
	detail := budgetFailure(t, err)
	records := h.records() // on a busy machine an answer may come late, and the task be taken again
	var spent quantity.Money
	for _, record := range records {
		spent += record.Cost
	}
	if len(records) == 0 || records[len(records)-1].Outcome != predictor.Failed ||
		records[len(records)-1].Cause != predictor.CauseBudget ||
		spent != detail.Spent || spent <= 0 {
		t.Errorf("Records: got %+v, want that the last says why, and costs of %s", records, detail.Spent)
	}
}

func TestATaskWithoutABudgetNeverAsks(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	h.frontend.Answer(func(wire.Reserve) wire.Reserved {
		t.Error("it asked for money")
		return wire.Reserved{}
	})
	h.done(t, order{Do: "report"})
}
