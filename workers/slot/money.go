package slot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// askAhead is for how many more looks an attempt shall have money: it asks for more when it has less.
	askAhead = 4
	// askShare is the part of a reservation that is asked before, so that an ordinary task never asks.
	askShare = 4
	// unboundedLooks is for how many looks an attempt without a budget asks nobody: nearly all have ended by then.
	unboundedLooks = 60
	// askTimeout bounds one try to ask, and askPause is the time between two.
	askTimeout = 20 * time.Second
	askPause   = 250 * time.Millisecond
)

// money is what an attempt may cost. The Attempt's mutex guards it.
type money struct {
	bounded  bool           // it may cost no more than what is reserved
	asks     bool           // its run answers also where it is not bounded
	reserved quantity.Money // for all attempts of the task together
	budget   quantity.Money // of the run, as it was told last; 0 when it was not
	asking   bool
	asked    bool // at least once
	refused  bool // the newest answer was less than was asked for at least
}

func newMoney(task wire.Task, left wire.Heartbeat) money {
	return money{
		bounded: task.Budgeted || left.Budgeted, asks: task.Budgeted || task.Asks,
		reserved: max(task.Reserved, left.Reserved),
	}
}

// Afford notes that the attempt has cost so much so far, and reports whether it may go on until the next look, which
// will cost next. It asks the run for more before what is reserved is used up; the attempt goes on meanwhile. Without a
// budget it may always go on, and asks so that the run knows what it costs, and it hears of a budget that comes later.
func (a *Attempt) Afford(ctx context.Context, cost, next quantity.Money) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state.Running = cost
	bounded, has := a.money.bounded, a.money.reserved
	switch {
	case !bounded && !a.money.asks:
		return true
	case !bounded:
		has = max(has, unboundedLooks*next)
	}
	spent := a.state.Spent + cost
	first := false // a short task never asks, so a longer one has one look to be answered
	if short := spent + max(askAhead*next, has/askShare) - has; short > 0 && !a.money.asking {
		first, a.money.asked, a.money.asking = !a.money.asked, true, true
		ask := wire.Reserve{Task: a.Task.ID, Least: has + max(short, 1), Unlimited: !bounded}
		ask.Want = max(ask.Least, 2*has)
		a.asks.Go(func() {
			ctx, cancel := a.untilClose(ctx)
			defer cancel()
			a.reserve(ctx, ask)
		})
	}
	return !bounded || first || spent+next <= has
}

// Secure waits until the attempt, which does not run yet, may cost so much, and reports whether it may. After patience
// without an answer it may not now; Unaffordable tells that from a refusal.
func (a *Attempt) Secure(ctx context.Context, cost quantity.Money, patience time.Duration) bool {
	a.mu.Lock()
	bounded, least, reserved := a.money.bounded, a.state.Spent+cost, a.money.reserved
	a.mu.Unlock()
	if !bounded || least <= reserved {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return a.reserve(ctx, wire.Reserve{Task: a.Task.ID, Least: least, Want: max(least, 2*reserved), Waits: true})
}

// Left is what the attempt may cost before it has to ask; bounded is false when it may cost anything.
func (a *Attempt) Left() (left quantity.Money, bounded bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(a.money.reserved-a.state.Spent, 0), a.money.bounded
}

// Unaffordable is how an attempt ends that may cost no more. Where the run has not answered, because it is blocked, its
// worker is away or another task holds the money, that is no failure: the next attempt asks again before it goes on.
func (a *Attempt) Unaffordable() Ending {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.money.refused {
		return Ending{
			Outcome: predictor.Lost, Cause: predictor.CauseBudget,
			Message: fmt.Sprintf("the run has not answered yet whether this task may cost more than %s: it is taken again",
				a.money.reserved),
		}
	}
	of := "the run's budget"
	if a.money.budget > 0 {
		of = fmt.Sprintf("the run's budget of %s", a.money.budget)
	}
	return Ending{
		Outcome: predictor.Failed, Cause: predictor.CauseBudget, Permanent: true,
		Message: fmt.Sprintf("%s has no more than %s for this task, and that is used up%s", of, a.money.reserved,
			wire.RaiseBudget),
	}
}

// reserve asks the run for more, until it answers or ctx ends, and reports whether it has given what was asked at
// least.
func (a *Attempt) reserve(ctx context.Context, ask wire.Reserve) bool {
	var given wire.Reserved
	err := errors.ErrUnsupported
	if reserver, ok := ctx.Value(reserverKey{}).(reserver); ok {
		given, err = reserver.ask(ctx, ask)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.money.asking = false
	if err != nil {
		if isFinal(err) {
			a.money.refused, a.money.asks = true, a.money.bounded
		}
		activity.GetLogger(ctx).Debug("the run was not asked for more money", "task", ask.Task, "error", err)
		return false
	}
	a.money.bounded, a.money.budget = !given.Unlimited, given.Budget
	a.money.reserved = max(a.money.reserved, given.Amount)
	a.state.Reserved, a.state.Budgeted = a.money.reserved, a.money.bounded
	a.money.asked = a.money.asked && !ask.Unlimited // who hears of a budget now asks again within it
	a.money.refused = a.money.bounded && !ask.Unlimited && given.Amount < ask.Least
	return !a.money.refused
}

// untilClose returns a context that ends when the attempt is over.
func (a *Attempt) untilClose(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	a.asks.Go(func() {
		select {
		case <-a.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, cancel
}

type reserverKey struct{}

// reserver asks the workflow that scheduled an activity.
type reserver struct {
	client interface {
		UpdateWorkflow(ctx context.Context, options client.UpdateWorkflowOptions) (client.WorkflowUpdateHandle, error)
	}
}

// ask tries until the workflow answers, refuses to be asked, is gone, or ctx ends. The ID is the same at every try and
// in later attempts, so that a wish that waits is one update however often it is made.
func (r reserver) ask(ctx context.Context, ask wire.Reserve) (given wire.Reserved, err error) {
	execution := activity.GetInfo(ctx).WorkflowExecution
	id := fmt.Sprintf("%s/%s/%d/%t", wire.ReserveUpdate, ask.Task, ask.Least, ask.Waits)
	if ask.Unlimited { // it has been answered when the same is asked within a budget
		id += "/unlimited"
	}
	for {
		try, cancel := context.WithTimeout(ctx, askTimeout)
		handle, err := r.client.UpdateWorkflow(try, client.UpdateWorkflowOptions{
			WorkflowID: execution.ID, RunID: execution.RunID, UpdateName: wire.ReserveUpdate, UpdateID: id, Args: []any{ask},
			WaitForStage: client.WorkflowUpdateStageCompleted,
		})
		if err == nil {
			err = handle.Get(try, &given)
		}
		cancel()
		if err == nil || ctx.Err() != nil || isFinal(err) {
			return given, err
		}
		wait.For(ctx, askPause)
	}
}

// isFinal reports whether asking again cannot help: the workflow is gone, takes no more updates, or refuses this one.
func isFinal(err error) bool {
	var gone *serviceerror.NotFound
	var full *serviceerror.FailedPrecondition
	var rejected *temporal.ApplicationError
	return errors.Is(err, errors.ErrUnsupported) || errors.As(err, &gone) || errors.As(err, &full) ||
		errors.As(err, &rejected)
}
