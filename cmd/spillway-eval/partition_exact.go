package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
)

const (
	// partsOfGraph is how many parts of each graph are placed in every possible way, and mostOpsOfPart how many operations
	// one has.
	partsOfGraph  = 20
	mostOpsOfPart = 12
	// partDevices is how many devices they are placed on: the ways are 2 to the power of the operations.
	partDevices = 2
)

// exact compares plans of small parts of a graph with the best of all placements: ours is the worst ratio of the two.
func (w workload) exact(instance string, into *report) error {
	order, err := w.graph.Order()
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1, uint64(len(order)))) //nolint:gosec // which parts are drawn is no secret
	worst, compared := 1.0, 0
	for range partsOfGraph {
		p, drawn := w.part(order, random)
		if !drawn {
			continue
		}
		best, err := bestPlacement(p)
		if err != nil {
			return err
		}
		if math.IsInf(best, 1) || best == 0 {
			continue
		}
		plan, err := partition.Solve(p)
		if err != nil {
			return fmt.Errorf("a part that fits: %w", err)
		}
		compared++
		worst = max(worst, float64(plan.StepTime)/best)
	}
	if compared == 0 {
		return nil
	}
	into.add(figure{
		Eval: "partition", Set: "dnn_partitioning", Case: "latency " + instance, Metric: "exact_ratio", Unit: "ratio",
		Ours:      worst,
		Baselines: map[string]float64{"exact": 1}, N: compared,
	})
	return nil
}

// part is a problem of neighbours in topological order with what lies between them. Each accelerator holds three
// quarters of it.
func (w workload) part(order []int, random *rand.Rand) (p partition.Problem, drawn bool) {
	n := min(mostOpsOfPart, len(order))
	at := random.IntN(len(order) - n + 1)
	number := map[int]int{}
	var g graph.Graph
	var memory quantity.Bytes
	for _, op := range order[at : at+n] {
		number[op] = len(g.Ops)
		g.Ops = append(g.Ops, w.graph.Ops[op])
		memory += w.graph.Ops[op].Parameters + w.graph.Ops[op].Workspace + w.graph.Ops[op].Activation
	}
	for _, e := range w.graph.Edges {
		from, within := number[e.From]
		to, alsoWithin := number[e.To]
		if within && alsoWithin {
			e.From, e.To = from, to
			g.Edges = append(g.Edges, e)
		}
	}
	if len(g.Edges) == 0 {
		return p, false
	}
	smaller := workload{graph: g, limits: graph.Limits{Accelerators: partDevices, Memory: memory * 3 / 4}}
	return smaller.problem(partition.Latency), true
}

// bestPlacement is the shortest makespan of all placements; infinite where none fits.
func bestPlacement(p partition.Problem) (float64, error) {
	best := math.Inf(1)
	assignment := make([]int, len(p.Graph.Ops))
	for ways := range 1 << len(assignment) {
		for op := range assignment {
			assignment[op] = ways >> op & 1
		}
		if !together(p.Graph, assignment) {
			continue
		}
		plan, err := partition.Evaluate(p, slices.Clone(assignment))
		if errors.Is(err, partition.ErrUnfit) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("one of all placements: %w", err)
		}
		best = min(best, float64(plan.StepTime))
	}
	return best, nil
}

// together reports whether operations of one colour are on one device.
func together(g graph.Graph, assignment []int) bool {
	at := map[string]int{}
	for i, op := range g.Ops {
		if device, seen := at[op.Colour]; op.Colour != "" && seen && device != assignment[i] {
			return false
		}
		at[op.Colour] = assignment[i]
	}
	return true
}
