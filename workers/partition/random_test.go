package partition_test

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
)

// The classes of the devices in these tests.
const (
	fast = "fast"
	slow = "slow"
)

// shape bounds random graphs.
type shape struct {
	ops, devices int
	// chain joins every operation to the next one only.
	chain bool
	// tight gives devices little memory.
	tight bool
}

// drawProblem draws a graph with whole costs, so that sums are exact, and devices of up to two kinds.
func drawProblem(t *rapid.T, s shape) partition.Problem {
	n := rapid.IntRange(1, s.ops).Draw(t, "ops")
	var g graph.Graph
	for i := range n {
		work := graph.Seconds(rapid.IntRange(0, 9).Draw(t, "work"))
		op := graph.Op{
			ID: strconv.Itoa(i), Workspace: quantity.Bytes(rapid.IntRange(0, 6).Draw(t, "memory")),
			Costs: map[string]graph.Cost{fast: {Forward: work}, slow: {Forward: 3 * work}},
		}
		if rapid.IntRange(0, 9).Draw(t, "slow only") == 0 {
			delete(op.Costs, fast)
		}
		if rapid.IntRange(0, 4).Draw(t, "coloured") == 0 {
			op.Colour = strconv.Itoa(rapid.IntRange(0, 2).Draw(t, "colour"))
		}
		g.Ops = append(g.Ops, op)
	}
	size := make([]int, n)
	for i := range size {
		size[i] = rapid.IntRange(0, 5).Draw(t, "bytes")
	}
	for i := range n {
		for j := i + 1; j < n; j++ {
			if (s.chain && j == i+1) || (!s.chain && rapid.IntRange(0, 2).Draw(t, "edge") == 0) {
				g.Edges = append(g.Edges, graph.Edge{From: i, To: j, Bytes: quantity.Bytes(size[i])})
			}
		}
	}
	p := partition.Problem{Graph: g, Moves: 2000, Links: partition.Links{Between: partition.Link{BytesPerSecond: 1}}}
	p.Links.ThroughHost = rapid.Bool().Draw(t, "through host")
	for d := range rapid.IntRange(1, s.devices).Draw(t, "devices") {
		device := partition.Device{ID: strconv.Itoa(d), Class: fast}
		if s.tight {
			device.Memory = quantity.Bytes(rapid.IntRange(4, 12).Draw(t, "room"))
		}
		p.Devices = append(p.Devices, device)
	}
	p.Devices = append(p.Devices, partition.Device{ID: "host", Class: slow, Host: true})
	return p
}

// loadsOf is the definition of the loads, written down once more.
func loadsOf(p partition.Problem, assignment []int) []float64 {
	loads := make([]float64, len(p.Devices))
	for i, d := range assignment {
		cost, runs := p.Graph.Ops[i].Costs[p.Devices[d].Class]
		if !runs {
			loads[d] = math.Inf(1)
		}
		loads[d] += float64(cost.Forward)
	}
	free := func(d int) bool { return p.Devices[d].Host && p.Links.ThroughHost }
	for from := range p.Graph.Ops {
		var receivers []int
		var bytes quantity.Bytes
		for _, e := range p.Graph.Edges {
			if to := assignment[e.To]; e.From == from && to != assignment[from] && !slices.Contains(receivers, to) {
				receivers = append(receivers, to)
				bytes = e.Bytes
			}
		}
		for i, to := range receivers {
			if !free(to) {
				loads[to] += float64(bytes)
			}
			if !free(assignment[from]) && (i == 0 || !p.Links.ThroughHost) {
				loads[assignment[from]] += float64(bytes)
			}
		}
	}
	return loads
}

// allowed reports whether an assignment keeps colours together, and to memory and classes.
func allowed(p partition.Problem, assignment []int) bool {
	held := make([]quantity.Bytes, len(p.Devices))
	colours := map[string]int{}
	for i, d := range assignment {
		op := p.Graph.Ops[i]
		if _, runs := op.Costs[p.Devices[d].Class]; !runs {
			return false
		}
		if other, seen := colours[op.Colour]; op.Colour != "" && seen && other != d {
			return false
		}
		colours[op.Colour] = d
		held[d] += op.Workspace
		if room := p.Devices[d].Memory; room > 0 && held[d] > room {
			return false
		}
	}
	return true
}

// contiguous reports whether the devices can be put in an order in which every edge leads forward.
func contiguous(p partition.Problem, assignment []int) bool {
	next := make([][]int, len(p.Devices))
	for _, e := range p.Graph.Edges {
		if a, b := assignment[e.From], assignment[e.To]; a != b {
			next[a] = append(next[a], b)
		}
	}
	return len(graph.Topological(next)) == len(next)
}

// each calls visit with every assignment of n operations to k devices; visit must not keep it.
func each(n, k int, visit func([]int)) {
	assignment := make([]int, n)
	for {
		visit(assignment)
		i := 0
		for ; i < n; i++ {
			if assignment[i]++; assignment[i] < k {
				break
			}
			assignment[i] = 0
		}
		if i == n {
			return
		}
	}
}

// bestOf returns the least cost of all assignments that are allowed and wanted; +Inf where there is none.
func bestOf(p partition.Problem, wanted func([]int) bool, cost func([]int) float64) float64 {
	best := math.Inf(1)
	each(len(p.Graph.Ops), len(p.Devices), func(assignment []int) {
		if allowed(p, assignment) && wanted(assignment) {
			best = min(best, cost(assignment))
		}
	})
	return best
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

func solve(tb testing.TB, p partition.Problem) partition.Plan {
	tb.Helper()
	plan, err := partition.Solve(p)
	if err != nil {
		tb.Fatal(err)
	}
	return plan
}
