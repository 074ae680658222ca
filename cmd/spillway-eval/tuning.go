package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/tuning"
)

func tuningJobs() verb {
	return verb{
		name:    "tuning",
		summary: "tuning and training jobs for a budget: how close plans are to the exact optimum, and what they save",
		explain: `
Jobs of successive halving (16 to 4,096 trials, half of which go on, in at most twelve rungs) and trainings of 60 epochs
are planned on functions: workers, memory and store of each rung, for budgets between the cheapest and the fastest plan.
Five models in the form of LambdaML's, whose parameters are this evaluator's, from one that hardly communicates to one
that does little else; 3,000 functions at once, 3 s to start.

  gap_to_exact   with right profiles: how much longer the plan takes than the exact optimum for the same money; greedy
                 is a plan in the style of CE-scaling, by exchanges from the best uniform one. With profiles that are
                 off by --noise, planned anew after each rung: by which part some plan of who knows would have been
                 better in both time and cost
  jct_saving     how much sooner the job is done than by another plan for the same budget: the most, and the median
  cost_saving    how much less it costs for the same time

Against uniform (the best allocation that all rungs share), equal (each rung the same part of the budget), greedy, and
lambdaml (10 workers of 3,008 MB, at what that takes). Published figures are those of the paper against its own
baselines, of other models.

Searches of recorded trainings (algoperf_curves, pools of at least 18 trials of one workload, framework and study, with
the validation metric so far) by one worker, in random orders, for 2, 4 and 7 times what a trial gets at most (R, the
90th percentile of the recorded steps), from R/27 on:

  regret         how far the best that was seen is from the best of the pool, as a part of how far the middle trial is
  regret_ratio   that of ASHA, which is what Spillway does where nobody says, over that of random search`,
		define: func(flags *flag.FlagSet) func(context.Context, common) error {
			world := tuning.World{}
			orders := 0
			flags.Uint64Var(&world.Seed, "seed", 1, "`number` from which profiles and orders are drawn")
			flags.IntVar(&orders, "orders", 40, "how `many` random orders of each pool")
			flags.IntVar(&world.Budgets, "budgets", 20, "how `many` budgets for each model")
			flags.Float64Var(&world.Noise, "noise", 0.1, "`part` by which profiles are off")
			return func(ctx context.Context, with common) error { return evaluateTuning(ctx, world, orders, with) }
		},
	}
}

func evaluateTuning(ctx context.Context, world tuning.World, orders int, with common) error {
	if orders < 1 {
		return usageError(fmt.Sprintf("%d orders: give at least one", orders))
	}
	if world.Budgets < 1 || !(world.Noise >= 0 && world.Noise < 1) {
		return usageError(fmt.Sprintf("%d budgets with noise %g: give at least one, and 0 to less than 1", world.Budgets,
			world.Noise))
	}
	for _, name := range tuning.Jobs() {
		done, err := world.Replay(ctx, name)
		if err != nil {
			return err
		}
		reportTuning(with.report, done)
	}
	return evaluateSearchers(ctx, world.Seed, orders, with)
}

// Of the paper's abstract (CE-scaling, IPDPS'23): time and cost saved for tuning and for training.
var publishedSavings = map[bool][2]float64{true: {0.63, 0.41}, false: {0.58, 0.38}}

func reportTuning(into *report, done tuning.Case) {
	gap := func(name string, gaps []float64, greedy []float64) {
		if len(gaps) == 0 {
			return
		}
		baselines := func(of func([]float64) float64) map[string]float64 {
			if greedy == nil {
				return nil
			}
			return map[string]float64{"greedy": of(greedy)}
		}
		into.add(
			figure{
				Eval: "tuning", Set: "simulated", Case: done.Name + ", " + name, Metric: "gap_to_exact", Unit: "ratio",
				Ours: slices.Max(gaps), Baselines: baselines(slices.Max[[]float64]), N: len(gaps),
			},
			figure{
				Eval: "tuning", Set: "simulated", Case: done.Name + ", " + name, Metric: "gap_to_exact_mean", Unit: "ratio",
				Ours: stat.Mean(gaps, nil), Baselines: baselines(mean), N: len(gaps),
			},
		)
	}
	gap("right profiles", done.Exact, done.Greedy)
	gap("profiles off", done.Noisy, nil)
	into.add(figure{
		Eval: "tuning", Set: "simulated", Case: done.Name + ", profiles off", Metric: "longer_for_the_same_cost_median",
		Unit: "ratio", Ours: median(done.Longer), N: len(done.Longer),
	})
	published := publishedSavings[done.Name != "training"]
	for _, name := range slices.Sorted(maps.Keys(done.Against)) {
		saving := done.Against[name]
		one := func(metric string, value float64, published *float64, n int) figure {
			return figure{
				Eval: "tuning", Set: "simulated", Case: done.Name + " against " + name, Metric: metric, Unit: "ratio",
				Ours: value, Published: published, N: n,
			}
		}
		if len(saving.Time) == 0 || len(saving.Cost) == 0 {
			continue
		}
		into.add(
			one("jct_saving", slices.Max(saving.Time), &published[0], len(saving.Time)),
			one("jct_saving_median", median(saving.Time), nil, len(saving.Time)),
			one("cost_saving", slices.Max(saving.Cost), &published[1], len(saving.Cost)),
			one("cost_saving_median", median(saving.Cost), nil, len(saving.Cost)),
		)
	}
}

func mean(of []float64) float64 { return stat.Mean(of, nil) }

func median(of []float64) float64 {
	return stat.Quantile(0.5, stat.LinInterp, slices.Sorted(slices.Values(of)), nil)
}
