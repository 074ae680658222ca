package partition

import (
	"cmp"
	"slices"
)

// favourites returns, for each operation, its favourite child: the reader that should run on the same device right
// after it; -1 for none. Every operation is the favourite child of at most one.
//
// Hanen and Munier (An approximation algorithm for scheduling dependent tasks on m processors with small communication
// delays, ETFA 1995, https://doi.org/10.1109/ETFA.1995.496782) round a linear programme: minimise w where start_i +
// work_i + x_ij way_ij <= start_j, every operation saves the way (x = 0) to at most one child and from at most one
// parent. That programme grows too large for a planner that answers within a second, so its integer form is solved by
// following the longest path: as long as the path can be shortened, the edge on it whose way is longest and whose ends
// are both free becomes favourite. TestFavouritesAreCloseToTheBest compares with the best choice of all.
func (in *instance) favourites() []int {
	f := newFavours(in)
	for f.shorten() {
	}
	// Edges that are on no longest path still save waits.
	slices.SortStableFunc(f.edges, func(a, b favour) int { return cmp.Compare(b.way, a.way) })
	for _, e := range f.edges {
		if f.child[e.from] < 0 && f.parent[e.to] < 0 {
			f.child[e.from], f.parent[e.to] = e.to, e.from
		}
	}
	return f.child
}

type favour struct {
	from, to int
	way      float64
}

type favours struct {
	line   *timeline
	work   []float64
	edges  []favour
	out    [][]int // edges by producer
	child  []int
	parent []int
	tail   []float64 // the longest way to the end, from the start of each operation
}

func newFavours(in *instance) *favours {
	line := in.newTimeline()
	n := len(in.blockOf)
	f := &favours{
		line: line, work: make([]float64, n), out: make([][]int, n), child: make([]int, n),
		parent: make([]int, n), tail: make([]float64, n),
	}
	near, far := in.typicalPair()
	for op := range n {
		f.work[op] = in.fastestOp(op)
		f.child[op], f.parent[op] = -1, -1
		for _, id := range line.from[op] {
			for _, reader := range line.tensors[id].Readers {
				f.out[op] = append(f.out[op], len(f.edges))
				f.edges = append(f.edges, favour{from: op, to: reader, way: line.way(id, near, far)})
			}
		}
	}
	return f
}

// typicalPair is two devices whose link stands for all of them.
func (in *instance) typicalPair() (near, far int) {
	devices := in.fillOrder()
	if len(devices) == 1 {
		return devices[0], devices[0]
	}
	return devices[0], devices[1]
}

// favourSteps is what it takes to look at an edge.
const favourSteps = 5

// span is the longest path, with the ways of all edges that are not favourite.
func (f *favours) span() float64 {
	longest := 0.0
	f.line.effort.spend(favourSteps * float64(len(f.edges)))
	for _, op := range slices.Backward(f.line.order) {
		f.tail[op] = 0
		for _, e := range f.out[op] {
			f.tail[op] = max(f.tail[op], f.cost(e)+f.tail[f.edges[e].to])
		}
		f.tail[op] += f.work[op]
		longest = max(longest, f.tail[op])
	}
	return longest
}

func (f *favours) cost(e int) float64 {
	if f.child[f.edges[e].from] == f.edges[e].to {
		return 0
	}
	return f.edges[e].way
}

// shorten makes one more edge of the longest path favourite; it returns false when none is free.
func (f *favours) shorten() bool {
	longest := f.span()
	at := slices.IndexFunc(f.tail, func(tail float64) bool { return tail == longest })
	chosen := -1
	for at >= 0 {
		next := -1
		for _, e := range f.out[at] {
			// The edge that attains the maximum; sums were formed in this very way, so equality is exact.
			if f.cost(e)+f.tail[f.edges[e].to]+f.work[at] == f.tail[at] {
				next = e
				break
			}
		}
		if next < 0 {
			break
		}
		e := f.edges[next]
		free := f.child[e.from] < 0 && f.parent[e.to] < 0
		if free && e.way > 0 && (chosen < 0 || e.way > f.edges[chosen].way) {
			chosen = next
		}
		at = e.to
	}
	if chosen < 0 {
		return false
	}
	e := f.edges[chosen]
	f.child[e.from], f.parent[e.to] = e.to, e.from
	return true
}
