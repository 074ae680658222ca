package frontier

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Option is one way to run a stage.
type Option struct {
	// Seconds is how long the stage takes from its begin to its end, start-up and waiting for room included; at least 0
	// and finite.
	Seconds float64
	// Cost is what that costs; at least 0.
	Cost quantity.Money
	// Spread is the standard deviation of the logarithm of Seconds; 0 where they are certain.
	Spread float64
	// Doubt is how far Seconds themselves may be off, as a standard deviation of their logarithm: what is not known of
	// the allocation (Estimate.Spread). It is taken to err in the same direction in every stage, as that of the same
	// allocation does, and that of its neighbours nearly; Spread differs from stage to stage.
	Doubt float64
	// Capacity says what the stage runs on, for what a change of it takes between stages (Job.Change). Options of equal
	// capacity pay nothing between them. It is at least 0 and small: each has a frontier of its own.
	Capacity int
}

// Job is what the frontier is of: stages of which each waits for the one before.
type Job struct {
	// Stages are the options of each; none may be empty.
	Stages [][]Option
	// Change is what it takes to go from one capacity to another before a stage begins, and, from -1, to have the first;
	// only its Seconds and Cost count, which are at least 0. Nil takes nothing, ever.
	Change func(from, to int) Option
	// Most is how finely the frontier is kept where it has more points: of those whose time, or whose cost, differ by
	// less than about this part of the frontier's width (in their logarithms) the better ones are kept. 0 is 2048. What
	// has no more combinations than this is exact.
	Most int
}

// usualMost keeps a merge within some ten milliseconds, and what is lost by it below a part in a thousand: the points
// that are kept are points of the frontier, and each that is not has one as fast, and one as cheap, that is within a
// bucket of it.
const usualMost = 2048

// Errors of New.
var (
	// ErrNoOption says that a stage cannot be run at all.
	ErrNoOption = errors.New("has no option")
	// ErrOption says that an option is not one: its time or cost is negative, or not finite.
	ErrOption = errors.New("is not an option")
)

// Frontier is what a job may come to: of all combinations of its options those that none is both faster and cheaper
// than, by ascending time and so by descending cost. The zero value is that of no job and has none.
//
// It is the Minkowski sum of the stages' own frontiers with what is beaten left out after each (exact for the
// multiple-choice knapsack: Dudzinski & Walukiewicz, Exact methods for the knapsack problem and its generalizations,
// 1987, https://doi.org/10.1016/0377-2217(87)90165-2), where CE-scaling (IPDPS'23) and RubberBand (EuroSys'21) exchange
// the options of one stage at a time.
type Frontier struct {
	stages [][]Option
	nodes  [][]node // of each stage, as far as they are kept
	ends   []node   // of the last stage, of all capacities
}

// node is one combination of options up to a stage.
type node struct {
	seconds float64
	cost    quantity.Money
	before  int32 // its node of the stage before; -1 for the first
	option  int32
}

// Point is one combination of options.
type Point struct {
	// Seconds and Cost are those of the whole job.
	Seconds float64
	Cost    quantity.Money
	// Options are the index of each stage's option.
	Options []int
}

// New computes the frontier of a job. Errors wrap ErrNoOption or ErrOption and say of which stage. A job without stages
// has one point of nothing.
func New(job Job) (Frontier, error) {
	most := job.Most
	if most <= 0 {
		most = usualMost
	}
	f := Frontier{stages: job.Stages, ends: []node{{before: -1, option: -1}}}
	reached := []int{-1} // the capacities that there are nodes of, and where theirs begin in f.ends
	starts := []int{0}
	for i, options := range job.Stages {
		byCapacity, err := sorted(options)
		if err != nil {
			return Frontier{}, fmt.Errorf("stage %d: %w", i+1, err)
		}
		f.nodes = append(f.nodes, f.ends)
		var next []node
		var capacities, begins []int
		for _, group := range byCapacity {
			to := options[group[0]].Capacity
			var all []node
			for j, from := range reached {
				end := len(f.ends)
				if j+1 < len(starts) {
					end = starts[j+1]
				}
				change, err := job.change(from, to)
				if err != nil {
					return Frontier{}, fmt.Errorf("stage %d: %w", i+1, err)
				}
				all = extend(all, f.ends[starts[j]:end], starts[j], change, options, group)
			}
			capacities, begins = append(capacities, to), append(begins, len(next))
			next = append(next, unbeaten(thinned(all, most))...)
		}
		f.ends, reached, starts = next, capacities, begins
	}
	f.nodes = append(f.nodes, f.ends)
	f.index()
	return f, nil
}

// change is what it takes to go from one capacity to another.
func (job Job) change(from, to int) (Option, error) {
	if job.Change == nil || from == to {
		return Option{}, nil
	}
	change := job.Change(from, to)
	if !change.valid() {
		return Option{}, fmt.Errorf("a change from capacity %d to %d of %g s and %v %w", from, to, change.Seconds,
			change.Cost, ErrOption)
	}
	return change, nil
}

func (o Option) valid() bool {
	return o.Seconds >= 0 && !math.IsInf(o.Seconds, 1) && o.Cost >= 0 && o.Spread >= 0 && !math.IsInf(o.Spread, 1) &&
		o.Doubt >= 0 && !math.IsInf(o.Doubt, 1) && o.Capacity >= 0
}

// sorted returns the indices of the options that none of equal capacity beats, a list for each capacity.
func sorted(options []Option) ([][]int, error) {
	if len(options) == 0 {
		return nil, ErrNoOption
	}
	order := make([]int, len(options))
	for i, o := range options {
		if !o.valid() {
			return nil, fmt.Errorf("option %d of %g s, %v, spread %g, doubt %g and capacity %d %w", i, o.Seconds, o.Cost,
				o.Spread, o.Doubt, o.Capacity, ErrOption)
		}
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := options[a], options[b]
		return cmp.Or(cmp.Compare(x.Capacity, y.Capacity), cmp.Compare(x.Seconds, y.Seconds), cmp.Compare(x.Cost, y.Cost))
	})
	var groups [][]int
	for _, i := range order {
		last := len(groups) - 1
		switch {
		case last < 0 || options[groups[last][0]].Capacity != options[i].Capacity:
			groups = append(groups, []int{i})
		case options[i].Cost < options[groups[last][len(groups[last])-1]].Cost:
			groups[last] = append(groups[last], i)
		}
	}
	return groups, nil
}

// extend appends every combination of a node and an option. The nodes begin at first in their stage's list.
func extend(all, nodes []node, first int, change Option, options []Option, group []int) []node {
	all = slices.Grow(all, len(nodes)*len(group))
	for _, option := range group {
		o := options[option]
		seconds, cost := change.Seconds+o.Seconds, change.Cost.Plus(o.Cost)
		for i, n := range nodes {
			all = append(all, node{n.seconds + seconds, n.cost.Plus(cost), int32(first + i), int32(option)})
		}
	}
	return all
}

// unbeaten sorts nodes by time and leaves those out that another is as fast and as cheap as.
func unbeaten(nodes []node) []node {
	slices.SortFunc(nodes, func(a, b node) int {
		return cmp.Or(cmp.Compare(a.seconds, b.seconds), cmp.Compare(a.cost, b.cost), cmp.Compare(a.before, b.before),
			cmp.Compare(a.option, b.option))
	})
	kept := nodes[:0]
	for _, n := range nodes {
		if len(kept) == 0 || n.cost < kept[len(kept)-1].cost {
			kept = append(kept, n)
		}
	}
	return kept
}

// thinned keeps of many nodes, for each bucket of time the cheapest, and for each bucket of cost the fastest: whatever
// is left out has one that is as cheap and hardly slower, and one that is as fast and hardly dearer.
func thinned(nodes []node, most int) []node {
	if len(nodes) <= most {
		return nodes
	}
	times, costs := newBuckets(most), newBuckets(most)
	for _, n := range nodes {
		times.see(n.seconds)
		costs.see(float64(n.cost))
	}
	cheapest, fastest := make([]int32, most), make([]int32, most)
	for i := range nodes {
		n := &nodes[i]
		if at := &cheapest[times.of(n.seconds)]; *at == 0 || nodes[*at-1].beaten(n.cost, n.seconds, byCost) {
			*at = int32(i + 1)
		}
		if at := &fastest[costs.of(float64(n.cost))]; *at == 0 || nodes[*at-1].beaten(n.cost, n.seconds, byTime) {
			*at = int32(i + 1)
		}
	}
	kept := make([]node, 0, 2*most)
	for _, found := range [][]int32{cheapest, fastest} {
		for _, at := range found {
			if at > 0 {
				kept = append(kept, nodes[at-1])
			}
		}
	}
	return kept
}

type order int

const (
	byCost order = iota
	byTime
)

// beaten reports whether one of this cost and time comes before n.
func (n *node) beaten(cost quantity.Money, seconds float64, by order) bool {
	if by == byCost {
		return cost < n.cost || cost == n.cost && seconds < n.seconds
	}
	return seconds < n.seconds || seconds == n.seconds && cost < n.cost
}

// buckets divide positive numbers by about equal steps of their logarithm: the bits of a floating-point number are a
// straight line between powers of two. What is below a millionth of the largest is in the first.
type buckets struct {
	count    uint64
	low, top uint64
	least    float64
	most     float64
}

func newBuckets(count int) *buckets { return &buckets{count: uint64(count), least: math.Inf(1)} }

func (b *buckets) see(x float64) {
	if x < b.least || x > b.most {
		b.least, b.most = min(b.least, x), max(b.most, x)
		b.low = math.Float64bits(max(b.least, b.most/1e6))
		b.top = math.Float64bits(b.most)
	}
}

func (b *buckets) of(x float64) int {
	bits := math.Float64bits(x)
	if bits <= b.low || b.top <= b.low {
		return 0
	}
	// In floating point: the product of two such differences may have more than 64 bits.
	at := float64(bits-b.low) / float64(b.top-b.low) * float64(b.count)
	return int(min(at, float64(b.count-1)))
}

// index sorts the last nodes, which are a frontier for each capacity, into one.
func (f *Frontier) index() { f.ends = unbeaten(slices.Clone(f.ends)) }

// Len is how many points there are.
func (f Frontier) Len() int { return len(f.ends) }

// Pair is the time and cost of point i, from 0 on, by ascending time and descending cost.
func (f Frontier) Pair(i int) (seconds float64, cost quantity.Money) {
	return f.ends[i].seconds, f.ends[i].cost
}

// At is point i, from 0 on, by ascending time and descending cost.
func (f Frontier) At(i int) Point {
	end := f.ends[i]
	p := Point{Seconds: end.seconds, Cost: end.cost, Options: make([]int, len(f.stages))}
	for stage := len(f.stages) - 1; stage >= 0; stage-- {
		p.Options[stage] = int(end.option)
		end = f.nodes[stage][end.before]
	}
	return p
}

// Fastest is the fastest point that costs at most budget; not found where none does.
func (f Frontier) Fastest(budget quantity.Money) (p Point, found bool) {
	i := sort.Search(len(f.ends), func(i int) bool { return f.ends[i].cost <= budget })
	if i == len(f.ends) {
		return Point{}, false
	}
	return f.At(i), true
}

// Cheapest is the cheapest point that takes at most this long; not found where none does.
func (f Frontier) Cheapest(seconds float64) (p Point, found bool) {
	i := sort.Search(len(f.ends), func(i int) bool { return !(f.ends[i].seconds <= seconds) })
	if i == 0 {
		return Point{}, false
	}
	return f.At(i - 1), true
}
