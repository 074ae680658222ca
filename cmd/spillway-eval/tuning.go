package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"time"

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
                 better in both time and cost; and longer_for_the_same_cost, how much longer it took than the optimum
  jct_saving     how much sooner the job is done than by another plan for the same budget: most, median and least
  cost_saving    how much less it costs for the same time; the ceiling is the exact frontier's
  without_a_plan budgets for which only one of the two finds a plan

Against uniform (the best allocation that all rungs share), equal (each rung the same part of the budget), greedy,
lambdaml (10 workers of 3,008 MB, at what that takes), and held cluster (hosts of one size from the start to the end,
at what each size takes and costs that no other beats), where ours may take functions or hosts, or functions only.
siren is in the style of Siren: the best plan of --episodes in which a policy learns the job with its budget, by policy
gradient; siren offline is what policies do that learned the same kind of job of the four other models.
Published figures are those of the paper against its own baselines, of other models.

Jobs of 16 to 256 trials and then a training until its loss is low enough, with deadlines and budgets anywhere between
the fastest and the cheapest plan of who knows all: profiles are off by --noise, rungs and epochs by hitches, and how
many epochs are needed is predicted from the curve so far and 20 earlier ones. Planned anew at every rung and epoch.

  met               jobs done by their deadline, or within their budget, as a part of all
  promised          of which that was thought as likely as asked when they began; met_promised is the part of these met
  cost_over_oracle  what all cost over what they cost who knows all (time_over_oracle_median for budgets)
  spent_most        the largest part of a budget that was ever spent and reserved

Searches of recorded trainings (algoperf_curves, pools of at least 18 trials of one workload, framework and study, with
the validation metric so far) by one worker, in random orders, for 2, 4 and 7 times what a trial gets at most (R, the
90th percentile of the recorded steps), from R/27 on:

  regret         how far the best that was seen is from the best of the pool, as a part of how far the middle trial is
  regret_ratio   that of ASHA, which is what Spillway does where nobody says, over that of random search
  curves_ratio   and over that of ASHA which is told nothing of the curves of trials; of searches that do not go on with
                 the next best but are done (case done), what is spent and the regret, with and without`,
		define: func(flags *flag.FlagSet) func(context.Context, common) error {
			world := tuning.World{}
			orders, jobs := 0, 0
			flags.Uint64Var(&world.Seed, "seed", 1, "`number` from which profiles and orders are drawn")
			flags.IntVar(&orders, "orders", 40, "how `many` random orders of each pool")
			flags.IntVar(&jobs, "jobs", 200, "how `many` jobs are given a deadline, and a budget")
			flags.IntVar(&world.Budgets, "budgets", 20, "how `many` budgets for each model")
			flags.IntVar(&world.Episodes, "episodes", 10_000, "how `many` a policy in the style of Siren learns from")
			flags.Float64Var(&world.Noise, "noise", 0.1, "`part` by which profiles are off")
			return func(ctx context.Context, with common) error { return evaluateTuning(ctx, world, orders, jobs, with) }
		},
	}
}

func evaluateTuning(ctx context.Context, world tuning.World, orders, jobs int, with common) error {
	if orders < 1 || jobs < 1 {
		return usageError(fmt.Sprintf("%d orders and %d jobs: give at least one of each", orders, jobs))
	}
	if world.Budgets < 1 || !(world.Noise >= 0 && world.Noise < 1) {
		return usageError(fmt.Sprintf("%d budgets with noise %g: give at least one, and 0 to less than 1", world.Budgets,
			world.Noise))
	}
	if world.Episodes < 1 {
		return usageError(fmt.Sprintf("%d episodes: give at least one", world.Episodes))
	}
	names := tuning.Jobs()
	cases, err := each(ctx, len(names), func(ctx context.Context, i int) (tuning.Case, error) {
		return world.Replay(ctx, names[i])
	})
	if err != nil {
		return err
	}
	episodes, learning := 0, time.Duration(0)
	for _, done := range cases {
		reportTuning(with.report, done)
		episodes, learning = episodes+done.Episodes, learning+done.Learning
	}
	_, _ = fmt.Fprintf(with.notes, "policies in the style of Siren learned from %d episodes in %.1f s\n",
		episodes, learning.Seconds())
	for _, confidence := range []float64{0.9, 0.99} {
		goals := tuning.Goals{Seed: world.Seed, Noise: world.Noise, Confidence: confidence}
		if err := evaluateGoals(ctx, goals, jobs, with.report); err != nil {
			return err
		}
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
	if len(done.Longer) > 0 {
		into.add(figure{
			Eval: "tuning", Set: "simulated", Case: done.Name + ", profiles off", Metric: "longer_for_the_same_cost_median",
			Unit: "ratio", Ours: median(done.Longer), N: len(done.Longer),
		})
	}
	published := publishedSavings[done.Name != "training"]
	for _, name := range slices.Sorted(maps.Keys(done.Against)) {
		saving := done.Against[name]
		told := func(metric, unit string, ours float64, n int) figure {
			return figure{
				Eval: "tuning", Set: "simulated", Case: done.Name + " against " + name, Metric: metric, Unit: unit,
				Ours: ours, N: n,
			}
		}
		saved := func(metric string, ours, ceiling []float64, published float64) {
			if len(ours) == 0 {
				return
			}
			one := func(metric string, of func([]float64) float64) figure {
				f := told(metric, "ratio", of(ours), len(ours))
				f.Baselines = map[string]float64{"ceiling": of(ceiling)}
				return f
			}
			most := one(metric, slices.Max[[]float64])
			most.Published = &published
			into.add(most, one(metric+"_median", median), one(metric+"_least", slices.Min[[]float64]))
		}
		saved("jct_saving", saving.Time, saving.CeilingTime, published[0])
		saved("cost_saving", saving.Cost, saving.CeilingCost, published[1])
		into.add(told("without_a_plan", "budgets", float64(saving.None), saving.None+len(saving.Time)))
	}
}

func mean(of []float64) float64 { return stat.Mean(of, nil) }

// median is the middle one of values that are not none, or the mean of the two in the middle.
func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}
