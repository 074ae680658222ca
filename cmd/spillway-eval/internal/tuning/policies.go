package tuning

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// A policy plans the stages for a budget: an option for each, or none where it finds no plan within it.
type policy func(stages [][]frontier.Option, budget quantity.Money) (plan []int, found bool)

// Policies are those that a budget can be given to, by name.
var policies = map[string]policy{"uniform": uniform, "equal": equal, "greedy": greedy}

// uniform is the fastest allocation that all stages have, within the budget: the strongest static one.
func uniform(stages [][]frontier.Option, budget quantity.Money) (plan []int, found bool) {
	best := math.Inf(1)
	for i := range stages[0] {
		same := slices.Repeat([]int{i}, len(stages))
		if seconds, cost := sum(stages, same); cost <= budget && seconds < best {
			plan, best = same, seconds
		}
	}
	return plan, plan != nil
}

// equal gives every stage the same part of the budget, and each the fastest option within its part.
func equal(stages [][]frontier.Option, budget quantity.Money) (plan []int, found bool) {
	part := budget / quantity.Money(len(stages))
	for _, options := range stages {
		best := -1
		for i, o := range options {
			if o.Cost <= part && (best < 0 || o.Seconds < options[best].Seconds) {
				best = i
			}
		}
		if best < 0 {
			return nil, false
		}
		plan = append(plan, best)
	}
	return plan, true
}

// greedy is in the style of CE-scaling (IPDPS'23): from the best uniform plan, one stage after the other goes a step
// along its own frontier, by the most time for the money; where the money is spent, one stage pays for another.
func greedy(stages [][]frontier.Option, budget quantity.Money) (plan []int, found bool) {
	start, found := uniform(stages, budget)
	if !found {
		return nil, false
	}
	e := exchange{stages: stages, left: budget, at: make([]int, len(stages))}
	for s, options := range stages {
		e.steps = append(e.steps, unbeaten(options))
		for i, option := range e.steps[s] {
			if options[option].Cost <= options[start[s]].Cost {
				e.at[s] = i
			}
		}
		e.left -= e.option(s, e.at[s]).Cost
	}
	for {
		faster, slower, found := e.best()
		if !found {
			break
		}
		e.move(faster, 1)
		if slower >= 0 {
			e.move(slower, -1)
		}
	}
	for s, step := range e.at {
		plan = append(plan, e.steps[s][step])
	}
	return plan, true
}

// exchange is a plan that gets better step by step.
type exchange struct {
	stages [][]frontier.Option
	steps  [][]int // of each stage, from the cheapest option to the fastest
	at     []int   // where each is
	left   quantity.Money
}

func (e *exchange) option(s, step int) frontier.Option { return e.stages[s][e.steps[s][step]] }

// step is by how much stage s gets faster, and dearer, by so many steps; none where it has no such.
func (e *exchange) step(s, by int) (faster float64, dearer quantity.Money, possible bool) {
	to := e.at[s] + by
	if to < 0 || to >= len(e.steps[s]) {
		return 0, 0, false
	}
	now, then := e.option(s, e.at[s]), e.option(s, to)
	return now.Seconds - then.Seconds, then.Cost - now.Cost, true
}

func (e *exchange) move(s, by int) {
	_, dearer, _ := e.step(s, by)
	e.left -= dearer
	e.at[s] += by
}

// best is the step that brings the most time for its money: of the one stage alone where that fits, else with another
// that pays for it (-1 for none).
func (e *exchange) best() (faster, slower int, found bool) {
	most := 0.0
	for up := range e.stages {
		gain, price, possible := e.step(up, 1)
		switch {
		case !possible:
		case price <= e.left:
			if rate := gain / float64(price); rate > most {
				faster, slower, found, most = up, -1, true, rate
			}
		default:
			down, net := e.payer(up, gain, price)
			if rate := net / float64(price); down >= 0 && rate > most {
				faster, slower, found, most = up, down, true, rate
			}
		}
	}
	return faster, slower, found
}

// payer is the stage that gets slower by the least for a step of another that there is no money for, and how much time
// both bring; -1 where none brings any.
func (e *exchange) payer(up int, gain float64, price quantity.Money) (down int, net float64) {
	down = -1
	for s := range e.stages {
		less, saved, possible := e.step(s, -1) // both below 0
		if possible && s != up && price+saved <= e.left && gain+less > net {
			down, net = s, gain+less
		}
	}
	return down, net
}

// unbeaten are the options that no other is both as cheap and as fast as, from the cheapest on.
func unbeaten(options []frontier.Option) (steps []int) {
	order := make([]int, len(options))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(options[a].Cost, options[b].Cost), cmp.Compare(options[a].Seconds, options[b].Seconds))
	})
	for _, i := range order {
		if len(steps) == 0 || options[i].Seconds < options[steps[len(steps)-1]].Seconds {
			steps = append(steps, i)
		}
	}
	return steps
}
