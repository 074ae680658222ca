package main

import (
	"context"
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/tuning"
)

// evaluateGoals lets jobs be done by deadlines, and within budgets.
func evaluateGoals(ctx context.Context, goals tuning.Goals, jobs int, into *report) error {
	deadlines, err := each(ctx, jobs, goals.Deadline)
	if err != nil {
		return err
	}
	budgets, err := each(ctx, jobs, goals.Budget)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("deadlines to be met with %g", goals.Confidence)
	into.add(append(met(name, deadlines),
		goal(name, "cost_over_oracle", "times", overAll(deadlines), jobs),
		goal(name, "cost_over_oracle_median", "times", median(over(deadlines, costOver)), jobs),
		goal(name, "cost_over_oracle_mean", "times", mean(over(deadlines, costOver)), jobs),
		goal(name, "changes_mean", "changes", mean(over(deadlines, changed)), jobs),
	)...)
	name = fmt.Sprintf("budgets to be kept with %g", goals.Confidence)
	most := 0.0
	for _, out := range budgets {
		most = math.Max(most, out.Most)
	}
	into.add(append(met(name, budgets),
		goal(name, "time_over_oracle_median", "times", median(over(budgets, overOracle)), jobs),
		goal(name, "spent_most", "ratio", most, jobs),
	)...)
	return nil
}

func goal(name, metric, unit string, value float64, n int) figure {
	return figure{Eval: "tuning", Set: "simulated", Case: name, Metric: metric, Unit: unit, Ours: value, N: n}
}

// met is how many met their goal, and of how many that was to be expected.
func met(name string, done []tuning.Outcome) []figure {
	all, promised, kept := 0.0, 0.0, 0.0
	for _, out := range done {
		if out.Met {
			all++
		}
		if out.Promised {
			promised++
			if out.Met {
				kept++
			}
		}
	}
	n := float64(len(done))
	return []figure{
		goal(name, "met", "ratio", all/n, len(done)),
		goal(name, "promised", "ratio", promised/n, len(done)),
		goal(name, "met_promised", "ratio", kept/math.Max(1, promised), int(promised)),
	}
}

func costOver(out tuning.Outcome) float64   { return float64(out.Cost) / float64(out.Oracle.Cost) }
func overOracle(out tuning.Outcome) float64 { return out.Seconds / out.Oracle.Seconds }
func changed(out tuning.Outcome) float64    { return float64(out.Changes) }

// over are the values of each job.
func over(done []tuning.Outcome, of func(tuning.Outcome) float64) (values []float64) {
	for _, out := range done {
		values = append(values, of(out))
	}
	return values
}

// overAll is what all jobs cost over what they cost who knows all.
func overAll(done []tuning.Outcome) float64 {
	ours, oracle := 0.0, 0.0
	for _, out := range done {
		ours += out.Cost.USD()
		oracle += out.Oracle.Cost.USD()
	}
	return ours / oracle
}
