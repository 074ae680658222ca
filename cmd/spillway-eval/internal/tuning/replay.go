package tuning

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// World is what jobs are replayed in.
type World struct {
	// Seed is that from which profiles are drawn.
	Seed uint64
	// Noise is the standard deviation of the logarithm of an allocation's time over its profile.
	Noise float64
	// Budgets is how many budgets each job is given, spread evenly between the cheapest and the fastest point of its
	// frontier, in their logarithms.
	Budgets int
	// Episodes is how many of each job, with each budget, a policy in the style of Siren learns from; at least 1.
	Episodes int
}

// Saving is how much less Spillway's plan takes, or costs, than another's within the same budget, or time: parts of 1.
// Ceiling is that of the exact frontier.
type Saving struct {
	Time, Cost               []float64
	CeilingTime, CeilingCost []float64
	// None counts the budgets with which only the other, or only Spillway, has a plan.
	None int
}

// Case is what came of one kind of job, over all models and budgets.
type Case struct {
	Name string
	// Exact are how much longer the plan read off the frontier as production keeps it takes than the exact optimum with
	// the same budget.
	Exact []float64
	// Noisy are how far a job is from the exact frontier that is planned anew after each stage by profiles that are off:
	// some point of the frontier is better by this part in both time and cost, and none by more. Longer are how much
	// longer it takes than the optimum for what it came to cost.
	Noisy, Longer []float64
	// Against are the savings by the name of the policy.
	Against map[string]*Saving
	// Greedy is how much longer the plan of exchanges takes than the exact optimum.
	Greedy []float64
	// Episodes are those that policies learned from, and Learning how long that took.
	Episodes int
	Learning time.Duration
}

// finest is what is taken as exact where enumeration is not possible: a frontier no two points of which differ by more
// than about a part in ten thousand.
const finest = 1 << 16

// sirens is added to the number of a model, so that what agents draw is not what profiles are drawn with.
const sirens = 2000

// Jobs are the names of what can be replayed.
func Jobs() []string {
	return []string{"16 trials", "64 trials", "256 trials", "1024 trials", "4096 trials", "training"}
}

// Replay plans one kind of job for every model and budget.
func (w World) Replay(ctx context.Context, name string) (Case, error) {
	stages := training()
	if name != "training" {
		var trials int
		if _, err := fmt.Sscanf(name, "%d trials", &trials); err != nil {
			return Case{}, fmt.Errorf("read the job %q: %w", name, err)
		}
		stages = halving(trials)
	}
	done := Case{Name: name, Against: map[string]*Saving{}}
	all := allocations()
	var learned []*trained
	for number, m := range models {
		if err := ctx.Err(); err != nil {
			return Case{}, err
		}
		job := job(stages, all, m.epochs(all))
		ours, err := frontier.New(job)
		if err != nil {
			return Case{}, err
		}
		job.Most = finest
		exact, err := frontier.New(job)
		if err != nil {
			return Case{}, err
		}
		r := rand.New(rand.NewPCG(w.Seed, uint64(number)))
		budgets := w.budgets(exact)
		for _, budget := range budgets {
			done.compare(job.Stages, ours, exact, budget)
			seconds, cost, err := w.perform(r, m, stages, all, budget)
			if err != nil {
				return Case{}, err
			}
			if best, known := exact.Fastest(cost); known {
				done.Longer = append(done.Longer, max(0, seconds/best.Seconds-1))
				done.Noisy = append(done.Noisy, distance(exact, seconds, cost))
			}
		}
		done.usual(job.Stages, ours, exact, all)
		if err := done.compareHeld(m, stages, all, ours, exact); err != nil {
			return Case{}, err
		}
		t := &trained{stages: job.Stages, ours: ours, exact: exact, budgets: budgets}
		done.siren(rand.New(rand.NewPCG(w.Seed, uint64(number)+sirens)), t, w.Episodes)
		learned = append(learned, t)
	}
	done.offline(learned)
	return done, nil
}

// distance is by which part of 1 some point of a frontier is better than this time and cost, in both.
func distance(exact frontier.Frontier, seconds float64, cost quantity.Money) (part float64) {
	for i := range exact.Len() {
		s, c := exact.Pair(i)
		part = max(part, min(seconds/s, float64(cost)/float64(c))-1)
	}
	return part
}

func (w World) budgets(f frontier.Frontier) (all []quantity.Money) {
	least, most := f.At(f.Len()-1).Cost, f.At(0).Cost
	for i := range w.Budgets {
		part := (float64(i) + 0.5) / float64(w.Budgets)
		all = append(all, quantity.Money(math.Exp(math.Log(float64(least))*(1-part)+math.Log(float64(most))*part)))
	}
	return all
}

// compare plans a job for a budget by every policy.
func (c *Case) compare(stages [][]frontier.Option, ours, exact frontier.Frontier, budget quantity.Money) {
	plan, found := ours.Fastest(budget)
	best, known := exact.Fastest(budget)
	if !found || !known {
		return
	}
	c.Exact = append(c.Exact, max(0, plan.Seconds/best.Seconds-1))
	for name, policy := range policies {
		theirs, found := policy(stages, budget)
		c.planned(name, stages, ours, exact, budget, theirs, found)
		if name == "greedy" && found {
			seconds, _ := sum(stages, theirs)
			c.Greedy = append(c.Greedy, max(0, seconds/best.Seconds-1))
		}
	}
}

// planned compares with the plan of a policy for a budget, if it found one: none saves nobody anything.
func (c *Case) planned(
	name string, stages [][]frontier.Option, ours, exact frontier.Frontier, budget quantity.Money, plan []int, found bool,
) {
	if !found {
		c.saving(name).None++
		return
	}
	seconds, cost := sum(stages, plan)
	c.against(name, ours, exact, seconds, seconds, budget, cost)
}

// usual compares with the plan of who does not choose, at what that takes and costs.
func (c *Case) usual(stages [][]frontier.Option, ours, exact frontier.Frontier, all []allocation) {
	i := slices.IndexFunc(all, func(a allocation) bool {
		return a.workers == usualWorkers && a.memory == usualMemory && a.store.name == "s3"
	})
	seconds, cost := sum(stages, slices.Repeat([]int{i}, len(stages)))
	c.against("lambdaml", ours, exact, seconds, seconds, cost, cost)
}

// saving is what is saved over a policy.
func (c *Case) saving(name string) *Saving {
	if c.Against[name] == nil {
		c.Against[name] = &Saving{}
	}
	return c.Against[name]
}

// against compares with a plan that takes so long and costs so much, within a deadline or a budget.
func (c *Case) against(
	name string, ours, exact frontier.Frontier, seconds, deadline float64, budget, cost quantity.Money,
) {
	saving := c.saving(name)
	p, found := ours.Fastest(budget)
	q, known := exact.Fastest(budget)
	if !found || !known {
		saving.None++
	} else {
		saving.Time = append(saving.Time, 1-p.Seconds/seconds)
		saving.CeilingTime = append(saving.CeilingTime, 1-q.Seconds/seconds)
	}
	if p, found = ours.Cheapest(deadline); !found {
		return
	}
	if q, known = exact.Cheapest(deadline); known {
		saving.Cost = append(saving.Cost, 1-float64(p.Cost)/float64(cost))
		saving.CeilingCost = append(saving.CeilingCost, 1-float64(q.Cost)/float64(cost))
	}
}

// perform runs a job with profiles that are off: it is planned by them before every stage, for what is left of the
// budget, and what a stage took corrects the profile of its allocation. It takes the cheapest rest where the budget has
// room for none.
func (w World) perform(
	r *rand.Rand, m model, stages []stage, all []allocation, budget quantity.Money,
) (seconds float64, spent quantity.Money, err error) {
	known := w.profiles(r, m, all)
	truth := job(stages, all, m.epochs(all))
	for s := range stages {
		estimates, err := frontier.Smooth(known)
		if err != nil {
			return 0, 0, err
		}
		f, err := frontier.New(job(stages[s:], all, estimates))
		if err != nil {
			return 0, 0, err
		}
		plan, fits := f.Fastest(budget - spent)
		if !fits {
			plan = f.At(f.Len() - 1)
		}
		i := plan.Options[0]
		chosen := truth.Stages[s][i]
		seconds += chosen.Seconds
		spent = spent.Plus(chosen.Cost)
		known[i].Seconds, known[i].Spread = m.epochSeconds(all[i]), 0
	}
	return seconds, spent, nil
}

// profiles are measurements of each allocation that are off.
func (w World) profiles(r *rand.Rand, m model, all []allocation) (known []frontier.Profile) {
	for _, a := range all {
		known = append(known, frontier.Profile{
			At: []float64{math.Log(float64(a.workers)), math.Log(a.memory)}, Kind: a.store.kind,
			Seconds: m.epochSeconds(a) * math.Exp(w.Noise*r.NormFloat64()), Spread: w.Noise,
		})
	}
	return known
}
