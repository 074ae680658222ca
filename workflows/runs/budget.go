package runs

import (
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// This file is how runs of version 0 keep their money: each chunk of a Map on its own. Such runs go on, and must replay
// step by step; nothing else uses it. Package account does it for all others.

// upperPrice is how much more than the costliest task of its stage so far a task is expected to cost at most.
const upperPrice = 1.5

// budget keeps what a run has spent and what its tasks in flight are expected to cost at most.
//
// Before the first task of a stage has ended, nothing is known of its price: under a limit it then goes alone, so that
// a run passes its budget by one such task at most and not by a whole window of them.
type budget struct {
	spent, reserved quantity.Money
	highest         map[string]quantity.Money // costliest task so far, by stage
	pending         map[string]int            // tasks in flight, by stage
}

func newBudget() budget {
	return budget{highest: map[string]quantity.Money{}, pending: map[string]int{}}
}

func (b *budget) upper(stage string) quantity.Money { return b.highest[stage].Times(upperPrice) }

// fits reports whether one more task of stage may be scheduled within limit; 0 is no limit.
func (b *budget) fits(limit quantity.Money, stage string) bool {
	switch {
	case limit == 0:
		return true
	case b.highest[stage] == 0:
		return b.spent < limit && b.pending[stage] == 0
	default:
		return b.spent+b.reserved+b.upper(stage) <= limit
	}
}

// reserve waits until a task of stage fits the run's budget and returns what it holds of it. It fails when nothing in
// flight could make room.
func (b *budget) reserve(ctx workflow.Context, r *run, stage string) (held quantity.Money, err error) {
	busy := func() bool {
		for _, name := range workflow.DeterministicKeys(b.pending) {
			if b.pending[name] > 0 {
				return true
			}
		}
		return false
	}
	if err := workflow.Await(ctx, func() bool { return b.fits(r.goal.Budget, stage) || !busy() }); err != nil {
		return 0, err
	}
	if !b.fits(r.goal.Budget, stage) {
		return 0, temporal.NewNonRetryableApplicationError(fmt.Sprintf(
			"a task of stage %s costs up to %s, and %s of the %s that this part of the run may spend are spent%s",
			stage, b.upper(stage), b.spent, r.goal.Budget, wire.RaiseBudget), wire.BudgetError, nil)
	}
	held = b.upper(stage)
	b.reserved += held
	b.pending[stage]++
	return held, nil
}

// settle replaces what a finished task held by what it cost.
func (b *budget) settle(stage string, held, cost quantity.Money) {
	b.reserved -= held
	b.pending[stage]--
	b.spent += max(0, cost)
	b.highest[stage] = max(b.highest[stage], cost)
}
