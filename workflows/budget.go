package workflows

import (
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// BudgetError is the type of the application error with which a run fails that cannot go on within its budget.
const BudgetError = "SpillwayBudget"

// upperPrice is how much more than the costliest task of its stage so far a task is expected to cost at most.
const upperPrice = 1.5

// budget keeps what a run has spent and what its tasks in flight are expected to cost at most.
// The first tasks of a stage reserve nothing: nothing is known of them yet.
type budget struct {
	spent, reserved quantity.Money
	highest         map[string]quantity.Money // costliest task so far, by stage
}

func (b *budget) upper(stage string) quantity.Money { return b.highest[stage].Times(upperPrice) }

// reserve waits until a task of stage fits the run's budget. It fails when nothing in flight could make room.
func (b *budget) reserve(ctx workflow.Context, r *run, stage string) error {
	fits := func() bool {
		limit := r.goal.Budget
		return limit == 0 || b.spent < limit && b.spent+b.reserved+b.upper(stage) <= limit
	}
	if err := workflow.Await(ctx, func() bool { return fits() || b.reserved == 0 }); err != nil {
		return err
	}
	if !fits() {
		return temporal.NewNonRetryableApplicationError(fmt.Sprintf(
			"budget %s: %s are spent and a task of stage %s costs up to %s: raise --budget to at least %s",
			r.goal.Budget, b.spent, stage, b.upper(stage), b.spent+b.upper(stage)), BudgetError, nil)
	}
	b.reserved += b.upper(stage)
	return nil
}

// settle replaces the reservation of a finished task by what it cost.
func (b *budget) settle(stage string, cost quantity.Money) {
	b.reserved = max(0, b.reserved-b.upper(stage))
	b.spent += cost
	b.highest[stage] = max(b.highest[stage], cost)
	if b.spent < 0 {
		b.spent = 0
	}
}
