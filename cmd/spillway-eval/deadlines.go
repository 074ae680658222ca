package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/backlogs"
)

func deadlines() verb {
	return verb{
		name:    "deadlines",
		summary: "simulated backlogs with a deadline: how often it is met, and what functions cost",
		explain: `
Backlogs of 20 to 600 tasks wait at a pool of two to eight slots with functions beside it, after five to 64 tasks of
their like have ended. Run times are log-normal, Pareto, of two kinds, or follow inputs that differ a hundredfold. Every
deadline is one that the pool alone misses and that some number of functions, held from the start on, meets. What
happens is folded and decided on as an engine does, in virtual time.

  met             backlogs that are done by their deadline; --confidence asks for so many
  cost_over_best  what functions cost, over the cost of the least number of functions that meets the deadline, held
                  from the start on and found by trying all with the very run times that come

The baseline fluid is the rule of Spillway until November 2026: mean run times over the slots, with a tenth in hand.`,
		simulated: true,
		define: func(flags *flag.FlagSet) func(context.Context, common) error {
			world := backlogs.World{}
			cases := 0
			flags.Uint64Var(&world.Seed, "seed", 1, "`number` from which everything is drawn")
			flags.IntVar(&cases, "backlogs", 500, "how `many` backlogs")
			flags.Float64Var(&world.Confidence, "confidence", 0.9, "`probability` with which deadlines are to be met")
			return func(ctx context.Context, with common) error { return evaluateDeadlines(ctx, world, cases, with) }
		},
	}
}

func evaluateDeadlines(ctx context.Context, world backlogs.World, cases int, with common) error {
	if cases < 1 || !(world.Confidence >= 0.5 && world.Confidence < 1) {
		return usageError(fmt.Sprintf("%d backlogs with confidence %g: give at least one, and 0.5 to less than 1", cases,
			world.Confidence))
	}
	done, err := each(ctx, cases, world.Replay)
	if err != nil {
		return err
	}
	reportDeadlines(with.report, "all", done)
	for _, family := range backlogs.Families() {
		var of []backlogs.Case
		for _, c := range done {
			if c.Family == family {
				of = append(of, c)
			}
		}
		reportDeadlines(with.report, family, of)
	}
	return nil
}

func reportDeadlines(into *report, name string, done []backlogs.Case) {
	if len(done) == 0 {
		return // few backlogs are not of every kind
	}
	met := func(of func(backlogs.Case) backlogs.Outcome) (part, cost float64) {
		best := 0.0
		for _, c := range done {
			out := of(c)
			if out.Met {
				part += 1 / float64(len(done))
			}
			cost += out.Cost.USD()
			best += c.Hindsight.Cost.USD()
		}
		return part, cost / best
	}
	ours, oursCost := met(func(c backlogs.Case) backlogs.Outcome { return c.Ours })
	fluid, fluidCost := met(func(c backlogs.Case) backlogs.Outcome { return c.Fluid })
	into.add(
		figure{
			Eval: "deadlines", Set: "simulated", Case: name, Metric: "met", Unit: "ratio", Ours: ours,
			Baselines: map[string]float64{"fluid": fluid}, N: len(done),
		},
		figure{
			Eval: "deadlines", Set: "simulated", Case: name, Metric: "cost_over_best", Unit: "times", Ours: oursCost,
			Baselines: map[string]float64{"fluid": fluidCost}, N: len(done),
		},
	)
}
