package partition

import (
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/workers/graph"
)

// widening looks for better stages than those along linear orders where all ideals are too many: the dynamic programme
// over ideals close to the cuts of the best plan, and along orders drawn at random. Each of those sets is closed under
// union and intersection, so that the programme sees every stage between two of its ideals.
type widening struct {
	*instance
	random *rand.Rand
	place  []int
	most   float64 // the load of its busiest device
	least  float64 // what is left of the effort when it ends
}

const (
	// farthest is how many places of an order around a cut may be taken in another order; half of what an ideal may reach.
	farthest = 32
	// nearIdeals is how many ideals there may be around the cuts.
	nearIdeals = 2000
	// mostIdle is after how many attempts in vain the search ends.
	mostIdle = 16
)

// widen improves contiguous stages for as long as a share of the effort lasts; improved is false where it cannot.
func (in *instance) widen(place []int, share float64) (better []int, improved bool) {
	if len(in.p.Devices) < 2 || in.states()*(len(in.blocks)+nearIdeals) > mostCells {
		return place, false
	}
	w := widening{
		instance: in, random: rand.New(rand.NewPCG(in.p.Seed, uint64(len(in.blocks))+1)),
		place: place, most: slices.Max(in.loads(place)), least: in.effort.left - in.effort.part(share),
	}
	first := w.most
	orders := in.orders()
	for at, idle := 0, 0; idle < mostIdle && in.effort.left > w.least && w.most > in.bound()*(1+1e-9); {
		var order []int
		if at < len(orders) {
			order = orders[at].blocks
		} else {
			order = w.draw()
			if w.try(graph.Prefixes(order)) {
				idle = 0
			}
		}
		if w.near(order) {
			idle = 0
			continue // around the new cuts, too
		}
		idle++
		at++
	}
	return w.place, w.most < first*(1-1e-9)
}

// draw returns a depth-first order whose ties are broken at random.
func (w *widening) draw() []int {
	keys := w.random.Perm(len(w.blocks))
	return w.depthFirst(func(a, b int) int { return keys[a] - keys[b] })
}

// near searches the ideals around the cuts of the best plan, whose stages are ordered inside as the order has it.
func (w *widening) near(order []int) bool {
	along, cuts := w.along(order)
	if along == nil {
		return false
	}
	limit := len(order) + nearIdeals
	for radius := farthest; radius > 1; radius /= 2 {
		ideals, err := graph.IdealsAlong(w.next, along, floorsAround(cuts, len(along), radius), limit)
		w.effort.spend(nearSteps * float64(limit))
		if err == nil {
			return w.try(ideals)
		}
	}
	return false
}

// nearSteps is what it takes to find an ideal close to an order.
const nearSteps = 300

// try searches some ideals for a plan that is better than the best so far.
func (w *widening) try(ideals *graph.Ideals) bool {
	s := newSearch(w.instance, ideals, w.most*(1-1e-9))
	s.allowed = max(0, w.effort.left-w.least)
	place, found := s.all()
	w.effort.spend(s.steps)
	if !found {
		return false
	}
	most := slices.Max(w.loads(place))
	if most >= w.most*(1-1e-9) { // links of pairs are not what the search took them for
		return false
	}
	w.place, w.most = place, most
	return true
}

// along is an order of all blocks, stage after stage, and where its stages end; nil where the plan is not contiguous.
func (w *widening) along(order []int) (along, cuts []int) {
	next := make([][]int, len(w.p.Devices))
	for b, successors := range w.next {
		for _, c := range successors {
			if from, to := w.place[b], w.place[c]; from != to && !slices.Contains(next[from], to) {
				next[from] = append(next[from], to)
			}
		}
	}
	devices := graph.Topological(next)
	if len(devices) < len(next) {
		return nil, nil
	}
	held := make([][]int, len(w.p.Devices))
	for _, b := range order {
		held[w.place[b]] = append(held[w.place[b]], b)
	}
	for _, d := range devices {
		if len(along) > 0 && len(held[d]) > 0 {
			cuts = append(cuts, len(along))
		}
		along = append(along, held[d]...)
	}
	return along, cuts
}

// floorsAround lets the blocks up to a radius around each cut be taken in any order that the graph allows.
func floorsAround(cuts []int, n, radius int) []int {
	floors := make([]int, n)
	for i := range floors {
		floors[i] = i
	}
	end := 0
	for _, cut := range cuts {
		start := max(end, cut-radius)
		end = min(n, cut+radius)
		for i := start; i < end; i++ {
			floors[i] = start
		}
	}
	return floors
}
