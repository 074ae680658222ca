package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/cmd/internal/series"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/workflow"
)

func tasks() verb {
	return verb{
		name:    "tasks",
		summary: "tasks of workflows, sized and predicted as the engine does: memory wasted, attempts lost, times",
		explain: `
The tasks of each recorded workflow are replayed, attempt by attempt, in the order of their starts. A size knows only
the tasks of its own workflow that were complete by then; what runs out of memory is tried again at once, at a size that
the same policy gives. Ours are Fold of what happened, Decide whenever something did and every 5 s besides, and the
Sizing of the plan: what an engine runs, in virtual time. The first guess is what the workflow asked for.

  wastage_gbh          memory held and not used, GB h: the whole limit of attempts that ran out of it, and what others
                       had above their peak
  failures             attempts that ran out of memory; the two are read together
  wall_error_p50       |expected - actual| / actual of the run time, the median, each at most 5
  wall_error_mean      the mean of the same
  coverage_80_peak     tasks whose peak was within the interval that was told for 80%
  coverage_80_wall     the same of the run time
  interval_score_peak  Winkler's score of these intervals, natural logarithms: their width, and ten times by how much
                       what came is outside; less is better
  interval_score_wall  the same of the run time

Times and intervals: tasks that started when at least five of their process had ended.

Others, beside Spillway's row. Of memory, all after five known tasks of a process and before that the request:

  request           what the workflow asks for, and twice as much each time that it was not enough
  witt_percentile   the 95th percentile of the peaks (Witt et al., HPCS 2019)
  witt_regression   the line over the bytes of the input, a standard deviation higher (the same paper)
  witt_low_wastage  the line that would have wasted the least on the tasks before (Witt et al., IceCube, HPCS 2019)
  tovar             of the peaks that were seen, the one that would have wasted the least, then the largest, then a node
                    of 128 GB (Tovar et al., TPDS 2018)
  hindsight         the constant of each process that wastes the least on these very tasks: it knows the future

Of run times:

  last_32  the median of the latest 32 tasks of the process, and their middle 80% as the interval
  mean_32  their mean
  linear   the line over the bytes of the input, log_log a power of them

Set:

  workflow_tasks  *.csv[.gz], one workflow each; the case "pooled" is all of them`,
		define: func(*flag.FlagSet) func(context.Context, common) error { return evaluateTasks },
	}
}

const taskSet = "workflow_tasks"

// recordedWorkflow is the tasks of one file.
type recordedWorkflow struct {
	name  string
	tasks []series.Task
}

func evaluateTasks(ctx context.Context, with common) error {
	paths, err := series.Files(filepath.Join(with.data, taskSet), "")
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s holds none of the sets: name the folder that contains %s", with.data, taskSet)
	}
	if err != nil {
		return err
	}
	var workflows []recordedWorkflow
	for _, path := range paths {
		read, err := series.Open(path, series.Tasks)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".gz"), ".csv")
		workflows = append(workflows, recordedWorkflow{name, read})
	}
	outcomes, err := replayWorkflows(ctx, workflows)
	if err != nil {
		return err
	}
	pooled := map[string][]workflow.Outcome{}
	for i, of := range workflows {
		for policy, all := range outcomes[i] {
			pooled[policy] = append(pooled[policy], all...)
		}
		reportTasks(with.report, of.name, outcomes[i])
	}
	reportTasks(with.report, "pooled", pooled)
	return nil
}

// taskPolicies make a policy for a workflow, by name.
func taskPolicies() map[string]func(context.Context, recordedWorkflow) (workflow.Policy, error) {
	policies := map[string]func(context.Context, recordedWorkflow) (workflow.Policy, error){
		ours: func(ctx context.Context, of recordedWorkflow) (workflow.Policy, error) {
			return workflow.NewProduction(ctx, of.name)
		},
	}
	for name, rule := range map[string]func(recordedWorkflow) workflow.Rule{
		"request":          same(workflow.Requested),
		"witt_percentile":  same(workflow.WittPercentile),
		"witt_regression":  func(recordedWorkflow) workflow.Rule { return workflow.NewWittRegression() },
		"witt_low_wastage": func(recordedWorkflow) workflow.Rule { return workflow.NewWittLowWastage() },
		"tovar":            same(workflow.Tovar),
		"hindsight":        func(of recordedWorkflow) workflow.Rule { return workflow.NewHindsight(of.tasks) },
		"last_32":          same(workflow.Last32),
		"mean_32":          same(workflow.MeanWall),
		"linear":           same(workflow.LinearWall),
		"log_log":          same(workflow.LogLogWall),
	} {
		policies[name] = func(_ context.Context, of recordedWorkflow) (workflow.Policy, error) {
			return workflow.Of(rule(of)), nil
		}
	}
	return policies
}

// same is the rule of every workflow; it remembers nothing.
func same(rule workflow.Rule) func(recordedWorkflow) workflow.Rule {
	return func(recordedWorkflow) workflow.Rule { return rule }
}

// replayWorkflows replays each workflow with each policy, several at a time: outcomes by workflow, then policy.
func replayWorkflows(ctx context.Context, workflows []recordedWorkflow) ([]map[string][]workflow.Outcome, error) {
	policies := taskPolicies()
	names := slices.Sorted(maps.Keys(policies))
	all, err := each(ctx, len(workflows)*len(names), func(ctx context.Context, i int) ([]workflow.Outcome, error) {
		of, name := workflows[i/len(names)], names[i%len(names)]
		var outcomes []workflow.Outcome
		policy, err := policies[name](ctx, of)
		if err == nil {
			outcomes, err = workflow.Replay(ctx, of.tasks, policy)
		}
		if err != nil {
			return nil, fmt.Errorf("replay %s with %s: %w", of.name, name, err)
		}
		return outcomes, nil
	})
	outcomes := make([]map[string][]workflow.Outcome, len(workflows))
	for i, one := range all {
		if outcomes[i/len(names)] == nil {
			outcomes[i/len(names)] = map[string][]workflow.Outcome{}
		}
		outcomes[i/len(names)][names[i%len(names)]] = one
	}
	return outcomes, err
}

// taskMetric is one figure of a case.
type taskMetric struct {
	name, unit string
	of         func(workflow.Score) float64
	n          func(workflow.Score) int
}

// taskTables are the metrics that belong together, and the policies that have them.
func taskTables() []struct {
	metrics   []taskMetric
	baselines []string
} {
	all := func(s workflow.Score) int { return s.Tasks }
	scored := func(s workflow.Score) int { return s.Scored }
	return []struct {
		metrics   []taskMetric
		baselines []string
	}{
		{
			metrics: []taskMetric{
				{"wastage_gbh", "gbh", func(s workflow.Score) float64 { return s.Wastage }, all},
				{"failures", "attempts", func(s workflow.Score) float64 { return float64(s.Failures) }, all},
			},
			baselines: []string{"request", "witt_percentile", "witt_regression", "witt_low_wastage", "tovar", "hindsight"},
		},
		{
			metrics: []taskMetric{
				{"wall_error_p50", "ratio", func(s workflow.Score) float64 { return s.WallMedian }, scored},
				{"wall_error_mean", "ratio", func(s workflow.Score) float64 { return s.WallMean }, scored},
			},
			baselines: []string{"last_32", "mean_32", "linear", "log_log"},
		},
		{
			metrics: []taskMetric{
				{"coverage_80_peak", "ratio", func(s workflow.Score) float64 { return s.CoveredPeaks }, scored},
				{"coverage_80_wall", "ratio", func(s workflow.Score) float64 { return s.CoveredWalls }, scored},
				{"interval_score_peak", "nats", func(s workflow.Score) float64 { return s.PeakInterval }, scored},
				{"interval_score_wall", "nats", func(s workflow.Score) float64 { return s.WallInterval }, scored},
			},
			baselines: []string{"last_32"},
		},
	}
}

// reportTasks writes the tables of one case.
func reportTasks(into *report, name string, outcomes map[string][]workflow.Outcome) {
	scores := map[string]workflow.Score{}
	for policy, of := range outcomes {
		scores[policy] = workflow.ScoreOf(of)
	}
	for _, table := range taskTables() {
		figures := make([]figure, len(table.metrics))
		for i, metric := range table.metrics {
			figures[i] = figure{
				Eval: "tasks", Set: taskSet, Case: name, Metric: metric.name, Unit: metric.unit,
				Ours: metric.of(scores[ours]), Baselines: map[string]float64{}, N: metric.n(scores[ours]),
			}
			for _, policy := range table.baselines {
				score, replayed := scores[policy]
				if !replayed {
					panic("no policy is called " + policy) // a score of zero would win
				}
				figures[i].Baselines[policy] = metric.of(score)
			}
		}
		into.add(figures...)
	}
}
