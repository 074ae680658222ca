package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/training"
)

func curves() verb {
	return verb{
		name:    "curves",
		summary: "trainings: when a level of the loss is reached, from the first part of the curve",
		explain: `
Of each recorded training the first 20, 40 and 60 % of its steps are seen, and nobody is told how long it goes on.
Everybody says when it will first reach each level of a ladder, as a step or never. Levels that are reached by then are
not asked. The ladder of a workload is the quantiles .1, .3, .5, .7 and .9 of the best that earlier runs had reached
after 50, 70 and 90 % of their steps. Earlier runs are drawn at random: half of a workload, --earlier at most; others
are scored. Of workloads with fewer than 24 runs each run is scored, with all others as earlier ones.

  error_p50_20  |said - true| / true, the median over runs and levels, after 20 % of the steps; the same for 40 and 60.
                An error is at most 5; a step for a level that is never reached is 1, never for one that is reached is 5
  error_p90_20  the 90th percentile of the same
  coverage_80   levels that were reached within our interval for 80 %, all parts of the steps together

The case "cold" sees the run alone, "warm" knows the earlier runs as well. The case "level at 90 %" is what families are
known by elsewhere: 60 runs of a set, each for its own best after 90 % of its steps, nothing known besides.

Others, beside Spillway's row:

  power               c + a k^-b
  exponential         c + a e^(-k/t)
  optimus             1 / (a k + b) + c (Peng et al., EuroSys 2018)
  twice_seen          twice the steps seen
  multiple_hindsight  the constant multiple of the steps seen that has the least median error of these very answers: it
                      knows the future
  earlier_median      the median of the earlier runs (warm)

Sets (a folder that is absent is skipped, with a note). All are looked at as the best so far:

  algoperf_curves    curves_*.csv[.gz], a set each, and trials*.csv[.gz]: val_loss; workloads by workload and framework
  mlperf_v07_curves  curves*.csv[.gz] and runs*.csv[.gz]: eval_metric, maximised; a set for each benchmark
  nanogpt_curves     curves*.csv[.gz]: the val_loss of one workload
  pollux_profiles    NAME/validation-*.csv[.gz] for cifar10, deepspeech2, imagenet, ncf and yolov3: one workload each,
                     a run for each size of a batch; 1 - metric where the metric is one that is maximised`,
		define: func(flags *flag.FlagSet) func(context.Context, common) error {
			seed := flags.Uint64("seed", 1, "`number` that draws the earlier runs")
			earlier := flags.Int("earlier", 64, "at most so `many` runs of a workload are earlier ones")
			scored := flags.Int("runs", 20, "at most so `many` runs of a workload are scored")
			measured := flags.Bool("measured", false, "round up the steps of others to measurements, too, as ours are")
			return func(ctx context.Context, with common) error {
				if *earlier < 1 || *scored < 1 {
					return usageError("--earlier and --runs are 1 or more")
				}
				return evaluateCurves(ctx, with, training.Protocol{
					Seed: *seed, Earlier: *earlier, Scored: *scored, Measured: *measured,
				})
			}
		},
	}
}

// referenceRuns is how many runs of a set are asked for their level at 90 %.
const referenceRuns = 60

func evaluateCurves(ctx context.Context, with common, protocol training.Protocol) error {
	found := false
	for _, source := range curveSources() {
		sets, err := source.read(with.data)
		if errors.Is(err, fs.ErrNotExist) {
			_, _ = fmt.Fprintf(with.notes, "%s is skipped: there is no such folder in %s\n", source.name, with.data)
			continue
		}
		if err != nil {
			return err
		}
		found = true
		for _, set := range sets {
			if err := evaluateCurveSet(ctx, with, protocol, set); err != nil {
				return err
			}
		}
	}
	if !found {
		return fmt.Errorf("%s holds none of the sets: name the folder that contains algoperf_curves", with.data)
	}
	return nil
}

func evaluateCurveSet(ctx context.Context, with common, protocol training.Protocol, set curveSet) error {
	for _, warm := range []bool{false, true} {
		var asked training.Asked
		for _, workload := range set.workloads {
			if err := protocol.Replay(ctx, workload, warm, &asked); err != nil {
				return fmt.Errorf("replay %s: %w", set.name, err)
			}
		}
		name := "cold"
		if warm {
			name = "warm"
		}
		reportCurves(with, set.name, name, asked)
	}
	asked, err := protocol.Reference(set.workloads, referenceRuns)
	if err != nil {
		return fmt.Errorf("replay %s: %w", set.name, err)
	}
	reportCurves(with, set.name, "level at 90 %", asked)
	return nil
}

// reportCurves adds the tables of one case: the errors after each part of the steps, and how often the interval holds.
func reportCurves(with common, set, name string, asked training.Asked) {
	var all []training.Answer
	for i, part := range training.Parts {
		answers := asked[i]
		if len(answers) == 0 {
			_, _ = fmt.Fprintf(with.notes, "%s, %s, after %.0f %% of the steps: no run has points enough\n", set, name,
				100*part)
			continue
		}
		training.Know(answers)
		all = append(all, answers...)
		var figures []figure
		for _, metric := range []struct {
			name  string
			level float64
		}{{"error_p50", 0.5}, {"error_p90", 0.9}} {
			one := figure{
				Eval: "curves", Set: set, Case: name, Metric: fmt.Sprintf("%s_%.0f", metric.name, 100*part), Unit: "ratio",
				Ours: training.Error(answers, training.Ours, metric.level), Baselines: map[string]float64{}, N: len(answers),
			}
			for baseline := range answers[0].Said {
				if baseline != training.Ours {
					one.Baselines[baseline] = training.Error(answers, baseline, metric.level)
				}
			}
			figures = append(figures, one)
		}
		with.report.add(figures...)
	}
	if len(all) > 0 {
		with.report.add(figure{
			Eval: "curves", Set: set, Case: name, Metric: "coverage_80", Unit: "ratio", Ours: training.Covered(all),
			Baselines: map[string]float64{}, N: len(all),
		})
	}
}

// setName is the name of a file without what it ends in.
func setName(file string) string {
	return strings.TrimSuffix(strings.TrimSuffix(file, ".gz"), ".csv")
}
