package main

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/cmd/internal/series"
	"github.com/spillway-ml/spillway/predictor/curve"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/training"
)

// curveSet is workloads whose runs are scored together.
type curveSet struct {
	name      string
	workloads []training.Workload
}

// curveSource is a folder of recorded trainings.
type curveSource struct {
	name string
	// read is given the folder of all sets.
	read func(data string) ([]curveSet, error)
}

func curveSources() []curveSource {
	return []curveSource{
		{"algoperf_curves", algoperfCurves},
		{"mlperf_v07_curves", mlperfCurves},
		{"nanogpt_curves", nanogptCurves},
		{"pollux_profiles", polluxCurves},
	}
}

func algoperfCurves(data string) ([]curveSet, error) {
	folder := filepath.Join(data, "algoperf_curves")
	labels, err := labelled(folder, "trials", "trial_id", "workload", "framework")
	if err != nil {
		return nil, err
	}
	paths, err := series.Files(folder, "curves_")
	if err != nil {
		return nil, err
	}
	format := series.Curves(series.CurveColumns{Run: "trial_id", Step: "global_step", Value: "val_loss"})
	var sets []curveSet
	for _, path := range paths {
		all, err := series.Open(path, format)
		if err != nil {
			return nil, err
		}
		workloads, err := workloadsOf(all, curve.Minimise, labels)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		sets = append(sets, curveSet{strings.TrimPrefix(setName(filepath.Base(path)), "curves_"), workloads})
	}
	return sets, nil
}

func mlperfCurves(data string) ([]curveSet, error) {
	folder := filepath.Join(data, "mlperf_v07_curves")
	labels, err := labelled(folder, "runs", "run_id", "benchmark")
	if err != nil {
		return nil, err
	}
	all, err := allCurves(folder, series.CurveColumns{Run: "run_id", Step: "epoch", Value: "eval_metric"})
	if err != nil {
		return nil, err
	}
	workloads, err := workloadsOf(all, curve.Maximise, labels)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	var sets []curveSet
	for _, workload := range workloads {
		sets = append(sets, curveSet{"mlperf " + workload.Name, []training.Workload{workload}})
	}
	return sets, nil
}

func nanogptCurves(data string) ([]curveSet, error) {
	all, err := allCurves(filepath.Join(data, "nanogpt_curves"), series.CurveColumns{
		Run: "run_id", Step: "step", Value: "loss", Kind: "kind", Only: "val_loss",
	})
	if err != nil {
		return nil, err
	}
	workload := training.Workload{Name: "nanogpt", Runs: runsOf(all, false)}
	return []curveSet{{workload.Name, []training.Workload{workload}}}, nil
}

// polluxWorkloads are those whose curves are longer than a few points, and whether their metric is one that is
// maximised, of which 1 - metric is looked at.
var polluxWorkloads = []struct {
	name      string
	maximised bool
}{{"cifar10", true}, {"deepspeech2", false}, {"imagenet", true}, {"ncf", true}, {"yolov3", false}}

func polluxCurves(data string) ([]curveSet, error) {
	entries, err := filepath.Glob(filepath.Join(data, "pollux_profiles", "*"))
	if err != nil {
		return nil, fmt.Errorf("list recorded data: %w", err)
	}
	if len(entries) == 0 {
		_, err := series.Files(filepath.Join(data, "pollux_profiles"), "validation-")
		return nil, err
	}
	var sets []curveSet
	for _, of := range polluxWorkloads {
		folder := filepath.Join(data, "pollux_profiles", of.name)
		if !slices.Contains(entries, folder) {
			continue
		}
		paths, err := series.Files(folder, "validation-")
		if err != nil {
			return nil, err
		}
		workload := training.Workload{Name: of.name}
		for _, path := range paths {
			all, err := series.Open(path, series.Curves(series.CurveColumns{Step: "progress", Value: "metric"}))
			if err != nil {
				return nil, err
			}
			all[0].Run = setName(filepath.Base(path))
			workload.Runs = append(workload.Runs, runsOf(all, of.maximised)...)
		}
		sets = append(sets, curveSet{"pollux " + of.name, []training.Workload{workload}})
	}
	return sets, nil
}

// allCurves reads the curves of all files of a folder.
func allCurves(folder string, columns series.CurveColumns) ([]series.Curve, error) {
	paths, err := series.Files(folder, "curves")
	if err != nil {
		return nil, err
	}
	var all []series.Curve
	for _, path := range paths {
		of, err := series.Open(path, series.Curves(columns))
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

// labelled is what the tables of a folder say of trainings, by name.
func labelled(folder, prefix, name string, values ...string) (map[string][]string, error) {
	paths, err := series.Files(folder, prefix)
	if err != nil {
		return nil, err
	}
	labels := map[string][]string{}
	for _, path := range paths {
		all, err := series.Open(path, series.LabelsOf(name, values...))
		if err != nil {
			return nil, err
		}
		for _, of := range all {
			labels[of.Name] = of.Values
		}
	}
	return labels, nil
}

// fewestPoints is the number of points below which a training is left out: a fifth of it is none.
const fewestPoints = 5

// runsOf puts recorded curves into the form of runs; upside down says to take 1 - value.
func runsOf(all []series.Curve, upsideDown bool) []training.Run {
	var runs []training.Run
	for _, of := range all {
		run, known := training.Run{Name: of.Run}, 0
		for i, step := range of.Steps {
			value := of.Values[i]
			if upsideDown {
				value = 1 - value
			}
			if !math.IsNaN(value) {
				known++
			}
			run.Points = append(run.Points, curve.Point{Step: step, Value: value})
		}
		if known >= fewestPoints {
			runs = append(runs, run)
		}
	}
	return runs
}

// workloadsOf groups recorded curves by their labels, in the order of these.
func workloadsOf(
	all []series.Curve, direction curve.Direction, labels map[string][]string,
) ([]training.Workload, error) {
	var workloads []training.Workload
	for _, run := range runsOf(all, false) {
		label, known := labels[run.Name]
		if !known {
			return nil, fmt.Errorf("no table says which workload %q is of", run.Name)
		}
		name := strings.Join(label, " ")
		i := slices.IndexFunc(workloads, func(w training.Workload) bool { return w.Name == name })
		if i < 0 {
			i, workloads = len(workloads), append(workloads, training.Workload{Name: name, Direction: direction})
		}
		workloads[i].Runs = append(workloads[i].Runs, run)
	}
	slices.SortFunc(workloads, func(a, b training.Workload) int { return strings.Compare(a.Name, b.Name) })
	return workloads, nil
}
