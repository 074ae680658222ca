package spill

import (
	"math"

	"github.com/spillway-ml/spillway/predictor/provision"
)

// Covers are the cheapest combinations of hosts by how many tasks a step they serve: the covering knapsack,
//
//	C(k) = min over the types i of C(k - tasks_i) + price_i
type Covers struct {
	terms provision.Terms
	least []float64 // C(k), USD a step, by whole tasks
	last  []int     // the type that is added last
}

// NewCovers has combinations for up to so many tasks a step.
func NewCovers(terms provision.Terms, most float64) Covers {
	n := int(math.Ceil(most))
	c := Covers{terms: terms, least: make([]float64, n+1), last: make([]int, n+1)}
	for k := 1; k <= n; k++ {
		c.least[k] = math.Inf(1)
		for i, host := range terms.Hosts {
			if cost := c.least[max(0, k-int(host.Tasks))] + host.Step.USD(); cost < c.least[k] {
				c.least[k], c.last[k] = cost, i
			}
		}
	}
	return c
}

// For is the cheapest combination that serves so many tasks a step, as hosts of each type.
func (c Covers) For(tasks float64) []int {
	plan := make([]int, len(c.terms.Hosts))
	for k := min(int(math.Ceil(tasks)), len(c.least)-1); k > 0; k = max(0, k-int(c.terms.Hosts[c.last[k]].Tasks)) {
		plan[c.last[k]]++
	}
	return plan
}

// Best is the capacity that would have cost least over these steps, with functions for what is above it, and its cost
// in USD.
func (c Covers) Best(loads []float64) (tasks, cost float64) {
	price, most, total := c.terms.Function.USD(), 0.0, 0.0
	for _, load := range loads {
		most = max(most, load)
		total += load
	}
	cost = price * total
	last := min(int(math.Ceil(most)), len(c.least)-1)
	for k := 1; k <= last; k++ {
		if k < last && c.least[k+1] == c.least[k] {
			continue // the same hosts serve more
		}
		sum := c.least[k] * float64(len(loads))
		for _, load := range loads {
			sum += price * max(0, load-float64(k))
		}
		if sum < cost {
			tasks, cost = float64(k), sum
		}
	}
	return tasks, cost
}

// Bound is what no policy undercuts in one step: hosts and functions by the step, had at once and without a hold.
func (c Covers) Bound(load float64) float64 {
	_, cost := c.Best([]float64{load})
	return cost
}

// Oracles is what two policies cost that know the loads, from the second window on: the best combination for each
// window of Hold steps, and the sum of the bounds of the steps.
func (c Covers) Oracles(loads []float64) (windows, bound float64) {
	for from := c.terms.Hold; from < len(loads); from += c.terms.Hold {
		_, cost := c.Best(loads[from:min(from+c.terms.Hold, len(loads))])
		windows += cost
	}
	for _, load := range loads[c.terms.Hold:] {
		bound += c.Bound(load)
	}
	return windows, bound
}
