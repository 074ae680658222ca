package graph

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Contract returns the graph with every declared recurrence as one operation: the members of a strongly connected
// component that a state edge closes run in turn on one device, so their costs and sizes add up, and what they pass
// among themselves never travels. members lists, for each operation of the new graph, those of the old one. State edges
// are gone. A cycle that stays without its state edges is an error that wraps ErrCycle.
func (g Graph) Contract() (contracted Graph, members [][]int, err error) {
	if err := g.Validate(); err != nil {
		return Graph{}, nil, err
	}
	if _, err := g.Order(); err != nil {
		return Graph{}, nil, err
	}
	next := make([][]int, len(g.Ops))
	for _, e := range g.Edges {
		next[e.From] = append(next[e.From], e.To)
	}
	members = Components(next)
	within := make([]int, len(g.Ops))
	contracted.Name = g.Name
	for i, component := range members {
		for _, v := range component {
			within[v] = i
		}
		op, err := g.merge(component)
		if err != nil {
			return Graph{}, nil, err
		}
		contracted.Ops = append(contracted.Ops, op)
	}
	for i, op := range contracted.Ops {
		if mate, known := g.Index(op.BackwardOf); known {
			contracted.Ops[i].BackwardOf = contracted.Ops[within[mate]].ID
		}
	}
	contracted.Edges = g.mergeEdges(within, members)
	return contracted, members, contracted.Validate()
}

// merge adds the operations up. The first ID, in the order of the graph, names the sum, so that references stay valid
// where nothing is merged.
func (g Graph) merge(component []int) (Op, error) {
	sum := g.Ops[component[0]]
	if len(component) == 1 {
		return sum, nil
	}
	sum.Costs = maps.Clone(sum.Costs)
	sum.Recompute = nil
	names := []string{sum.ID}
	for _, v := range component[1:] {
		op := g.Ops[v]
		names = append(names, op.ID)
		if op.Colour != "" && sum.Colour != "" && op.Colour != sum.Colour {
			return Op{}, fmt.Errorf("contract the recurrence of %s: colours %q and %q differ; give them one colour",
				strings.Join(names, ", "), sum.Colour, op.Colour)
		}
		if sum.Colour == "" {
			sum.Colour = op.Colour
		}
		if op.Backward != sum.Backward {
			return Op{}, fmt.Errorf("contract the recurrence of %s: forward and backward operations are in one cycle",
				strings.Join(names, ", "))
		}
		maps.DeleteFunc(sum.Costs, func(class string, _ Cost) bool { _, runs := op.Costs[class]; return !runs })
		for class, cost := range sum.Costs {
			cost.Forward += op.Costs[class].Forward
			cost.Backward += op.Costs[class].Backward
			sum.Costs[class] = cost
		}
		sum.Parameters += op.Parameters
		sum.Activation += op.Activation
		sum.Workspace += op.Workspace
	}
	sum.Name = "recurrence of " + strings.Join(names, ", ")
	return sum, nil
}

// mergeEdges keeps the edges between components, numbers the outputs of a component anew, and drops repetitions.
func (g Graph) mergeEdges(within []int, members [][]int) []Edge {
	type output struct{ from, output int }
	numbers := map[output]int{}
	used := make([]int, len(members))
	var edges []Edge
	seen := map[Edge]bool{}
	for _, e := range g.Edges {
		from, to := within[e.From], within[e.To]
		if e.State || from == to {
			continue
		}
		key := output{e.From, e.Output}
		number, known := numbers[key]
		if !known {
			number = e.Output
			if len(members[from]) > 1 {
				number = used[from]
				used[from]++
			}
			numbers[key] = number
		}
		merged := Edge{From: from, To: to, Output: number, Bytes: e.Bytes, Transfer: e.Transfer}
		if !seen[merged] {
			seen[merged] = true
			edges = append(edges, merged)
		}
	}
	slices.SortFunc(edges, func(a, b Edge) int {
		if a.From != b.From {
			return a.From - b.From
		}
		if a.To != b.To {
			return a.To - b.To
		}
		return a.Output - b.Output
	})
	return edges
}
