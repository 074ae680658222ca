package tuning

import (
	"context"
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Goals are jobs with a deadline, or a budget, whose profiles, rungs, epochs and curves are not known before.
type Goals struct {
	// Seed is that from which jobs are drawn.
	Seed uint64
	// Noise is the standard deviation of the logarithm of a profile around the truth, of each allocation by itself.
	Noise float64
	// Confidence is the probability with which a goal is to be met.
	Confidence float64
}

// Outcome is what came of one job.
type Outcome struct {
	// Promised says that the goal was thought as likely to be met as asked when the job began.
	Promised bool
	// Met says that the job was done by its deadline, or done before its budget was.
	Met bool
	// Seconds and Cost are what it took and cost; Oracle is the cheapest, or the fastest, plan of who knows all.
	Seconds float64
	Cost    quantity.Money
	Oracle  frontier.Point
	// Changes is how often the training changed its allocation.
	Changes int
	// Most is the largest part of the budget that was spent and reserved at any moment; 0 of a deadline.
	Most float64
}

// Deadline lets the job of that number be done by its deadline.
func (g Goals) Deadline(ctx context.Context, number int) (Outcome, error) {
	return g.perform(ctx, number, func(oracle frontier.Frontier, part float64) (frontier.Goal, frontier.Point, bool) {
		fastest, _ := oracle.Pair(0)
		slowest, _ := oracle.Pair(oracle.Len() - 1)
		deadline := fastest * math.Pow(slowest/fastest, part)
		best, found := oracle.Cheapest(deadline)
		return frontier.Goal{Seconds: deadline, Cost: frontier.Unlimited}, best, found
	})
}

// Budget lets the job of that number be done within its budget.
func (g Goals) Budget(ctx context.Context, number int) (Outcome, error) {
	return g.perform(ctx, number, func(oracle frontier.Frontier, part float64) (frontier.Goal, frontier.Point, bool) {
		_, most := oracle.Pair(0)
		_, least := oracle.Pair(oracle.Len() - 1)
		budget := least.Times(math.Pow(float64(most)/float64(least), part))
		best, found := oracle.Fastest(budget)
		return frontier.Goal{Seconds: math.Inf(1), Cost: budget}, best, found
	})
}

// perform draws the job of that number, and lets it be done for a goal between the fastest and the cheapest plan of who
// knows all, which choose takes from that frontier with the best plan for it.
func (g Goals) perform(
	ctx context.Context, number int,
	choose func(oracle frontier.Frontier, part float64) (goal frontier.Goal, best frontier.Point, found bool),
) (Outcome, error) {
	e, err := g.draw(number)
	if err != nil {
		return Outcome{}, err
	}
	oracle, err := e.oracle()
	if err != nil {
		return Outcome{}, err
	}
	goal, best, found := choose(oracle, e.part)
	if !found {
		return Outcome{}, fmt.Errorf("job %d: who knows all finds no plan within %g s and %v", number, goal.Seconds,
			goal.Cost)
	}
	goal.Confidence = g.Confidence
	out, err := e.perform(ctx, goal)
	if err != nil {
		return Outcome{}, fmt.Errorf("job %d: %w", number, err)
	}
	out.Met, out.Oracle = out.Met && out.Seconds <= goal.Seconds, best
	return out, nil
}
