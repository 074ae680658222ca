package main

import (
	"context"
	"flag"
	"fmt"
	"slices"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/pipelines"
)

func runs() verb {
	return verb{
		name:    "runs",
		summary: "runs of simulated pipelines: when they were expected to end, and for how much",
		explain: `
Pipelines of one to six stages, four on a pool, are run one run after another, with inputs that differ
a hundredfold; how many tasks a stage has and how long they take depends on the input in various ways, and each task
takes more or less by a log-normal factor. Every run but the first of its pipeline is asked, at its start, at a quarter
and at half of its time, when it will end and what it will cost. What happens is folded and decided on as an engine
does, in virtual time.

  forecast_known     moments at which anything was expected
  forecast_error     |expected - actual| / actual of the seconds that were left, the median; 1 where nothing is expected
  forecast_coverage  moments whose end was within the interval that was told for 80%
  forecast_width     upper / lower end of that interval, the median
  cost_error         as forecast_error, of what the run costs altogether
  cost_coverage      as forecast_coverage, of the same

The case "models" is another world: each run is of one of two models, which a text of its input names, and of which one
takes up to ten times as long as the other.

The baseline earlier_runs is what Spillway told until November 2026: what earlier runs of the pipeline took.`,
		simulated: true,
		define: func(flags *flag.FlagSet) func(context.Context, common) error {
			world := pipelines.World{Together: 4}
			flags.Uint64Var(&world.Seed, "seed", 1, "`number` from which everything is drawn")
			flags.IntVar(&world.Pipelines, "pipelines", 200, "how `many` pipelines, a multiple of 4")
			flags.IntVar(&world.Cores, "cores", 16, "how `many` cores a pool has")
			flags.IntVar(&world.Runs, "runs", 6, "how `many` runs each has, at least 2")
			return func(ctx context.Context, with common) error { return evaluateForecasts(ctx, world, with) }
		},
	}
}

func evaluateForecasts(ctx context.Context, world pipelines.World, with common) error {
	if world.Cores < 1 || world.Pipelines < world.Together || world.Pipelines%world.Together != 0 || world.Runs < 2 {
		return usageError(fmt.Sprintf("%d pipelines of %d runs on %d cores: give a multiple of %d pipelines, at least 2 "+
			"runs and a core", world.Pipelines, world.Runs, world.Cores, world.Together))
	}
	asked, err := replayPools(ctx, world)
	if err != nil {
		return err
	}
	reportForecasts(with.report, "all", asked)
	for _, moment := range pipelines.Moments {
		reportForecasts(with.report, fmt.Sprintf("at %g%%", 100*moment), only(asked, func(q pipelines.Question) bool {
			return q.Moment == moment
		}))
	}
	reportForecasts(with.report, "second runs", only(asked, func(q pipelines.Question) bool { return q.Run == 2 }))
	reportForecasts(with.report, "later runs", only(asked, func(q pipelines.Question) bool { return q.Run > 2 }))
	world.Kinds = 2
	if asked, err = replayPools(ctx, world); err != nil {
		return err
	}
	reportForecasts(with.report, "models", asked)
	return nil
}

func only(asked []pipelines.Question, wanted func(pipelines.Question) bool) []pipelines.Question {
	return slices.DeleteFunc(slices.Clone(asked), func(q pipelines.Question) bool { return !wanted(q) })
}

// replayPools replays the pools of a world, several at a time, and returns their questions in the order of the pools.
func replayPools(ctx context.Context, world pipelines.World) ([]pipelines.Question, error) {
	asked, err := each(ctx, world.Pipelines/world.Together, world.Replay)
	return slices.Concat(asked...), err
}

func reportForecasts(into *report, name string, asked []pipelines.Question) {
	ours := pipelines.ScoreOf(asked, func(q pipelines.Question) pipelines.Answer { return q.Ours })
	earlier := pipelines.ScoreOf(asked, func(q pipelines.Question) pipelines.Answer { return q.Earlier })
	var figures []figure
	for _, metric := range []struct {
		name, unit string
		of         func(pipelines.Score) float64
	}{
		{"forecast_known", "ratio", func(s pipelines.Score) float64 { return s.Known }},
		{"forecast_error", "ratio", func(s pipelines.Score) float64 { return s.Error }},
		{"forecast_coverage", "ratio", func(s pipelines.Score) float64 { return s.Covered }},
		{"forecast_width", "times", func(s pipelines.Score) float64 { return s.Width }},
		{"cost_error", "ratio", func(s pipelines.Score) float64 { return s.CostError }},
		{"cost_coverage", "ratio", func(s pipelines.Score) float64 { return s.CostCovered }},
	} {
		figures = append(figures, figure{
			Eval: "runs", Set: "simulated", Case: name, Metric: metric.name, Unit: metric.unit, Ours: metric.of(ours),
			Baselines: map[string]float64{"earlier_runs": metric.of(earlier)}, N: ours.Questions,
		})
	}
	into.add(figures...)
}
