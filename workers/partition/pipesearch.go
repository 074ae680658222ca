package partition

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/workers/graph"
)

// pipeline solves for [Step]: PipeDream's plans and the best pipelines along several orders, each polished; then along
// orders drawn at random as long as the budget lasts and that helps.
func (in *instance) pipeline() (Plan, error) {
	best := contest{least: math.Inf(1)}
	lines := in.lines()
	starts := in.starts()
	for _, micro := range in.microBatches() {
		for _, wide := range []bool{false, true} {
			x := pipe{instance: in, micro: float64(micro), wide: wide}
			for _, stages := range starts {
				best.enter(&x, stages, "from PipeDream's plan")
			}
			for _, l := range lines {
				if wide && (micro == 1 || !l.links) {
					continue // more in flight hides links only
				}
				best.search(&x, l)
			}
		}
	}
	if math.IsInf(best.least, 1) {
		return Plan{}, in.unfit()
	}
	least := in.loose.shared()
	if len(lines) > 1 { // otherwise there is one order, or all are alike
		random := rand.New(rand.NewPCG(in.p.Seed, uint64(len(in.blocks))))
		for idle := 0; idle < idleOrders && !in.effort.spent() && best.least > least*(1+sameTime); idle++ {
			keys := random.Perm(len(in.blocks))
			l := in.newLine(in.depthFirst(func(a, b int) int { return keys[a] - keys[b] }))
			l.name = "drawn at random"
			before, x := best.least, best.by
			if best.search(&x, l); best.least < before {
				idle = 0
			}
		}
	}
	best.plan.LowerBound = graph.Seconds(least)
	best.plan.Optimal = len(lines) == 1 && len(lines[0].segments) == len(in.blocks) &&
		exact(len(in.blocks), len(in.p.Devices)) && !in.effort.spent()
	return best.plan, nil
}

// idleOrders is after how many orders drawn in vain the search ends.
const idleOrders = 4

// contest keeps the best of several pipelines.
type contest struct {
	plan   Plan
	least  float64
	by     pipe    // what the best one is for
	labels []label // of the last search, for the next one to overwrite
}

// search looks along an order for a pipeline that is better than the best so far.
func (c *contest) search(x *pipe, l line) {
	s := pipeSearch{pipe: *x, line: l, least: c.least, labels: c.labels[:0]}
	c.enter(x, s.run(), "along the order "+l.name)
	c.labels = s.labels
}

// enter polishes a pipeline and keeps it if it is the best so far; nil is none.
func (c *contest) enter(x *pipe, stages []stageOf, reason string) {
	if stages == nil {
		return
	}
	stages, total := x.polish(stages)
	if total >= c.least {
		return
	}
	if plan, err := x.planOf(stages, reason); err == nil {
		plan.Reason = fmt.Sprintf("%d stages of %d micro-batches, %s", len(plan.Stages), plan.MicroBatches, reason)
		c.plan, c.least, c.by = plan, total, *x
	}
}

// starts are PipeDream's plans; none where stages have no replicas, which are what these plans are good for.
func (in *instance) starts() [][]stageOf {
	if in.p.MostReplicas == 1 {
		return nil
	}
	var starts [][]stageOf
	for _, activations := range []bool{true, false} {
		if !activations && len(in.blocks)*len(in.p.Devices) > mostStarts {
			continue
		}
		stages, _ := in.pipeDream(activations, in.effort.part(startShare))
		starts = append(starts, stages)
	}
	return starts
}

// startShare is the part of the budget that each of PipeDream's plans may take: of many devices, its table is larger
// than all else.
const startShare = 0.6

// mostStarts bounds blocks times devices where both of PipeDream's plans are starts; the one without activations is
// rarely the better.
const mostStarts = 4000

// lines are the orders that differ.
func (in *instance) lines() []line {
	var lines []line
	seen := map[string]bool{}
	for _, order := range in.orders() {
		if text := fmt.Sprint(order.blocks); !seen[text] {
			seen[text] = true
			l := in.newLine(order.blocks)
			l.name = order.name
			lines = append(lines, l)
		}
	}
	return lines
}

// microBatches are the numbers that are tried.
func (in *instance) microBatches() []int {
	if in.p.MicroBatches > 0 {
		return []int{in.p.MicroBatches}
	}
	most := in.p.MostMicroBatches
	if most == 0 {
		most = defaultMicro
	}
	var numbers []int
	for m := 1; m <= most; m *= 2 {
		numbers = append(numbers, m)
	}
	slices.Reverse(numbers) // a good plan, which is early with many, stops the search with few
	return numbers
}

// line is a linear order of blocks, joined to segments where there are too many.
type line struct {
	name     string
	segments [][]int
	prefix   []sums    // of the first i segments
	least    []float64 // of the first i segments, the work on the fastest device for each block
	borders  []border
	links    bool      // some border takes time
	keeps    []keeping // of the segments from start to end on replicas; see keepsOf
}

// mostPlaces bounds segments times devices in the search.
const mostPlaces = 320

// newLine joins neighbours of an order until there are few enough segments: the cheapest borders go first, unless a
// segment would have more than twice its part of the work.
func (in *instance) newLine(order []int) line {
	segments := make([][]int, len(order))
	for i, b := range order {
		segments[i] = []int{b}
	}
	most := max(mostPlaces/len(in.p.Devices), 2*len(in.p.Devices), 12)
	if len(segments) > most {
		segments = in.join(segments, most)
	}
	l := line{segments: segments}
	group := make([]int, len(in.blocks))
	k := len(in.kinds)
	total := sums{forward: make([]float64, k), backward: make([]float64, k), extra: make([]float64, k)}
	l.prefix, l.least = append(l.prefix, total.clone()), append(l.least, 0)
	least := 0.0
	for i, blocks := range segments {
		for _, b := range blocks {
			group[b] = i
			total.plus(in.sums[b])
			least += in.fastest(b)
		}
		l.prefix, l.least = append(l.prefix, total.clone()), append(l.least, least)
	}
	l.borders = in.borders(group, len(segments))
	if size := (len(segments) + 1) * (len(segments) + 1) * (len(in.p.Devices) + 1); size <= mostKeeps {
		l.keeps = make([]keeping, size)
	}
	l.links = slices.ContainsFunc(l.borders, func(b border) bool {
		x := pipe{instance: in, micro: 1}
		return x.hop(b.forward, 1, 1) > 0 || x.hop(b.backward, 1, 1) > 0
	})
	return l
}

func (s *sums) clone() sums {
	c := *s
	c.forward, c.backward, c.extra = slices.Clone(s.forward), slices.Clone(s.backward), slices.Clone(s.extra)
	return c
}

// join joins neighbours to at most so many segments of about equal work. Within three quarters to five quarters of its
// part, a segment ends where the border is cheapest.
func (in *instance) join(single [][]int, most int) [][]int {
	group := make([]int, len(in.blocks))
	rest := 0.0
	for i, blocks := range single {
		group[blocks[0]] = i
		rest += in.fastest(blocks[0])
	}
	x := pipe{instance: in, micro: 1}
	borders := in.borders(group, len(single))
	var joined [][]int
	for start := 0; start < len(single); {
		left := most - len(joined)
		part := rest / float64(left)
		end, cheapest, work, taken := len(single), math.Inf(1), 0.0, rest
		for i := start; i < len(single) && left > 1 && work < 1.25*part; i++ {
			work += in.fastest(single[i][0])
			if cost := x.hop(borders[i+1].forward, 1, 1); end == len(single) || (work >= 0.75*part && cost <= cheapest) {
				if work >= 0.75*part {
					cheapest = cost
				}
				end, taken = i+1, work
			} else if work < 0.75*part {
				end, taken = i+1, work
			}
		}
		joined = append(joined, slices.Concat(single[start:end]...))
		start, rest = end, rest-taken
	}
	return joined
}

// label is a suffix of a pipeline: the stages from a place on.
type label struct {
	chainOf
	used     int // the devices in use, as a state
	kind     int
	replicas int
	end      int // where its first stage ends
	rest     int // the label of the stages after it; -1 for none
	estimate float64
}

// pipeSearch builds pipelines from the last stage forward. Of two suffixes that start at one place, with the same
// devices in use, the same first replicas and as many stages, the one that is no worse in sum, period and residual is
// kept: the cost of whatever precedes depends on nothing else. Where that is too much, suffixes are told apart by the
// devices in use only, and the most promising few of each are kept.
type pipeSearch struct {
	pipe
	line  line
	least float64 // the best step known

	exact   bool
	labels  []label
	buckets []map[bucket][]int
	stride  []int
	scratch sums
}

type bucket struct{ used, kind, replicas, stages int }

// mostExact bounds segments times devices of the exact search, mostInBucket the suffixes that are kept alike otherwise.
const mostExact, mostInBucket = 72, 8

// exact reports whether the search of so many segments keeps every suffix that matters.
func exact(segments, devices int) bool { return segments*devices <= mostExact && devices <= 8 }

// run returns the best pipeline below least; nil where there is none.
func (x *pipeSearch) run() (stages []stageOf) {
	n := len(x.line.segments)
	x.exact = exact(n, len(x.p.Devices))
	x.scratch = x.line.prefix[0].clone()
	x.buckets = make([]map[bucket][]int, n+1)
	for i := range x.buckets {
		x.buckets[i] = map[bucket][]int{}
	}
	size := 1
	for _, k := range x.kinds {
		x.stride = append(x.stride, size)
		size *= len(k.devices) + 1
	}
	x.extend(-1, n)
	best := -1
	for at := n - 1; at > 0; at-- {
		for _, key := range sortedKeys(x.buckets[at]) {
			if x.effort.spent() && !math.IsInf(x.least, 1) {
				return nil // with many devices, a place has many
			}
			for _, i := range x.buckets[at][key] {
				if x.leastTotal(x.labels[i].chainOf, x.labels[i].used, at) < x.least {
					x.extend(i, at)
				}
			}
		}
	}
	for _, key := range sortedKeys(x.buckets[0]) {
		for _, i := range x.buckets[0][key] {
			if total := x.total(x.labels[i].chainOf); total < x.least {
				x.least, best = total, i
			}
		}
	}
	if best < 0 {
		return nil
	}
	start := 0
	for i := best; i >= 0; i = x.labels[i].rest {
		l := x.labels[i]
		stages = append(stages, stageOf{
			blocks: slices.Concat(x.line.segments[start:l.end]...), kind: l.kind,
			replicas: l.replicas,
		})
		start = l.end
	}
	return stages
}

func sortedKeys(buckets map[bucket][]int) []bucket {
	keys := make([]bucket, 0, len(buckets))
	for key := range buckets {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b bucket) int {
		for _, d := range []int{a.used - b.used, a.kind - b.kind, a.replicas - b.replicas} {
			if d != 0 {
				return d
			}
		}
		return a.stages - b.stages
	})
	return keys
}

// extendSteps is what it takes to look at a stage in front of a label.
const extendSteps = 130

// extend puts every possible stage in front of a label, whose own stages begin at the given place.
func (x *pipeSearch) extend(from, end int) {
	suffix := label{rest: -1, end: len(x.line.segments)}
	if from >= 0 {
		suffix = x.labels[from]
	}
	for kind := range x.kinds {
		left := len(x.kinds[kind].devices) - x.count(suffix.used, kind)
		for _, replicas := range x.replicaCounts(left) {
			forward, back := 0.0, 0.0
			if from >= 0 {
				forward = x.hop(x.line.borders[end].forward, replicas, suffix.replicas)
				back = x.hop(x.line.borders[end].backward, replicas, suffix.replicas)
			}
			used := suffix.used + replicas*x.stride[kind]
			for start := end - 1; start >= 0; start-- {
				x.effort.spend(extendSteps)
				part := x.part(start, end)
				keeps := x.keepsOf(part, start, end, replicas)
				t := x.stage(part, keeps, x.line.borders[start].forward, kind, replicas, suffix.stages+1)
				c := x.before(suffix.chainOf, t, forward, back)
				if !t.fits && x.memoryGrows(t, kind) {
					break
				}
				if !t.fits || x.leastTotal(c, used, start) >= x.least {
					if x.total(c) >= x.least {
						break // a wider stage costs more
					}
					continue
				}
				x.keep(start, label{chainOf: c, used: used, kind: kind, replicas: replicas, end: end, rest: from})
			}
		}
	}
}

// mostKeeps bounds the table of keepsOf, 16 bytes each.
const mostKeeps = 1_000_000

// keepsOf looks up what the parameters of a part come to.
func (x *pipeSearch) keepsOf(part *sums, start, end, replicas int) keeping {
	if x.line.keeps == nil {
		return x.pipe.keeps(part.parameters, replicas)
	}
	at := (start*(len(x.line.segments)+1)+end)*(len(x.p.Devices)+1) + replicas
	if x.line.keeps[at] == (keeping{}) {
		x.line.keeps[at] = x.pipe.keeps(part.parameters, replicas)
	}
	return x.line.keeps[at]
}

// memoryGrows reports whether every wider stage is too large as well: all of its memory but what enters it grows.
func (x *pipeSearch) memoryGrows(t timing, kind int) bool {
	return !t.recompute || t.memory > 2*x.kinds[kind].room
}

// replicaCounts are the numbers of replicas that are tried: all up to 8, then even steps, up to the problem's bound.
func (x *pipeSearch) replicaCounts(left int) []int {
	var counts []int
	left = min(left, x.p.mostReplicas())
	for r := 1; r <= left; r++ {
		if r <= 8 || r%4 == 0 || r == left {
			counts = append(counts, r)
		}
	}
	return counts
}

// part is the sum of the segments from start to end; the next call overwrites it.
func (x *pipeSearch) part(start, end int) *sums {
	high, low := &x.line.prefix[end], &x.line.prefix[start]
	s := &x.scratch
	s.parameters, s.activation, s.kept = high.parameters-low.parameters, high.activation-low.activation, high.kept-low.kept
	s.measured, s.workspace = high.measured, high.workspace-low.workspace
	for k := range x.kinds {
		s.forward[k] = high.forward[k] - low.forward[k]
		if math.IsInf(high.forward[k], 1) { // some block before end cannot run there: add up what can be
			s.forward[k] = x.barred(start, end, k)
		}
		s.backward[k] = high.backward[k] - low.backward[k]
		s.extra[k] = high.extra[k] - low.extra[k]
	}
	return s
}

func (x *pipeSearch) barred(start, end, kind int) float64 {
	total := 0.0
	for _, blocks := range x.line.segments[start:end] {
		for _, b := range blocks {
			total += x.sums[b].forward[kind]
		}
	}
	return total
}

func (x *pipeSearch) count(used, kind int) int {
	return used / x.stride[kind] % (len(x.kinds[kind].devices) + 1)
}

// leastTotal is a bound for all pipelines that end with a suffix: what is in front of it runs on the devices that are
// left, at best without a bubble.
func (x *pipeSearch) leastTotal(c chainOf, used, start int) float64 {
	if start == 0 {
		return x.total(c)
	}
	left, most := 0, 0
	for k, kind := range x.kinds {
		n := len(kind.devices) - x.count(used, k)
		left += n
		most = max(most, n)
	}
	if left == 0 {
		return math.Inf(1)
	}
	work := x.line.least[start] / x.micro
	c.sum += work / float64(min(most, x.p.mostReplicas()))
	c.period = max(c.period, work/float64(left))
	c.residual = 0
	return x.total(c)
}

// keep adds a label unless another one is as good; those that it beats are dropped.
func (x *pipeSearch) keep(start int, l label) {
	key := bucket{used: l.used, kind: l.kind, replicas: l.replicas}
	if x.exact {
		key = bucket{l.used, l.kind, l.replicas, l.stages}
	}
	held := x.buckets[start][key]
	for _, i := range held {
		if x.labels[i].dominates(l) {
			return
		}
	}
	held = slices.DeleteFunc(held, func(i int) bool { return l.dominates(x.labels[i]) })
	if !x.exact {
		l.estimate = x.estimate(l, start)
	}
	if !x.exact && len(held) == mostInBucket {
		worst := held[0]
		for _, i := range held {
			if x.labels[i].estimate > x.labels[worst].estimate {
				worst = i
			}
		}
		if l.estimate >= x.labels[worst].estimate {
			return
		}
		held = slices.DeleteFunc(held, func(i int) bool { return i == worst })
	}
	x.labels = append(x.labels, l)
	x.buckets[start][key] = append(held, len(x.labels)-1)
}

// estimate is what a suffix may well lead to: as leastTotal, with gradients that are summed up while stages in front,
// of one replica, work backward.
func (x *pipeSearch) estimate(l label, start int) float64 {
	if start == 0 {
		return x.total(l.chainOf)
	}
	rest := x.line.prefix[start].backward[l.kind] / x.micro
	return x.leastTotal(l.chainOf, l.used, start) + max(0, l.residual-rest)
}

func (l label) dominates(other label) bool {
	return l.sum <= other.sum && l.period <= other.period && l.residual <= other.residual
}
