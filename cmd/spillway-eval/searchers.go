package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/cmd/internal/series"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/tuning"
)

// fewestTrials is the least that a pool has.
const fewestTrials = 18

func evaluateSearchers(ctx context.Context, seed uint64, orders int, with common) error {
	pools, err := trialPools(filepath.Join(with.data, "algoperf_curves"))
	if errors.Is(err, fs.ErrNotExist) {
		_, _ = fmt.Fprintf(with.notes, "spillway-eval tuning: algoperf_curves is absent from %s: skipped\n", with.data)
		return nil
	}
	if err != nil {
		return err
	}
	if len(pools) == 0 {
		_, _ = fmt.Fprintf(with.notes, "spillway-eval tuning: algoperf_curves has no pool of %d trials that differ: "+
			"skipped\n", fewestTrials)
		return nil
	}
	if err := reportEnds(ctx, pools, orders, seed, with.report); err != nil {
		return err
	}
	regrets := map[string][][]float64{} // of each searcher, of each pool, for each budget
	for _, name := range tuning.Searchers() {
		for _, pool := range pools {
			regret, err := pool.Regret(ctx, name, orders, seed)
			if err != nil {
				return err
			}
			regrets[name] = append(regrets[name], regret)
		}
	}
	studies := map[string][]int{"all": nil}
	for i, pool := range pools {
		studies["all"] = append(studies["all"], i)
		studies["study "+pool.Study] = append(studies["study "+pool.Study], i)
	}
	for _, study := range slices.Sorted(maps.Keys(studies)) {
		for i, multiple := range tuning.Multiples {
			reportRegret(with.report, fmt.Sprintf("%s, %gR", study, multiple), len(studies[study]), func(name string) float64 {
				var of []float64
				for _, pool := range studies[study] {
					of = append(of, regrets[name][pool][i])
				}
				return mean(of)
			})
		}
	}
	return nil
}

// reportEnds reports where ASHA ends that does not go on, with what curves say and without.
func reportEnds(ctx context.Context, pools []tuning.Pool, orders int, seed uint64, into *report) error {
	spent, regret := map[string][]float64{}, map[string][]float64{}
	for _, searcher := range tuning.Searchers()[:2] {
		for _, pool := range pools {
			s, r, err := pool.End(ctx, searcher, orders, seed)
			if err != nil {
				return err
			}
			spent[searcher], regret[searcher] = append(spent[searcher], s), append(regret[searcher], r)
		}
	}
	add := func(metric, unit string, of map[string][]float64) {
		into.add(figure{
			Eval: "tuning", Set: "algoperf_curves", Case: "done", Metric: metric, Unit: unit, Ours: mean(of["asha"]),
			Baselines: map[string]float64{tuning.Plain: mean(of[tuning.Plain])}, N: len(pools),
		})
	}
	add("spent", "R", spent)
	add("regret", "ratio", regret)
	return nil
}

func reportRegret(into *report, name string, pools int, of func(searcher string) float64) {
	ours := of("asha")
	regret, ratio := map[string]float64{}, map[string]float64{}
	for _, searcher := range tuning.Searchers()[1:] { // without ours
		regret[searcher] = of(searcher)
		ratio[searcher] = of(searcher) / of("random")
	}
	into.add(
		figure{
			Eval: "tuning", Set: "algoperf_curves", Case: name, Metric: "regret", Unit: "ratio", Ours: ours,
			Baselines: regret, N: pools,
		},
		figure{
			Eval: "tuning", Set: "algoperf_curves", Case: name, Metric: "regret_ratio", Unit: "times",
			Ours: ours / of("random"), Baselines: ratio, N: pools,
		},
	)
	if plain := regret[tuning.Plain]; plain > 0 { // a ratio to nothing is no figure
		into.add(figure{
			Eval: "tuning", Set: "algoperf_curves", Case: name, Metric: "curves_ratio", Unit: "times", Ours: ours / plain,
			N: pools,
		})
	}
}

// trialPools reads the pools of recorded trainings of the external tuning ruleset.
func trialPools(folder string) ([]tuning.Pool, error) {
	of, err := tuned(folder)
	if err != nil {
		return nil, err
	}
	paths, err := series.Files(folder, "curves_")
	if err != nil {
		return nil, err
	}
	pools := map[string]*tuning.Pool{}
	for _, path := range paths {
		columns := series.CurveColumns{Run: "trial_id", Step: "global_step", Value: "val_metric"}
		curves, err := series.Open(path, series.Curves(columns))
		if err != nil {
			return nil, err
		}
		for _, curve := range curves {
			if label, known := of[curve.Run]; known {
				pool := cmp.Or(pools[label.pool], &tuning.Pool{Study: label.study})
				pools[label.pool] = pool
				pool.Trials = append(pool.Trials, label.trial(curve))
			}
		}
	}
	var whole []tuning.Pool
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		if pool := *pools[name]; len(pool.Trials) >= fewestTrials && pool.Whole() {
			whole = append(whole, pool)
		}
	}
	return whole, nil
}

// trialLabel is what is told of a trial: its pool, the study of that, and whether a larger metric is better.
type trialLabel struct {
	pool, study string
	maximise    bool
}

func (l trialLabel) trial(curve series.Curve) tuning.Trial {
	if l.maximise {
		for i, value := range curve.Values {
			curve.Values[i] = -value
		}
	}
	return tuning.Trial{Steps: curve.Steps, Values: curve.Values}
}

// tuned are the trials of the external tuning ruleset, by their names.
func tuned(folder string) (map[string]trialLabel, error) {
	all, err := labelled(folder, "trials", "trial_id", "ruleset", "workload", "framework", "study", "direction")
	if err != nil {
		return nil, err
	}
	of := map[string]trialLabel{}
	for name, is := range all {
		if is[0] == "external_tuning" {
			of[name] = trialLabel{strings.Join(is[1:4], " "), is[3], is[4] == "max"}
		}
	}
	return of, nil
}
