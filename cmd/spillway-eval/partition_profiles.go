package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
)

// readProfile reads a profile, without what PipeDream's own planner leaves out: the layers that hold the input, and
// unused parts of an output.
func readProfile(name string) (graph.Graph, error) {
	g, err := readGraph(name, func(f *os.File) (graph.Graph, error) { return graph.ReadPipeDream(f) })
	if err != nil {
		return g, err
	}
	feeds, fed := make([]bool, len(g.Ops)), make([]bool, len(g.Ops))
	for _, e := range g.Edges {
		feeds[e.From], fed[e.To] = true, true
	}
	kept := make([]int, len(g.Ops))
	trimmed := graph.Graph{Name: strings.TrimSuffix(strings.TrimSuffix(filepath.Base(name), ".txt"), ".graph")}
	for i, op := range g.Ops {
		kept[i] = -1
		if (!fed[i] && strings.HasPrefix(op.Name, "Input")) || (!feeds[i] && strings.HasPrefix(op.Name, "__getitem__")) {
			continue
		}
		kept[i] = len(trimmed.Ops)
		trimmed.Ops = append(trimmed.Ops, op)
	}
	for _, e := range g.Edges {
		if kept[e.From] >= 0 && kept[e.To] >= 0 {
			e.From, e.To = kept[e.From], kept[e.To]
			trimmed.Edges = append(trimmed.Edges, e)
		}
	}
	return trimmed, nil
}

// profiled is a problem of training a profile.
func profiled(g graph.Graph, devices int) partition.Problem {
	return partition.Problem{
		Graph: g, Devices: equalDevices(devices, 0), Objective: partition.Step, Training: true, Memory: plainMomentum(),
		Links: partition.Links{Between: partition.Link{BytesPerSecond: 1.25e9}}, MostMicroBatches: 32,
	}
}

func evaluatePipeDream(ctx context.Context, folder string, into *report) error {
	names, err := filepath.Glob(filepath.Join(folder, "*.graph.txt"))
	if err != nil {
		return err
	}
	for _, name := range names {
		g, err := readProfile(name)
		if err != nil {
			return err
		}
		for _, devices := range []int{4, 16} {
			if err := ctx.Err(); err != nil {
				return err
			}
			p := profiled(g, devices)
			for _, activations := range []bool{false, true} {
				plan, err := partition.PipeDream(p, activations)
				if err != nil {
					return fmt.Errorf("%s: %w", g.Name, err)
				}
				of := "without activations"
				if activations {
					of = "with activations"
				}
				into.add(figure{
					Eval: "partition", Set: "pipedream_profiles",
					Case:   fmt.Sprintf("%s on %d, %s: %s", g.Name, devices, of, splits(plan)),
					Metric: "batch_time", Unit: "s", Ours: float64(plan.StepTime), N: len(g.Ops),
					Baselines: map[string]float64{"data_parallel": dataParallel(p)},
				})
			}
			if err := compareSteps("pipedream_profiles", g.Name, p, into); err != nil {
				return err
			}
		}
	}
	return nil
}

// splits writes the stages as PipeDream does: the range of layers and the replicas.
func splits(plan partition.Plan) string {
	parts := make([]string, len(plan.Stages))
	at := 0
	for i, s := range plan.Stages {
		parts[i] = fmt.Sprintf("(%d-%d)x%d", at, at+len(s.Ops), len(s.Devices))
		at += len(s.Ops)
	}
	return strings.Join(parts, " ")
}

// dataParallel is PipeDream's cost of one stage on all devices.
func dataParallel(p partition.Problem) float64 {
	work, size, n := 0.0, 0.0, float64(len(p.Devices))
	for _, op := range p.Graph.Ops {
		cost := op.Costs[graph.Accelerator]
		work += float64(cost.Forward + cost.Backward)
		size += float64(op.Parameters)
	}
	return (work + 4*(n-1)*size/(p.Links.Between.BytesPerSecond*n)) / n
}

// compareSteps measures our plan beside PipeDream's, both as synchronous steps with the number of micro-batches that
// suits each best.
func compareSteps(set, instance string, p partition.Problem, into *report) error {
	plan, milli, err := timed(partition.Solve, p)
	if err != nil {
		return fmt.Errorf("%s: %w", instance, err)
	}
	steps := map[string]float64{"lower_bound": float64(plan.LowerBound)}
	all := make([]int, len(p.Graph.Ops))
	for i := range all {
		all[i] = i
	}
	whole := partition.Stage{Ops: all}
	for d := range p.Devices {
		whole.Devices = append(whole.Devices, d)
	}
	candidates := map[string][]partition.Stage{"data_parallel": {whole}}
	for name, activations := range map[string]bool{"pipedream": false, "pipedream_activations": true} {
		made, err := partition.PipeDream(p, activations)
		if err != nil {
			return fmt.Errorf("%s: %w", instance, err)
		}
		candidates[name] = made.Stages
	}
	for name, stages := range candidates {
		for micro := 1; micro <= p.MostMicroBatches; micro *= 2 {
			made, err := partition.EvaluateStages(p, stages, micro)
			if errors.Is(err, partition.ErrUnfit) {
				continue // without any that fits, the plan has no figure
			}
			if err != nil {
				return fmt.Errorf("%s: %w", instance, err)
			}
			if least, known := steps[name]; !known || float64(made.StepTime) < least {
				steps[name] = float64(made.StepTime)
			}
		}
	}
	name := fmt.Sprintf("%s on %d", instance, len(p.Devices))
	into.add(figure{
		Eval: "partition", Set: set, Case: name, Metric: "step_time", Unit: "s", Ours: float64(plan.StepTime),
		Baselines: steps, N: len(p.Graph.Ops),
	})
	into.add(figure{
		Eval: "partition", Set: set, Case: name, Metric: "plan_ms", Unit: "ms", Ours: milli, Baselines: map[string]float64{},
		N: len(p.Graph.Ops),
	})
	return nil
}

func evaluateDAPPLE(ctx context.Context, folder string, into *report) error {
	names, err := filepath.Glob(filepath.Join(folder, "*.txt"))
	if err != nil {
		return err
	}
	const microBatches = 32
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		g, err := readProfile(name)
		if err != nil {
			return err
		}
		if err := compareSteps("dapple_profiles", g.Name, profiled(times(g, microBatches), 16), into); err != nil {
			return err
		}
	}
	return nil
}

// times is the graph of so many batches at once.
func times(g graph.Graph, n int) graph.Graph {
	many := graph.Graph{Name: g.Name, Ops: slices.Clone(g.Ops), Edges: slices.Clone(g.Edges)}
	for i, op := range many.Ops {
		op.Activation *= quantity.Bytes(n)
		op.Costs = maps.Clone(op.Costs)
		for class, cost := range op.Costs {
			op.Costs[class] = graph.Cost{Forward: cost.Forward * graph.Seconds(n), Backward: cost.Backward * graph.Seconds(n)}
		}
		if op.Recompute != nil {
			op.Recompute = &graph.Recompute{
				Extra:      op.Recompute.Extra * graph.Seconds(n),
				Activation: op.Recompute.Activation * quantity.Bytes(n),
			}
		}
		many.Ops[i] = op
	}
	for i := range many.Edges {
		many.Edges[i].Bytes *= quantity.Bytes(n)
	}
	return many
}

func evaluatePiper(ctx context.Context, folder string, into *report) error {
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		w, err := readGraph(name, func(f *os.File) (workload, error) {
			g, limits, err := graph.ReadPiper(f)
			return workload{g, limits}, err
		})
		if err != nil {
			return err
		}
		samples := max(w.limits.MicroBatches, 1)
		p := partition.Problem{
			Graph: times(w.graph, samples), Devices: equalDevices(w.limits.Accelerators, w.limits.Memory),
			Objective: partition.Step, Training: true,
			Memory: partition.Memory{Weight: 2, Gradient: 2, Optimizer: 0, Recompute: true}, MostMicroBatches: samples,
			Links: partition.Links{Between: partition.Link{BytesPerSecond: w.limits.BytesPerSecond}},
		}
		if err := compareSteps("piper", strings.TrimSuffix(filepath.Base(name), ".json"), p, into); err != nil {
			return err
		}
	}
	return nil
}
