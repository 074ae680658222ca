package partition

import (
	"fmt"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
)

// instance is a problem with its operations grouped into blocks that are never split, and its devices into kinds of
// equals. Its forward edges have no cycle, so that stages can be cut.
type instance struct {
	p       Problem
	blocks  [][]int // the operations of each block, ascending
	blockOf []int
	next    [][]int // the forward edges between blocks: a directed acyclic graph
	tensors []tensor
	from    [][]int32 // the tensors that a block makes and others read
	into    [][]int32 // the tensors that a block reads from others
	memory  []float64
	kinds   []kind
	kindOf  []int
	line    *timeline // made by the first makespan
	outputs []graph.Tensor
	sums    []sums  // of each block
	effort  *effort // what is left of the budget, the loose instance's too
	// gradients says that some operations belong to the backward pass.
	gradients bool
	// loose is the same problem with smaller blocks, for plans that need not be contiguous: only what must be together is.
	// Its forward edges may have cycles. It is the instance itself where there is no difference.
	loose *instance
}

// tensor is what one block makes and others read.
type tensor struct {
	from     int
	readers  []int // blocks, ascending, without from
	bytes    quantity.Bytes
	measured graph.Seconds
}

// kind is a set of devices that are interchangeable, except for links between pairs of them.
type kind struct {
	devices []int
	work    []float64 // of each block, in seconds; +Inf where it cannot run
	send    []float64 // of each tensor
	room    float64
	host    bool
}

func newInstance(p Problem) (*instance, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if err := p.Graph.Validate(); err != nil {
		return nil, fmt.Errorf("partition a graph: %w", err)
	}
	if _, err := p.Graph.Order(); err != nil {
		return nil, fmt.Errorf("partition a graph: %w", err)
	}
	sets := together(p.Graph)
	loose := build(p, sets)
	for b := range loose.blocks {
		if !slices.ContainsFunc(loose.kinds, func(k kind) bool { return !math.IsInf(k.work[b], 1) }) {
			return nil, fmt.Errorf("%w: no device runs operation %q and what must be with it: add a device of a class that "+
				"all of them have costs for",
				ErrProblem, p.Graph.Ops[loose.blocks[b][0]].ID)
		}
	}
	loose.effort = newEffort(p)
	if !loose.fuse(sets) {
		return loose, nil
	}
	in := build(p, sets)
	in.loose, in.effort = loose, loose.effort
	return in, nil
}

// build makes the instance whose blocks are the sets.
func build(p Problem, sets disjoint) *instance {
	in := &instance{p: p, gradients: slices.ContainsFunc(p.Graph.Ops, backward)}
	in.loose = in
	var count int
	in.blockOf, count = sets.number()
	in.blocks = make([][]int, count)
	for op, b := range in.blockOf {
		in.blocks[b] = append(in.blocks[b], op)
	}
	in.next = in.forward(in.orphans())
	in.addTensors()
	in.addMemory()
	in.addKinds()
	in.sums = make([]sums, len(in.blocks))
	for b := range in.blocks {
		in.sums[b] = in.sumsOf(b)
	}
	return in
}

// together joins operations of one colour, gradients with what they are gradients of, and members of a recurrence.
func together(g graph.Graph) disjoint {
	sets := newDisjoint(len(g.Ops))
	colours := map[string]int{}
	index := make(map[string]int, len(g.Ops))
	for i, op := range g.Ops {
		index[op.ID] = i
	}
	for i, op := range g.Ops {
		if op.Colour != "" {
			if first, seen := colours[op.Colour]; seen {
				sets.join(first, i)
			} else {
				colours[op.Colour] = i
			}
		}
		if op.BackwardOf != "" {
			sets.join(i, index[op.BackwardOf])
		}
	}
	all := make([][]int, len(g.Ops))
	for _, e := range g.Edges {
		all[e.From] = append(all[e.From], e.To)
	}
	for _, component := range graph.Components(all) { // only state edges close cycles here
		for _, op := range component[1:] {
			sets.join(component[0], op)
		}
	}
	return sets
}

// fuse joins blocks that forward edges join in a cycle, so that those edges order what is left; it returns false where
// there is none.
func (in *instance) fuse(sets disjoint) bool {
	fused := false
	for _, component := range graph.Components(in.next) {
		for _, b := range component[1:] {
			sets.join(in.blocks[component[0]][0], in.blocks[b][0])
			fused = true
		}
	}
	return fused
}

// orphans tells the backward operations that are with no forward operation because of a colour or as its gradient.
func (in *instance) orphans() []bool {
	sets := together(in.p.Graph)
	hasForward := make([]bool, len(in.blockOf))
	for i, op := range in.p.Graph.Ops {
		if !backward(op) {
			hasForward[sets.find(i)] = true
		}
	}
	orphan := make([]bool, len(in.blockOf))
	for i := range orphan {
		orphan[i] = !hasForward[sets.find(i)]
	}
	return orphan
}

// forward returns the edges between blocks that order them: those of the forward pass. Backward operations without a
// forward one are ordered by their edges turned round, as the backward pass mirrors the forward pass; so stages are
// contiguous in both.
func (in *instance) forward(orphan []bool) [][]int {
	g := in.p.Graph
	next := make([][]int, len(in.blocks))
	join := func(from, to int) {
		if from != to && !slices.Contains(next[from], to) {
			next[from] = append(next[from], to)
		}
	}
	for _, e := range g.Edges {
		from, to := in.blockOf[e.From], in.blockOf[e.To]
		fromBackward, toBackward := backward(g.Ops[e.From]), backward(g.Ops[e.To])
		switch {
		case e.State:
		case !fromBackward && !toBackward:
			join(from, to)
		case fromBackward && toBackward && (orphan[e.From] || orphan[e.To]):
			join(to, from)
		}
	}
	return next
}

// loosely is a placement in terms of the loose blocks.
func (in *instance) loosely(place []int) []int {
	wide := make([]int, len(in.loose.blocks))
	for b, members := range in.loose.blocks {
		wide[b] = place[in.blockOf[members[0]]]
	}
	return wide
}

func backward(op graph.Op) bool { return op.Backward || op.BackwardOf != "" }

func (in *instance) addTensors() {
	in.from = make([][]int32, len(in.blocks))
	in.into = make([][]int32, len(in.blocks))
	in.outputs = in.p.Graph.Tensors()
	for _, t := range in.outputs {
		made := tensor{from: in.blockOf[t.From], bytes: t.Bytes, measured: t.Transfer}
		for _, reader := range t.Readers {
			if b := in.blockOf[reader]; b != made.from {
				made.readers = append(made.readers, b)
			}
		}
		slices.Sort(made.readers)
		made.readers = slices.Compact(made.readers)
		if len(made.readers) == 0 || (t.Bytes == 0 && t.Transfer == 0) {
			continue
		}
		id := int32(len(in.tensors)) //nolint:gosec // a graph has far fewer than 2^31 tensors
		in.tensors = append(in.tensors, made)
		in.from[made.from] = append(in.from[made.from], id)
		for _, b := range made.readers {
			in.into[b] = append(in.into[b], id)
		}
	}
}

func (in *instance) addMemory() {
	in.memory = make([]float64, len(in.blocks))
	for b, members := range in.blocks {
		for _, i := range members {
			op := in.p.Graph.Ops[i]
			in.memory[b] += in.p.Memory.held(float64(op.Parameters), 1, in.p.Training) + float64(op.Activation) +
				float64(op.Workspace)
		}
	}
}

func (in *instance) addKinds() {
	in.kindOf = make([]int, len(in.p.Devices))
	type likeness struct {
		class string
		speed float64
		room  float64
		host  bool
		link  Link
	}
	numbers := map[likeness]int{}
	for d, device := range in.p.Devices {
		alike := likeness{device.Class, device.speed(), device.room(), device.Host, in.p.link(d, -1)}
		number, known := numbers[alike]
		if !known {
			number = len(in.kinds)
			numbers[alike] = number
			in.kinds = append(in.kinds, in.newKind(device, alike.link))
		}
		in.kinds[number].devices = append(in.kinds[number].devices, d)
		in.kindOf[d] = number
	}
}

func (in *instance) newKind(device Device, link Link) kind {
	k := kind{
		work: make([]float64, len(in.blocks)), send: make([]float64, len(in.tensors)), room: device.room(),
		host: device.Host,
	}
	for b, members := range in.blocks {
		for _, i := range members {
			cost, runs := in.p.Graph.Ops[i].Costs[device.Class]
			if !runs {
				k.work[b] = math.Inf(1)
				break
			}
			k.work[b] += float64(cost.Forward) / device.speed()
			if in.p.Training {
				k.work[b] += float64(cost.Backward) / device.speed()
			}
		}
	}
	if device.Host && in.p.Links.ThroughHost {
		return k
	}
	for t, made := range in.tensors {
		k.send[t] = in.ways() * link.seconds(made.bytes, made.measured)
	}
	return k
}

// ways is how often a tensor travels: its gradient comes back where the backward pass is part of each operation.
func (in *instance) ways() float64 {
	if in.p.Training {
		return 2
	}
	return 1
}

func (in *instance) runs(block, device int) bool {
	return !math.IsInf(in.kinds[in.kindOf[device]].work[block], 1)
}

// loads returns the work and the transfers of each device, in seconds.
func (in *instance) loads(place []int) []float64 {
	loads := make([]float64, len(in.p.Devices))
	for b, d := range place {
		loads[d] += in.kinds[in.kindOf[d]].work[b]
	}
	seen := make([]int, len(in.p.Devices))
	for t, made := range in.tensors {
		d := place[made.from]
		sends := 0
		for _, reader := range made.readers {
			to := place[reader]
			if to == d || seen[to] == t+1 {
				continue
			}
			seen[to] = t + 1
			sends++
			out, arrive := in.transfer(t, d, to)
			loads[to] += arrive
			if sends == 1 || !in.p.Links.ThroughHost {
				loads[d] += out
			}
		}
	}
	return loads
}

// transfer returns how long a tensor keeps the device it leaves and the one it reaches.
func (in *instance) transfer(t, from, to int) (out, arrive float64) {
	if in.p.Links.ThroughHost || len(in.p.Links.Pairs) == 0 {
		return in.kinds[in.kindOf[from]].send[t], in.kinds[in.kindOf[to]].send[t]
	}
	made := in.tensors[t]
	seconds := in.ways() * in.p.link(from, to).seconds(made.bytes, made.measured)
	return seconds, seconds
}

// sent returns the bytes that leave each device.
func (in *instance) sent(place []int) []float64 {
	sent := make([]float64, len(in.p.Devices))
	for _, made := range in.tensors {
		d := place[made.from]
		reached := map[int]bool{d: true}
		for _, reader := range made.readers {
			to := place[reader]
			if !reached[to] && (!in.p.Links.ThroughHost || len(reached) == 1) {
				sent[d] += float64(made.bytes)
			}
			reached[to] = true
		}
	}
	return sent
}

// disjoint is a union-find.
type disjoint []int

func newDisjoint(n int) disjoint {
	d := make(disjoint, n)
	for i := range d {
		d[i] = i
	}
	return d
}

func (d disjoint) find(i int) int {
	for d[i] != i {
		d[i] = d[d[i]]
		i = d[i]
	}
	return i
}

// join keeps the smaller representative, so that numbers follow the order of the operations.
func (d disjoint) join(i, j int) {
	i, j = d.find(i), d.find(j)
	d[max(i, j)] = min(i, j)
}

// number counts the sets in the order of their first members.
func (d disjoint) number() (of []int, count int) {
	of = make([]int, len(d))
	for i := range d {
		if root := d.find(i); root == i {
			of[i] = count
			count++
		} else {
			of[i] = of[root]
		}
	}
	return of, count
}
