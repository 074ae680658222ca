package partition

import (
	"fmt"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/workers/graph"
)

// Contiguous solves for [Throughput] with stages that are differences of ideals: no tensor of the forward pass leaves a
// stage and enters it again. The plan is the best of all such plans where the graph has at most MostIdeals ideals and
// the pairs of them are few enough for the Budget, and the best along several linear orders and close to the cuts of
// such plans otherwise. Within Links.Pairs, loads are counted as if every link were Links.Between, and measured
// afterwards.
//
//	best(I, D) = min over ideals J of I and kinds d in D of max(best(J, D - d), load(I \ J, d))
//
// where load is the work of a stage and the transfers over its border, each tensor once; a stage is never wider than
// the best plan known, which is what keeps the pairs (I, J) few (J. Tarnawski et al., Efficient Algorithms for Device
// Placement of DNN Graph Operators, NeurIPS 2020, https://arxiv.org/abs/2006.16423).
func Contiguous(p Problem) (Plan, error) {
	in, err := newInstance(p)
	if err != nil {
		return Plan{}, err
	}
	return in.contiguous()
}

// Linearised is [Contiguous] along linear orders only, whatever the number of ideals: the paper's DPL.
func Linearised(p Problem) (Plan, error) {
	in, err := newInstance(p)
	if err != nil {
		return Plan{}, err
	}
	place, order, ok := in.linearised()
	if !ok {
		return Plan{}, in.unfit()
	}
	plan, err := in.plan(place, "stages along the order "+order)
	plan.Stages = in.stagesOf(place)
	return plan, err
}

func (in *instance) contiguous() (Plan, error) {
	found, err := in.stages()
	if err != nil {
		return Plan{}, err
	}
	if !found.exact {
		found.widen(in, 1)
	}
	return in.planStages(found)
}

// staging is a contiguous placement of blocks, and how it was found.
type staging struct {
	place  []int
	reason string
	exact  bool // no contiguous placement is better
}

// stages is the best staging along several orders, and of all where that is not too much.
func (in *instance) stages() (staging, error) {
	place, order, ok := in.linearised()
	best := staging{place: place, reason: "stages along the order " + order}
	better, ideals, done := in.exact(place)
	if better != nil {
		best.place, ok = better, true
	}
	if done {
		best.exact, best.reason = true, fmt.Sprintf("the best of all contiguous plans over %d ideals", ideals)
	}
	if !ok {
		return best, in.unfit()
	}
	return best, nil
}

// widen improves a staging with a share of the effort that is left.
func (s *staging) widen(in *instance, share float64) (improved bool) {
	better, improved := in.widen(s.place, share)
	if improved {
		s.place, s.reason = better, s.reason+", then over ideals close to its cuts"
	}
	return improved
}

// planStages measures a staging.
func (in *instance) planStages(s staging) (Plan, error) {
	plan, err := in.plan(s.place, s.reason)
	plan.Optimal = s.exact && len(in.p.Links.Pairs) == 0 && in.p.Links.ThroughHost
	plan.Stages = in.stagesOf(s.place)
	return plan, err
}

// exactShare is the part of the budget that the search over all ideals may take.
const exactShare = 0.7

// exact searches all ideals for a plan that is no worse than a placement, which may be nil. better is nil where there
// is none; done is false where that would be too much.
func (in *instance) exact(place []int) (better []int, count int, done bool) {
	limit := in.p.MostIdeals
	if limit == 0 {
		limit = defaultIdeals
	}
	allowed := in.effort.part(exactShare)
	limit = min(limit, int(allowed/idealSteps)+1)
	ideals, err := graph.EnumerateIdeals(in.next, limit)
	if err != nil {
		in.effort.spend(idealSteps * float64(limit))
		return nil, 0, false
	}
	in.effort.spend(idealSteps * float64(ideals.Count))
	if ideals.Count*in.states() > mostCells {
		return nil, 0, false
	}
	bound := math.Inf(1)
	if place != nil {
		bound = slices.Max(in.loads(place)) * (1 + 1e-9) // the search adds up in another order
	}
	s := newSearch(in, ideals, bound)
	s.allowed = allowed
	if s.takes(allowed) {
		better, _ = s.all()
		done = s.steps <= s.allowed
	}
	in.effort.spend(s.steps)
	return better, ideals.Count, done
}

// idealSteps is what it takes to find an ideal, cellSteps to clear a cell of the table.
const (
	idealSteps = 1500
	cellSteps  = 3
)

// mostCells bounds the table of the search: 12 bytes each.
const mostCells = 40_000_000

// states is how many sets of devices there are, by the number of each kind.
func (in *instance) states() int {
	n := 1
	for _, k := range in.kinds {
		if n *= len(k.devices) + 1; n > mostCells {
			return n
		}
	}
	return n
}

// linearised searches along several orders and returns the best placement with its order's name.
func (in *instance) linearised() (place []int, name string, ok bool) {
	if in.states() > mostCells/(len(in.blocks)+1) {
		return nil, "", false
	}
	best := math.Inf(1)
	pairs := 0
	for _, order := range in.orders() {
		if pairs > mostPairs || (ok && in.effort.spent()) {
			break
		}
		ideals := graph.Prefixes(order.blocks)
		// No plan is known at first: widen the bound until there is one, as the pairs grow with it.
		bounds := []float64{best}
		if math.IsInf(best, 1) {
			low := in.bound()
			bounds = []float64{1.1 * low, 1.4 * low, 2 * low, 4 * low, 16 * low, best}
		}
		for _, bound := range bounds {
			allowed := math.Inf(1) // the first plan is never left out
			if ok {
				allowed = in.effort.part(1)
			}
			candidate, seen, found := in.search(ideals, bound, allowed)
			pairs += seen
			if found {
				if load := slices.Max(in.loads(candidate)); load < best {
					best, place, name, ok = load, candidate, order.name, true
				}
				break
			}
		}
	}
	return place, name, ok
}

// mostPairs bounds how many stages are looked at before the next order is left out: one order suffices for graphs of
// ten thousand operations.
const mostPairs = 3_000_000

// search is the dynamic programme. It looks for plans whose stages have at most bound seconds of load; found is false
// when there is none, or not within so many steps. pairs is how many stages it looked at.
func (in *instance) search(ideals *graph.Ideals, bound, allowed float64) (place []int, pairs int, found bool) {
	s := newSearch(in, ideals, bound)
	s.allowed = allowed
	place, found = s.all()
	in.effort.spend(s.steps)
	return place, s.pairs, found
}

// all fills the table and reads it. Where it takes more steps than are allowed it is abandoned and finds nothing.
func (s *search) all() (place []int, found bool) {
	for id := 1; id < s.ideals.Count; id++ {
		if s.at(id); s.steps > s.allowed {
			return nil, false
		}
	}
	return s.trace()
}

// samples is how many ideals takes looks at.
const samples = 16

// takes estimates whether the search ends within so many steps, by the stages below some of the ideals.
func (s *search) takes(steps float64) bool {
	start := s.steps
	defer func() { clear(s.visited) }()
	s.dry = true
	defer func() { s.dry = false }()
	for i := 1; i <= samples; i++ {
		id := (s.ideals.Count - 1) * i / samples
		if id > 0 {
			s.at(id)
		}
		if (s.steps-start)*float64(s.ideals.Count)/samples > steps {
			return false
		}
	}
	return true
}

// search holds best(I, D) for all ideals and sets of devices.
type search struct {
	*instance
	ideals *graph.Ideals
	bound  float64
	sum    bool  // add the loads of the stages up instead of taking the largest
	stride []int // of each kind in the number of a state
	states int
	counts [][]int // of devices of each kind, by state

	best  []float64 // state + states*ideal
	prior []int32   // the ideal before
	by    []int8    // the kind of the last stage; -1 for none

	// The stage that is being widened.
	inside   []bool
	readers  []int32 // of each tensor, how many are in the stage
	work     []float64
	border   []float64
	barred   []int // how many of its blocks the kind cannot run
	held     float64
	visited  []int32
	top      int32
	loads    []float64
	feasible []int8
	pairs    int
	steps    float64 // taken so far, in the units of a budget
	allowed  float64 // how many it may take
	dry      bool    // count, and change nothing
}

func newSearch(in *instance, ideals *graph.Ideals, bound float64) *search {
	s := &search{
		instance: in, ideals: ideals, bound: bound, states: in.states(),
		inside: make([]bool, len(in.blocks)), readers: make([]int32, len(in.tensors)), visited: make([]int32, ideals.Count),
		allowed: math.Inf(1),
		work:    make([]float64, len(in.kinds)), border: make([]float64, len(in.kinds)),
		loads: make([]float64, len(in.kinds)),
	}
	s.stride = make([]int, len(in.kinds))
	size := 1
	for k, kind := range in.kinds {
		s.stride[k] = size
		size *= len(kind.devices) + 1
	}
	for state := range s.states {
		counts := make([]int, len(in.kinds))
		for k, kind := range in.kinds {
			counts[k] = state / s.stride[k] % (len(kind.devices) + 1)
		}
		s.counts = append(s.counts, counts)
	}
	cells := s.states * ideals.Count
	s.steps = cellSteps * float64(cells)
	s.best, s.prior, s.by = make([]float64, cells), make([]int32, cells), make([]int8, cells)
	for i := range s.best {
		s.best[i] = math.Inf(1)
		s.by[i] = -1
	}
	s.barred = make([]int, len(in.kinds))
	for state := range s.states {
		s.best[state] = 0
	}
	return s
}

// at fills best(I, D) of one ideal I from those of all its ideals J that leave a stage within the bound.
func (s *search) at(ideal int) {
	s.top = int32(ideal) //nolint:gosec // bounded by MostIdeals
	s.descend(s.top)
}

// What it takes to look at a stage: by itself, for each tensor of the block by which it is widened and each kind of
// device, and for each set of devices.
const (
	pairSteps  = 20
	turnSteps  = 12
	stateSteps = 1
)

// descend widens the stage by each vertex that can be last in the ideal below, and takes it back.
func (s *search) descend(below int32) {
	for _, step := range s.ideals.Below[below] {
		if s.visited[step.Ideal] == s.top {
			continue
		}
		s.visited[step.Ideal] = s.top
		s.pairs++
		block := step.Vertex
		s.steps += pairSteps + turnSteps*float64(len(s.kinds)*(len(s.from[block])+len(s.into[block])))
		s.turn(int(step.Vertex), true)
		if s.consider(step.Ideal) {
			s.descend(step.Ideal)
		}
		s.turn(int(step.Vertex), false)
	}
}

// turn puts a block into the stage or takes it out.
func (s *search) turn(block int, into bool) {
	sign := 1.0
	if !into {
		sign = -1
	}
	for k := range s.kinds {
		if work := s.kinds[k].work[block]; math.IsInf(work, 1) {
			s.barred[k] += int(sign)
		} else {
			s.work[k] += sign * work
		}
	}
	s.held += sign * s.memory[block]
	for _, t := range s.from[block] {
		s.cross(t, -1)
	}
	for _, t := range s.into[block] {
		s.cross(t, -1)
		if into {
			s.readers[t]++
		} else {
			s.readers[t]--
		}
	}
	s.inside[block] = into
	for _, t := range s.from[block] {
		s.cross(t, 1)
	}
	for _, t := range s.into[block] {
		s.cross(t, 1)
	}
}

// cross adds the transfer of a tensor over the stage's border, if it crosses it.
func (s *search) cross(t int32, sign float64) {
	made := &s.tensors[t]
	crosses := s.readers[t] > 0
	if s.inside[made.from] {
		crosses = int(s.readers[t]) < len(made.readers)
	}
	if crosses {
		for k := range s.kinds {
			s.border[k] += sign * s.kinds[k].send[t]
		}
	}
}

// consider extends the plans of the ideal by the stage. It returns false when no wider stage can be part of a plan.
func (s *search) consider(ideal int32) bool {
	wider := false
	s.feasible = s.feasible[:0]
	for k := range s.kinds {
		if s.barred[k] > 0 || s.work[k] > s.bound || s.held > s.kinds[k].room {
			continue
		}
		wider = true
		if s.loads[k] = s.work[k] + s.border[k]; s.loads[k] <= s.bound {
			//nolint:gosec // there are at most mostDevices kinds; more than 127 are refused by mostCells
			s.feasible = append(s.feasible, int8(k))
		}
	}
	s.steps += stateSteps * float64(len(s.feasible)*s.states)
	if len(s.feasible) == 0 || s.dry {
		return wider
	}
	from, to := s.best[int(ideal)*s.states:][:s.states], s.best[int(s.top)*s.states:][:s.states]
	for _, k := range s.feasible {
		load, stride := s.loads[k], s.stride[k]
		for state := stride; state < s.states; state++ {
			if s.counts[state][k] == 0 {
				continue
			}
			value := max(from[state-stride], load)
			if s.sum {
				value = from[state-stride] + load
			}
			if value < to[state] {
				to[state] = value
				cell := int(s.top)*s.states + state
				s.prior[cell], s.by[cell] = ideal, k
			}
		}
	}
	return wider
}

// trace reads the best plan from the table; among equals, the one with the fewest devices.
func (s *search) trace() (place []int, found bool) {
	last := (s.ideals.Count - 1) * s.states
	chosen, value, devices := -1, math.Inf(1), 0
	for state := range s.states {
		n := 0
		for _, count := range s.counts[state] {
			n += count
		}
		v := s.best[last+state]
		if math.IsInf(v, 1) {
			continue
		}
		if chosen < 0 || v < value || (v == value && n < devices) {
			chosen, value, devices = state, v, n
		}
	}
	if chosen < 0 {
		return nil, false
	}
	place = make([]int, len(s.blocks))
	state := chosen
	for ideal := int32(s.ideals.Count - 1); ideal > 0; { //nolint:gosec // bounded by MostIdeals
		cell := int(ideal)*s.states + state
		k := int(s.by[cell])
		device := s.kinds[k].devices[s.counts[state][k]-1]
		for _, block := range s.ideals.Difference(int(ideal), int(s.prior[cell])) {
			place[block] = device
		}
		ideal, state = s.prior[cell], state-s.stride[k]
	}
	return place, true
}
