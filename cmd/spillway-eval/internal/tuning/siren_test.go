package tuning

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// madeUpStages are so many stages with options of which the slower ones mostly cost less.
func madeUpStages(r *rand.Rand, stages, options int) (all [][]frontier.Option) {
	for range stages {
		var of []frontier.Option
		for range options {
			seconds := 1 + 99*r.Float64()
			of = append(of, frontier.Option{
				Seconds: seconds, Cost: quantity.Money((0.5 + r.Float64()) / seconds * float64(quantity.USD)),
			})
		}
		all = append(all, of)
	}
	return all
}

// exhaustive is the fastest of all plans within a budget.
func exhaustive(stages [][]frontier.Option, budget quantity.Money) (seconds float64, found bool) {
	if len(stages) == 0 {
		return 0, budget >= 0
	}
	for _, o := range stages[0] {
		if rest, fits := exhaustive(stages[1:], budget-o.Cost); fits && (!found || o.Seconds+rest < seconds) {
			seconds, found = o.Seconds+rest, true
		}
	}
	return seconds, found
}

// No plan of an agent passes its budget, or is faster than the fastest of all; where there is none, it finds none.
func TestNoAgentIsFasterThanTheOptimum(t *testing.T) {
	t.Parallel()
	plans := 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		stages := madeUpStages(r, 1+r.IntN(4), 6)
		b := newBudgeted(stages, 0)
		budget := quantity.Money(b.least[0]*0.9 + (b.dearest[0]-b.least[0]*0.9)*r.Float64())
		best, possible := exhaustive(stages, budget)
		agent, plan, found := learn(r, []int{3, 2}, stages, budget, 100)
		check := func(what string, plan []int) {
			seconds, cost := sum(stages, plan)
			if !possible || cost > budget || seconds < best*(1-1e-12) {
				t.Errorf("seed %d: %s takes %g s and costs %v with a budget of %v; the optimum takes %g s (%v)", seed, what,
					seconds, cost, budget, best, possible)
			}
		}
		if found {
			plans++
			check("the best that came up", plan)
		}
		if own, fits := agent.policy(stages, budget); fits {
			check("the policy", own)
			kept, _ := sum(stages, plan)
			if seconds, _ := sum(stages, own); !found || kept > seconds {
				t.Errorf("seed %d: the policy does it in %g s, and %g s is the best that came up", seed, seconds, kept)
			}
		}
	}
	if plans < 100 {
		t.Errorf("%d of 200 have a plan, want at least half", plans)
	}
}

// What an agent has learned of a small job is what it does by itself, and is the optimum, or nearly so.
func TestAnAgentLearnsTheOptimumOfASmallJob(t *testing.T) {
	t.Parallel()
	var gaps, before []float64
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		stages := madeUpStages(r, 3, 6)
		b := newBudgeted(stages, 0)
		budget := quantity.Money(b.least[0] + (b.dearest[0]-b.least[0])*(0.2+0.6*r.Float64()))
		best, _ := exhaustive(stages, budget)
		learner, plan, found := learn(r, []int{6}, stages, budget, 20_000)
		if !found {
			t.Fatalf("seed %d: no plan with %v", seed, budget)
		}
		if seconds, _ := sum(stages, plan); seconds > 1.02*best {
			t.Errorf("seed %d: the best that came up takes %g s, want %g s of the optimum", seed, seconds, best)
		}
		gap := func(a *agent) float64 {
			own, fits := a.policy(stages, budget)
			if !fits {
				return math.Inf(1)
			}
			seconds, _ := sum(stages, own)
			return seconds/best - 1
		}
		gaps, before = append(gaps, gap(learner)), append(before, gap(newAgent([]int{6}, 3)))
	}
	slices.Sort(before)
	if slices.Max(gaps) > 0.02 || before[10] < 0.3 {
		t.Errorf("policies are longer than the optimum by %.3f, want .02 at most, and before they learn by %.3f", gaps,
			before)
	}
}
