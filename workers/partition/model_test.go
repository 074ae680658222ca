package partition_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
)

func Example() {
	cost := map[string]graph.Cost{"gpu": {Forward: 1}}
	plan, err := partition.Solve(partition.Problem{
		Graph: graph.Graph{
			Ops: []graph.Op{
				{ID: "embed", Costs: cost},
				{ID: "attend", Costs: cost},
				{ID: "classify", Costs: cost},
				{ID: "sample", Costs: cost},
			},
			Edges: []graph.Edge{{From: 0, To: 1, Bytes: 100}, {From: 1, To: 2, Bytes: 10}, {From: 2, To: 3, Bytes: 100}},
		},
		Devices: []partition.Device{{ID: "gpu 0", Class: "gpu"}, {ID: "gpu 1", Class: "gpu"}},
		Links:   partition.Links{Between: partition.Link{BytesPerSecond: 1000}, ThroughHost: true},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(plan.Assignment, plan.StepTime)
	// Output: [0 0 1 1] 2.01
}

// equal is n fast devices of so much memory.
func equal(n int, memory quantity.Bytes) []partition.Device {
	devices := make([]partition.Device, n)
	for i := range devices {
		devices[i] = partition.Device{ID: "gpu-" + strconv.Itoa(i), Class: fast, Memory: memory}
	}
	return devices
}

// layered is a graph of blocks with a branch and a skip each, as residual networks have them, for so many devices.
func layered(ops, devices int, seed uint64) partition.Problem {
	random := rand.New(rand.NewPCG(seed, 1))
	var g graph.Graph
	for i := range ops {
		g.Ops = append(g.Ops, graph.Op{
			ID: strconv.Itoa(i), Costs: map[string]graph.Cost{fast: {
				Forward:  graph.Seconds(0.5 + random.Float64()),
				Backward: graph.Seconds(1 + random.Float64()),
			}},
			Parameters: quantity.Bytes(random.IntN(1000)), Activation: quantity.Bytes(random.IntN(1000)), Workspace: 1,
		})
	}
	join := func(from, to, output int) {
		if to < ops {
			g.Edges = append(g.Edges, graph.Edge{From: from, To: to, Output: output, Bytes: quantity.Bytes(100 + 10*(from%7))})
		}
	}
	for i := range ops {
		switch i % 4 {
		case 0: // forks
			join(i, i+1, 0)
			join(i, i+2, 0)
			join(i, i+3, 0)
		case 1, 2: // branches meet
			join(i, i+4-i%4-1, 0)
		default:
			join(i, i+1, 0)
		}
	}
	return partition.Problem{
		Graph: g, Devices: equal(devices, 0), Links: partition.Links{
			Between:     partition.Link{BytesPerSecond: 1e4},
			ThroughHost: true,
		},
		Training: true, MostMicroBatches: 16,
	}
}

func BenchmarkSolve(b *testing.B) {
	for _, objective := range []partition.Objective{partition.Throughput, partition.Latency, partition.Step} {
		for _, ops := range []int{100, 1000, 10_000} {
			b.Run(fmt.Sprintf("%v/%d", objective, ops), func(b *testing.B) {
				p := layered(ops, 8, 1)
				p.Objective = objective
				for b.Loop() {
					if plan := solve(b, p); plan.StepTime < plan.LowerBound {
						b.Fatalf("time %v is below the bound %v", plan.StepTime, plan.LowerBound)
					}
				}
			})
		}
	}
}
