package partition

import (
	"math/rand/v2"
	"strconv"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
)

// wide is a graph of modules as inception networks have them: an operation whose result several branches read, chains
// of one to seven operations, and one that reads what they make. Each module has so many branches; the last may have
// fewer operations. ideals is how many sets of operations hold all that they read from.
func wide(ops, branches int, seed uint64) (g graph.Graph, ideals float64) {
	random := rand.New(rand.NewPCG(seed, uint64(ops)))
	add := func(readers ...int) int {
		at := len(g.Ops)
		work := graph.Seconds(0.5 + random.ExpFloat64())
		g.Ops = append(g.Ops, graph.Op{
			ID: strconv.Itoa(at), Costs: map[string]graph.Cost{"gpu": {Forward: work, Backward: 2 * work}},
			Parameters: quantity.Bytes(1 + random.IntN(1000)), Activation: quantity.Bytes(1 + random.IntN(1000)),
			Workspace: 1,
		})
		for _, from := range readers {
			g.Edges = append(g.Edges, graph.Edge{From: from, To: at, Bytes: quantity.Bytes(50 + 37*from%200)})
		}
		return at
	}
	ideals = 2
	for join := add(); len(g.Ops) < ops; {
		var ends []int
		module := 1.0 // what is done of each branch
		for range branches {
			end, first := join, len(g.Ops)
			for range 1 + random.IntN(7) {
				if len(g.Ops) < ops-1 {
					end = add(end)
				}
			}
			if end != join {
				ends = append(ends, end)
				module *= float64(len(g.Ops) - first + 1)
			}
		}
		join = add(ends...)
		ideals += module
	}
	return g, ideals
}

// wideProblem is such a graph on equal devices, where a tensor takes a tenth of the time of an operation.
func wideProblem(ops, branches int, objective Objective) Problem {
	g, _ := wide(ops, branches, 1)
	p := Problem{
		Graph: g, Objective: objective, Training: objective == Step, MostMicroBatches: 16,
		Links: Links{Between: Link{BytesPerSecond: 2000}, ThroughHost: objective == Throughput},
	}
	for d := range 8 {
		p.Devices = append(p.Devices, Device{ID: strconv.Itoa(d), Class: "gpu"})
	}
	return p
}
