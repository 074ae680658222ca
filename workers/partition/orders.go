package partition

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/workers/graph"
)

// order is a linear order of the blocks in which every edge leads forward.
type order struct {
	name   string
	blocks []int
}

// orders returns several of them. No order is best for all graphs: depth first keeps the branches of a block together,
// level by level keeps parallel towers apart, and the narrowest cut follows sizes where the shape says nothing.
func (in *instance) orders() []order {
	deepest := in.deepest()
	return []order{
		{"of the graph", graph.Topological(in.next)},
		{"depth first", in.depthFirst(func(a, b int) int { return a - b })},
		{"depth first, shortest branch first", in.depthFirst(func(a, b int) int { return compare(deepest[a], deepest[b]) })},
		{"depth first, longest branch first", in.depthFirst(func(a, b int) int { return compare(deepest[b], deepest[a]) })},
		{"of the narrowest cut", in.narrowest()},
	}
}

func compare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// deepest is the longest path of work from each block to the end, on the fastest device for each.
func (in *instance) deepest() []float64 {
	length := make([]float64, len(in.blocks))
	order := graph.Topological(in.next)
	for _, b := range slices.Backward(order) {
		for _, c := range in.next[b] {
			length[b] = max(length[b], length[c])
		}
		length[b] += in.fastest(b)
	}
	return length
}

// fastest is the least time of a block on any device.
func (in *instance) fastest(block int) float64 {
	least := math.Inf(1)
	for _, k := range in.kinds {
		least = min(least, k.work[block])
	}
	return least
}

// depthFirst takes, among the blocks that are ready, one that became ready last; prefer breaks ties.
func (in *instance) depthFirst(prefer func(a, b int) int) []int {
	waits := in.waits()
	var stack []int
	push := func(ready []int) {
		slices.SortStableFunc(ready, func(a, b int) int { return prefer(b, a) }) // the preferred one is popped first
		stack = append(stack, ready...)
	}
	var ready []int
	for b, n := range waits {
		if n == 0 {
			ready = append(ready, b)
		}
	}
	push(ready)
	var order []int
	for len(stack) > 0 {
		b := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		order = append(order, b)
		var freed []int
		for _, c := range in.next[b] {
			if waits[c]--; waits[c] == 0 {
				freed = append(freed, c)
			}
		}
		push(freed)
	}
	return order
}

// waits counts the blocks before each.
func (in *instance) waits() []int {
	waits := make([]int, len(in.blocks))
	for _, successors := range in.next {
		for _, c := range successors {
			waits[c]++
		}
	}
	return waits
}

// narrowest takes, among the blocks that are ready, the one after which the transfers over the cut are least; of equals
// the one that became ready last.
func (in *instance) narrowest() []int {
	waits := in.waits()
	unread := make([]int, len(in.tensors)) // how many blocks have yet to read it
	for t := range in.tensors {
		unread[t] = len(in.tensors[t].readers)
	}
	var ready []int
	for b, n := range waits {
		if n == 0 {
			ready = append(ready, b)
		}
	}
	var order []int
	for len(ready) > 0 {
		chosen, least := 0, math.Inf(1)
		// The last few suffice: on wide graphs, looking at all of them makes this quadratic.
		const window = 64
		for i := len(ready) - 1; i >= max(0, len(ready)-window); i-- {
			if change := in.widens(ready[i], unread); change < least {
				chosen, least = i, change
			}
		}
		b := ready[chosen]
		ready = slices.Delete(ready, chosen, chosen+1)
		order = append(order, b)
		for _, t := range in.into[b] {
			unread[t]--
		}
		for _, c := range in.next[b] {
			if waits[c]--; waits[c] == 0 {
				ready = append(ready, c)
			}
		}
	}
	return order
}

// widens is by how much the transfers over the cut grow with a block.
func (in *instance) widens(block int, unread []int) float64 {
	change := 0.0
	for _, t := range in.from[block] {
		change += in.kinds[0].send[t]
	}
	for _, t := range in.into[block] {
		if unread[t] == 1 {
			change -= in.kinds[0].send[t]
		}
	}
	return change
}

// bound is a time that no plan beats whose blocks have one device each: the largest block, the longest path for
// Latency, and all work shared out.
func (in *instance) bound() float64 {
	best := in.shared()
	for b := range in.blocks {
		best = max(best, in.fastest(b))
	}
	if in.p.Objective == Latency {
		best = max(best, slices.Max(in.longest()))
	}
	return best
}

// shared is a bound for the work of the busiest device, however finely blocks are shared out.
//
// For weights y of the devices that sum to 1, the busiest device works at least sum over blocks of min over devices d
// of y_d work(block, d), as the busiest is at least the weighted mean. The weights are improved by multiplying those of
// devices that get too much.
func (in *instance) shared() float64 {
	best := 0.0
	weights := make([]float64, len(in.kinds)) // of one device of each kind
	for k := range weights {
		weights[k] = 1
	}
	given := make([]float64, len(in.kinds))
	for range 30 {
		sum := 0.0
		for k, kind := range in.kinds {
			sum += weights[k] * float64(len(kind.devices))
		}
		value := 0.0
		clear(given)
		for b := range in.blocks {
			least, at := math.Inf(1), 0
			for k, kind := range in.kinds {
				if cost := weights[k] / sum * kind.work[b]; cost < least {
					least, at = cost, k
				}
			}
			value += least
			given[at] += in.kinds[at].work[b] / float64(len(in.kinds[at].devices))
		}
		best = max(best, value)
		if len(in.kinds) == 1 {
			break
		}
		most := slices.Max(given)
		for k := range weights {
			if most > 0 {
				weights[k] *= 1 + 0.3*(given[k]/most-0.5)
			}
		}
	}
	return best
}

// longest is the longest path that ends in each operation, all of its transfers saved.
func (in *instance) longest() []float64 {
	g := in.p.Graph
	order, err := g.Order()
	if err != nil {
		panic("the order of a validated graph: " + err.Error())
	}
	next := make([][]int, len(g.Ops))
	for _, e := range g.Edges {
		if !e.State {
			next[e.From] = append(next[e.From], e.To)
		}
	}
	end := make([]float64, len(g.Ops))
	for _, i := range order {
		end[i] += in.fastestOp(i)
		for _, j := range next[i] {
			end[j] = max(end[j], end[i])
		}
	}
	return end
}

// fastestOp is the least time of an operation on any device.
func (in *instance) fastestOp(op int) float64 {
	least := math.Inf(1)
	for _, k := range in.kinds {
		least = min(least, in.opWork(op, k.devices[0]))
	}
	return least
}

// opWork is the time of an operation on a device; +Inf where it cannot run.
func (in *instance) opWork(op, device int) float64 {
	d := in.p.Devices[device]
	cost, runs := in.p.Graph.Ops[op].Costs[d.Class]
	if !runs {
		return math.Inf(1)
	}
	work := float64(cost.Forward)
	if in.p.Training {
		work += float64(cost.Backward)
	}
	return work / d.speed()
}
