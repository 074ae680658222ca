package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/cmd/internal/series"
	"github.com/spillway-ml/spillway/predictor/curve"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/training"
)

func curves() verb {
	return verb{name: "curves", summary: "x", explain: "x",
		define: func(flags *flag.FlagSet) func(context.Context, common) error {
			p := training.Protocol{}
			flags.Uint64Var(&p.Seed, "seed", 1, "`seed`")
			flags.IntVar(&p.Earlier, "earlier", 64, "`n`")
			flags.IntVar(&p.Scored, "scored", 20, "`n`")
			only := flags.String("only", "", "`set`")
			return func(ctx context.Context, with common) error { return evaluateCurves(ctx, with, p, *only) }
		}}
}

const refs = false

// curveSet is workloads whose runs are scored together.
type curveSet struct {
	name      string
	workloads []training.Workload
}

func evaluateCurves(ctx context.Context, with common, p training.Protocol, only string) error {
	var sets []curveSet
	for _, read := range []func(string) ([]curveSet, error){algoperfCurves, mlperfCurves, nanogptCurves, polluxCurves} {
		of, err := read(with.data)
		if errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintln(with.notes, "skipped:", err)
			continue
		}
		if err != nil {
			return err
		}
		sets = append(sets, of...)
	}
	tot, cells, met, covd := map[string]float64{}, map[string]float64{}, map[string]float64{}, map[string]float64{}
	defer func() {
		for k := range cells {
			fmt.Printf("%s ratio %.3f met %v cov %v of %v\n", k, math.Exp(tot[k]/cells[k]), met[k], covd[k], cells[k])
		}
	}()
	for _, set := range sets {
		if only != "" && !strings.Contains(set.name, only) {
			continue
		}
		for _, warm := range []bool{false, true} {
			var asked training.Asked
			for _, w := range set.workloads {
				if err := p.Replay(ctx, w, warm, &asked); err != nil {
					return err
				}
			}
			kind := "cold"
			if warm {
				kind = "WARM"
			}
			fmt.Printf("%-18s %s", set.name, kind)
			for i := range training.Parts {
				if len(asked[i]) == 0 {
					fmt.Printf(" | %48s", "")
					continue
				}
				never, said := 0, 0
				var reached []training.Answer
				for _, a := range asked[i] {
					if math.IsInf(a.True, 1) {
						never++
					} else {
						reached = append(reached, a)
					}
					if math.IsInf(a.Said[training.Ours], 1) {
						said++
					}
				}
				times := training.BestMultiple(asked[i])
				for j := range asked[i] {
					asked[i][j].Said["multiple"] = times * asked[i][j].Seen
				}
				least, who := math.Inf(1), ""
				for _, name := range []string{"power", "exponential", "optimus", "twice", "earlier_median"} {
					if name == "earlier_median" && !warm {
						continue
					}
					if e := training.Error(asked[i], name, 0.5); e < least {
						least, who = e, name
					}
				}
				if kind == "cold" {
					for _, c := range [][]string{{"power", "optimus"}, {"power", "twice"}, {"power", "optimus", "exponential", "twice"}, {"power", "optimus", "twice"}, {"spillway", "twice"}, {"spillway", "power", "optimus"}, {"spillway", "power", "optimus", "twice"}} {
						key := fmt.Sprint(c)
						for j := range asked[i] {
							a := asked[i][j]
							sum, n, inf := 0.0, 0.0, 0
							for _, m := range c {
								v := a.Said[m]
								if math.IsInf(v, 1) {
									inf++
									v = a.Seen * 20
								}
								sum += math.Log(math.Min(v, a.Seen*20))
								n++
							}
							a.Said[key] = math.Exp(sum / n)
							if inf*2 > len(c) {
								a.Said[key] = math.Inf(1)
							}
						}
						e := training.Error(asked[i], key, 0.5)
						tot[key] += math.Log((e + .02) / (least + .02))
						cells[key]++
						if e <= .7*least {
							met[key]++
						}
					}
				}
				e := training.Error(asked[i], training.Ours, 0.5)
				r := math.NaN()
				if len(reached) > 0 {
					r = training.Error(reached, training.Ours, 0.5)
				}
				fmt.Printf(" | %.3f(%.2f) %.2f %s/%.2f c%.0f n%.0f/%.0f", e, r, e/least, who[:3], training.Error(asked[i], "multiple", 0.5), 100*training.Covered(asked[i]),
					100*float64(said)/float64(len(asked[i])), 100*float64(never)/float64(len(asked[i])))
				if e/least > 1e9 || e == least {
					tot[kind] += 0
				} else {
					tot[kind] += math.Log((e + .02) / (least + .02))
				}
				cells[kind]++
				if e <= least*map[string]float64{"cold": .7, "WARM": .4}[kind] {
					met[kind]++
				}
				if c := training.Covered(asked[i]); c >= .72 && c <= .88 {
					covd[kind]++
				}
			}
			fmt.Println()
			if kind == os.Getenv("PIT") {
				for i := range training.Parts {
					var h [10]int
					nv := 0.0
					for _, a := range asked[i] {
						if !math.IsInf(a.True, 1) {
							h[min(9, int(a.PIT*10))]++
						} else {
							nv += a.Never
						}
					}
					fmt.Printf("      %v %v never %.2f", training.Parts[i], h, nv/float64(len(asked[i])))
					nv = 0
					for _, a := range asked[i] {
						nv += a.Never
					}
					fmt.Printf(" all %.2f\n", nv/float64(len(asked[i])))
				}
			}
		}
		if !refs {
			continue
		}
		ref := p.Reference(set.workloads, 60)
		for i := range ref {
			if len(ref[i]) > 0 {
				fmt.Printf("   reference n=%d pow %.2f exp %.2f opt %.2f\n", len(ref[i]), training.Error(ref[i], "power", .5), training.Error(ref[i], "exponential", .5), training.Error(ref[i], "optimus", .5))
			}
		}
	}
	return nil
}

// runsOf puts recorded curves into the form of runs; those of fewer than five points or without any value are left out.
func runOf(of series.Curve, name string, negated bool) (training.Run, bool) {
	run := training.Run{Name: name}
	known := 0
	for i, step := range of.Steps {
		value := of.Values[i]
		if negated {
			value = 1 - value
		}
		if !math.IsNaN(value) {
			known++
		}
		run.Points = append(run.Points, curve.Point{Step: step, Value: value})
	}
	return run, known >= 5
}

// grouped puts runs into workloads by a label, in the order of the labels.
func groupedRuns(all []series.Curve, direction curve.Direction, label func(run string) string) []training.Workload {
	by := map[string]*training.Workload{}
	var names []string
	for _, of := range all {
		run, whole := runOf(of, of.Run, false)
		name := label(of.Run)
		if !whole || name == "" {
			continue
		}
		if by[name] == nil {
			by[name] = &training.Workload{Name: name, Direction: direction}
			names = append(names, name)
		}
		by[name].Runs = append(by[name].Runs, run)
	}
	slices.Sort(names)
	var workloads []training.Workload
	for _, name := range names {
		workloads = append(workloads, *by[name])
	}
	return workloads
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
	var sets []curveSet
	for _, path := range paths {
		all, err := series.Open(path, series.Curves(series.CurveColumns{Run: "trial_id", Step: "global_step", Value: "val_loss"}))
		if err != nil {
			return nil, err
		}
		name := strings.TrimPrefix(strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".gz"), ".csv"), "curves_")
		sets = append(sets, curveSet{name, groupedRuns(all, curve.Minimise, func(run string) string {
			return strings.Join(labels[run], " ")
		})})
	}
	return sets, nil
}

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

func mlperfCurves(data string) ([]curveSet, error) {
	folder := filepath.Join(data, "mlperf_v07_curves")
	labels, err := labelled(folder, "runs", "run_id", "benchmark")
	if err != nil {
		return nil, err
	}
	paths, err := series.Files(folder, "curves")
	if err != nil {
		return nil, err
	}
	var all []series.Curve
	for _, path := range paths {
		of, err := series.Open(path, series.Curves(series.CurveColumns{Run: "run_id", Step: "epoch", Value: "eval_metric"}))
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	var sets []curveSet
	for _, w := range groupedRuns(all, curve.Maximise, func(run string) string { return strings.Join(labels[run], " ") }) {
		sets = append(sets, curveSet{"mlperf " + w.Name, []training.Workload{w}})
	}
	return sets, nil
}

func nanogptCurves(data string) ([]curveSet, error) {
	paths, err := series.Files(filepath.Join(data, "nanogpt_curves"), "curves")
	if err != nil {
		return nil, err
	}
	var all []series.Curve
	for _, path := range paths {
		of, err := series.Open(path, series.Curves(series.CurveColumns{Run: "run_id", Step: "step", Value: "loss", Kind: "kind", Only: "val_loss"}))
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return []curveSet{{"nanogpt", groupedRuns(all, curve.Minimise, func(string) string { return "nanogpt" })}}, nil
}

func polluxCurves(data string) ([]curveSet, error) {
	var sets []curveSet
	for _, name := range []string{"cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"} {
		paths, err := series.Files(filepath.Join(data, "pollux_profiles", name), "validation-")
		if err != nil {
			return nil, err
		}
		w := training.Workload{Name: name}
		for _, path := range paths {
			all, err := series.Open(path, series.Curves(series.CurveColumns{Step: "iteration", Value: "metric"}))
			if err != nil {
				return nil, err
			}
			run, whole := runOf(all[0], filepath.Base(path), name == "cifar10" || name == "imagenet" || name == "ncf")
			if whole {
				w.Runs = append(w.Runs, run)
			}
		}
		sets = append(sets, curveSet{"pollux " + name, []training.Workload{w}})
	}
	return sets, nil
}
