package partition

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/workers/graph"
)

// latency places a graph for [Latency]: several starting points, the best two of which a local search on the simulator
// improves.
func (in *instance) latency() (Plan, error) {
	type start struct {
		name  string
		place []int
		span  float64
	}
	var starts []start
	least := math.Inf(1)
	loose := in.loose
	add := func(name string, place []int, ok bool) {
		if ok && len(place) != len(loose.blocks) {
			place = in.loosely(place)
		}
		if !ok || !loose.placeFits(place) {
			return
		}
		if !slices.ContainsFunc(starts, func(s start) bool { return slices.Equal(s.place, place) }) {
			starts = append(starts, start{name, place, loose.makespan(place)})
			least = min(least, starts[len(starts)-1].span)
		}
	}
	place, ok := loose.list(loose.favourites())
	add("small communication times", place, ok)
	place, ok = loose.list(nil)
	add("earliest task first", place, ok)
	place, ok = in.topologicalFill()
	add("topological fill", place, ok)
	for _, k := range in.kinds {
		add("one device", slices.Repeat([]int{k.devices[0]}, len(in.blocks)), true)
	}
	for _, order := range in.orders() {
		place, ok = in.cheapestCuts(order.blocks, least)
		add("cheapest cuts along the order "+order.name, place, ok)
		place, ok = in.fill(order.blocks, func(d int) float64 { return in.p.Devices[d].room() })
		add("fill along the order "+order.name, place, ok)
	}
	if len(starts) == 0 {
		return Plan{}, in.unfit()
	}
	slices.SortStableFunc(starts, func(a, b start) int { return compare(a.span, b.span) })
	best := starts[0]
	improve := func(s start, place []int, span float64) {
		if span < best.span*(1-sameTime) {
			best = start{strings.TrimSuffix(s.name, thenMoves) + thenMoves, place, span}
		}
	}
	for _, s := range starts[:min(2, len(starts))] {
		place, span := loose.quicken(s.place, s.span)
		improve(s, place, span)
	}
	if in.p.Moves == 0 {
		// Then from the best and from all others in turn, on the longest path.
		for at, idle := 0, 0; idle < 2*len(starts) && loose.improvable(best.span); at++ {
			from := best
			if at%2 == 1 {
				from = starts[at/2%len(starts)]
			}
			least := best.span
			place, span := loose.restart(from.place, from.span, uint64(at)) //nolint:gosec // it counts from 0
			improve(from, place, span)
			if idle++; best.span < least {
				idle = 0
			}
		}
	}
	plan, err := loose.plan(best.place, best.name)
	plan.Stages = loose.stagesOf(best.place)
	return plan, err
}

const thenMoves = ", then moves"

// improvable reports whether there is budget left, and anything to gain.
func (in *instance) improvable(span float64) bool {
	return !in.effort.spent() && len(in.p.Devices) > 1 && span > in.bound()*(1+sameTime)
}

// placeFits reports whether every device can run and hold what it is given.
func (in *instance) placeFits(place []int) bool {
	held := make([]float64, len(in.p.Devices))
	for b, d := range place {
		held[d] += in.memory[b]
		if !in.runs(b, d) || held[d] > in.p.Devices[d].room() {
			return false
		}
	}
	return true
}

// mostCuts bounds the work of cheapestCuts, which grows with the square of the blocks where memory does not stop it.
const mostCuts = 20_000_000

// cutsShare is the part of the budget that the cuts along one order may take.
const cutsShare = 0.1

// cheapestCuts cuts a linear order so that work and transfers add up to the least: the latency of a chain. Chains, and
// graphs that are almost chains, gain nothing from more devices than their memory needs, and list schedules do not see
// that. No part takes longer than bound.
func (in *instance) cheapestCuts(order []int, bound float64) (place []int, ok bool) {
	if n := len(in.blocks) + 1; in.states() > mostCells/n || in.states()*n > mostCuts/n {
		return nil, false
	}
	s := newSearch(in, graph.Prefixes(order), bound)
	s.sum, s.allowed = true, in.effort.part(cutsShare)
	place, ok = s.all()
	in.effort.spend(s.steps)
	return place, ok
}

// quicken moves runs of blocks between devices as long as that shortens the makespan, and now and then where it does
// not.
func (in *instance) quicken(place []int, span float64) (better []int, least float64) {
	moves := in.p.Moves
	if moves == 0 {
		moves = defaultMoves
	}
	// A simulation takes as long as a move of the other search does for each operation.
	moves = moves * 3 / 2 / (len(in.blockOf) + 8)
	if moves <= 0 || len(in.p.Devices) < 2 {
		return place, span
	}
	q := in.newQuickening(place, rand.NewPCG(in.p.Seed, uint64(len(in.blocks))))
	return q.cool(moves, 0.03, span, q.shift)
}

// restartSimulations is how many changes a restart simulates at most.
const restartSimulations = 2000

// restart is a short search from a placement, which moves what is on the longest path.
func (in *instance) restart(place []int, span float64, number uint64) (better []int, least float64) {
	q := in.newQuickening(place, rand.NewPCG(in.p.Seed, number))
	return q.cool(restartSimulations, 0.01, span, q.shorten)
}

func (in *instance) newQuickening(place []int, source rand.Source) *quickening {
	q := &quickening{
		instance: in, random: rand.New(source), order: in.firsts(),
		place: slices.Clone(place), held: make([]float64, len(in.p.Devices)),
	}
	q.at = make([]int, len(q.order))
	for i, b := range q.order {
		q.at[b] = i
	}
	for b, d := range place {
		q.held[d] += in.memory[b]
	}
	return q
}

// cool tries moves from the present placement, whose makespan is span, while it cools from heat to a hundredth of it,
// and returns the best placement it passed.
func (q *quickening) cool(
	moves int, heat, span float64, shift func() (moved []int, undo func()),
) (better []int, least float64) {
	better, least = slices.Clone(q.place), span
	now := span
	cool := math.Pow(0.01, 1/float64(moves))
	if q.line == nil {
		q.line = q.newTimeline()
	}
	before := q.line.steps
	q.makespan(q.place) // from which changes go on
	defer func() { q.effort.spend(q.line.steps - before) }()
	for range moves {
		if q.effort.left < q.line.steps-before {
			break
		}
		heat *= cool
		q.line.steps += shiftSteps
		moved, undo := shift()
		if moved == nil {
			continue
		}
		// What is slower is taken with a chance that depends on by how much: a limit that is drawn once it matters.
		limit, drawn := now, false
		exceeds := func(span float64) bool {
			if span <= limit {
				return false
			}
			if !drawn {
				drawn = true
				limit = now - now*heat*math.Log(max(q.random.Float64(), math.SmallestNonzeroFloat64))
			}
			return span > limit
		}
		after, done := q.line.try(moved, q.place, exceeds)
		if !done || exceeds(after) {
			q.line.drop()
			undo()
			continue
		}
		q.line.keep()
		q.path = q.path[:0]
		now = after
		if now < least*(1-1e-12) {
			least = now
			copy(better, q.place)
		}
	}
	return better, least
}

// shiftSteps is what it takes to draw a move.
const shiftSteps = 100

// firsts is the blocks in the order of their first operations.
func (in *instance) firsts() []int {
	order, err := in.p.Graph.Order()
	if err != nil {
		panic("the order of a validated graph: " + err.Error())
	}
	var blocks []int
	seen := make([]bool, len(in.blocks))
	for _, op := range order {
		if b := in.blockOf[op]; !seen[b] {
			seen[b] = true
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// quickening is a placement whose blocks are moved.
type quickening struct {
	*instance
	random *rand.Rand
	order  []int
	at     []int // the position of each block in the order
	place  []int
	held   []float64
	path   []int // operations on the longest path of the placement; empty until it is needed
}

// longestRun bounds how many neighbours in topological order move at once; single moves do not cross the hump of two
// cuts in a chain.
const longestRun = 16

// shift moves a run of blocks of one device to another device, or swaps it with as many there; moved is nil when that
// does not fit.
func (q *quickening) shift() (moved []int, undo func()) {
	b := q.random.IntN(len(q.blocks))
	return q.move(b, q.neighbour(b))
}

// shorten is a shift of what is on the longest path: usually to the device for which it waits, else to any.
func (q *quickening) shorten() (moved []int, undo func()) {
	if len(q.path) == 0 {
		q.path = q.line.criticalPath()
	}
	i := q.random.IntN(len(q.path))
	b := q.blockOf[q.path[i]]
	if q.random.IntN(3) == 0 {
		return q.move(b, q.neighbour(b))
	}
	if i+1 < len(q.path) && q.random.IntN(2) == 0 {
		if to := q.place[q.blockOf[q.path[i+1]]]; to != q.place[b] {
			return q.move(b, to)
		}
	}
	return q.move(b, q.random.IntN(len(q.p.Devices)))
}

// move moves a run of blocks from b on to another device, or swaps it.
func (q *quickening) move(b, to int) (moved []int, undo func()) {
	from := q.place[b]
	if to == from {
		return nil, nil
	}
	var run []int
	for i, n := q.at[b], 1+q.random.IntN(longestRun); i < len(q.order) && len(run) < n; i++ {
		if q.place[q.order[i]] == from {
			run = append(run, q.order[i])
		}
	}
	if q.random.IntN(2) == 0 {
		run = run[:1]
	}
	var back []int
	if q.random.IntN(3) == 0 {
		c := q.random.IntN(len(q.blocks))
		if q.place[c] == to {
			back = []int{c}
		}
	}
	q.put(run, to)
	q.put(back, from)
	undo = func() {
		q.put(back, to)
		q.put(run, from)
	}
	for _, d := range []int{from, to} {
		if q.held[d] > q.p.Devices[d].room() {
			undo()
			return nil, nil
		}
	}
	moved = slices.Concat(run, back)
	for _, c := range moved {
		if !q.runs(c, q.place[c]) {
			undo()
			return nil, nil
		}
	}
	return moved, undo
}

func (q *quickening) put(blocks []int, device int) {
	for _, b := range blocks {
		q.held[q.place[b]] -= q.memory[b]
		q.held[device] += q.memory[b]
		q.place[b] = device
	}
}

// neighbour is usually the device of a block that this one reads from or feeds, else any.
func (q *quickening) neighbour(block int) int {
	if q.random.IntN(5) > 0 {
		if into := q.into[block]; len(into) > 0 && q.random.IntN(2) == 0 {
			return q.place[q.tensors[into[q.random.IntN(len(into))]].from]
		}
		if out := q.from[block]; len(out) > 0 {
			readers := q.tensors[out[q.random.IntN(len(out))]].readers
			return q.place[readers[q.random.IntN(len(readers))]]
		}
	}
	return q.random.IntN(len(q.p.Devices))
}
