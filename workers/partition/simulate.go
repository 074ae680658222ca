package partition

import (
	"cmp"
	"slices"

	"github.com/spillway-ml/spillway/workers/graph"
)

// timeline is a graph as the simulator of one batch sees it: every operation by itself.
type timeline struct {
	*instance
	tensors []graph.Tensor
	from    [][]int // the tensors that each operation makes
	reads   [][]int // the tensors that each operation reads
	order   []int   // the operations in topological order

	// What one simulation fills; kept to save allocation.
	place    []int // of each operation
	rank     []float64
	work     []float64
	missing  []int
	start    []float64
	end      []float64
	ready    []queue[rankedOp] // of each device, the operations that may start
	busy     []bool
	channels []float64 // until when each is taken
	events   queue[event]
	to       [][]int // of each tensor, the devices that need it and do not make it, ascending
}

func (in *instance) newTimeline() *timeline {
	g := in.p.Graph
	order, err := g.Order()
	if err != nil {
		panic("the order of a validated graph: " + err.Error())
	}
	n := len(g.Ops)
	t := &timeline{
		instance: in, tensors: in.outputs, order: order, from: make([][]int, n), reads: make([][]int, n),
		place: make([]int, n), rank: make([]float64, n), work: make([]float64, n), missing: make([]int, n),
		start: make([]float64, n), end: make([]float64, n),
		ready: make([]queue[rankedOp], len(in.p.Devices)), events: queue[event]{before: earlier},
		to: make([][]int, len(in.outputs)), busy: make([]bool, len(in.p.Devices)),
		channels: make([]float64, (len(in.p.Devices)+1)*(len(in.p.Devices)+1)),
	}
	for d := range t.ready {
		t.ready[d].before = further
	}
	for i, made := range t.tensors {
		t.from[made.From] = append(t.from[made.From], i)
		for _, reader := range made.Readers {
			t.reads[reader] = append(t.reads[reader], i)
		}
	}
	return t
}

// makespan simulates one batch for a placement of blocks: each device runs one operation at a time, of those whose
// inputs are there the one with the longest way to go; every tensor is sent once to each device that needs it, as soon
// as it is made, and transfers wait for each other on each channel while devices work on. A channel is a pair of
// devices, or with Links.ThroughHost the way out of a device or into it.
func (in *instance) makespan(place []int) float64 {
	if in.line == nil {
		in.line = in.newTimeline()
	}
	return in.line.run(place)
}

func (t *timeline) run(place []int) float64 {
	t.prepare(place)
	for _, op := range t.order {
		if t.missing[op] == 0 {
			t.await(op)
		}
	}
	span := 0.0
	t.dispatch(0)
	for len(t.events.items) > 0 {
		now := t.events.items[0].at
		for len(t.events.items) > 0 && t.events.items[0].at == now {
			t.happen(t.events.pop())
		}
		span = max(span, now)
		t.dispatch(now)
	}
	return span
}

// prepare clears the state and ranks the operations by their longest way to the end, with the transfers of this
// placement.
func (t *timeline) prepare(place []int) {
	for op, reads := range t.reads {
		t.missing[op] = len(reads)
	}
	clear(t.busy)
	clear(t.channels)
	for d := range t.ready {
		t.ready[d].items = t.ready[d].items[:0]
	}
	for op, b := range t.blockOf {
		t.place[op] = place[b]
		t.work[op] = t.opWork(op, place[b])
	}
	for id, made := range t.tensors {
		t.to[id] = t.to[id][:0]
		for _, reader := range made.Readers {
			if d := t.place[reader]; d != t.place[made.From] && !slices.Contains(t.to[id], d) {
				t.to[id] = append(t.to[id], d)
			}
		}
		slices.Sort(t.to[id])
	}
	for _, op := range slices.Backward(t.order) {
		longest := 0.0
		for _, id := range t.from[op] {
			for _, reader := range t.tensors[id].Readers {
				longest = max(longest, t.rank[reader]+t.way(id, t.place[op], t.place[reader]))
			}
		}
		t.rank[op] = longest + t.work[op]
	}
}

// way is how long a tensor takes from one device to another without waiting.
func (t *timeline) way(id, from, to int) float64 {
	if from == to {
		return 0
	}
	if !t.p.Links.ThroughHost {
		return t.hop(id, from, to)
	}
	return t.hop(id, from, -1) + t.hop(id, to, -1)
}

// hop is how long a tensor takes over one channel: between two devices, or between a device and its host (to < 0).
func (t *timeline) hop(id, device, to int) float64 {
	if to < 0 && t.p.Devices[device].Host {
		return 0
	}
	made := t.tensors[id]
	return t.ways() * t.p.link(device, to).seconds(made.Bytes, made.Transfer)
}

// event is the end of an operation, of a tensor's way to the host, or of its way to a device.
type event struct {
	at     float64
	kind   eventKind
	id     int // operation or tensor
	device int // the one that is reached
}

type eventKind int8

const (
	ended eventKind = iota
	uploaded
	arrived
)

func earlier(a, b event) bool {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind), cmp.Compare(a.id, b.id),
		cmp.Compare(a.device, b.device)) < 0
}

func (t *timeline) happen(e event) {
	switch e.kind {
	case ended:
		t.busy[t.place[e.id]] = false
		for _, id := range t.from[e.id] {
			t.publish(id, e.at)
		}
	case uploaded:
		for _, to := range t.to[e.id] {
			t.send([2]int{-1, to}, t.hop(e.id, to, -1), event{at: e.at, kind: arrived, id: e.id, device: to})
		}
	case arrived:
		t.deliver(e.id, e.device)
	}
}

// publish hands a tensor to the readers on its own device and sends it to the others.
func (t *timeline) publish(id int, now float64) {
	home := t.place[t.tensors[id].From]
	t.deliver(id, home)
	to := t.to[id]
	if len(to) == 0 {
		return
	}
	if t.p.Links.ThroughHost {
		t.send([2]int{home, -1}, t.hop(id, home, -1), event{at: now, kind: uploaded, id: id})
		return
	}
	for _, d := range to {
		t.send([2]int{home, d}, t.hop(id, home, d), event{at: now, kind: arrived, id: id, device: d})
	}
}

// send takes a channel as soon as it is free, and lets the event happen at the end.
func (t *timeline) send(channel [2]int, seconds float64, then event) {
	taken := &t.channels[(channel[0]+1)*(len(t.busy)+1)+channel[1]+1] // the host is -1
	*taken = max(then.at, *taken) + seconds
	then.at = *taken
	t.events.push(then)
}

// deliver counts a tensor as there for its readers on a device.
func (t *timeline) deliver(id, device int) {
	for _, reader := range t.tensors[id].Readers {
		if t.place[reader] == device {
			if t.missing[reader]--; t.missing[reader] == 0 {
				t.await(reader)
			}
		}
	}
}

// await queues an operation on its device.
func (t *timeline) await(op int) {
	t.ready[t.place[op]].push(rankedOp{op: op, rank: t.rank[op]})
}

// dispatch starts an operation on every idle device that has one.
func (t *timeline) dispatch(now float64) {
	for d := range t.ready {
		if t.busy[d] || len(t.ready[d].items) == 0 {
			continue
		}
		next := t.ready[d].pop()
		t.busy[d] = true
		t.start[next.op], t.end[next.op] = now, now+t.work[next.op]
		t.events.push(event{at: t.end[next.op], kind: ended, id: next.op})
	}
}

type rankedOp struct {
	op   int
	rank float64
}

// further puts the longest way to go first.
func further(a, b rankedOp) bool { return a.rank > b.rank || (a.rank == b.rank && a.op < b.op) }

// queue is a binary heap; container/heap would allocate for every element.
type queue[T any] struct {
	items  []T
	before func(a, b T) bool
}

func (q *queue[T]) push(item T) {
	q.items = append(q.items, item)
	for i := len(q.items) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.before(q.items[i], q.items[parent]) {
			return
		}
		q.items[i], q.items[parent] = q.items[parent], q.items[i]
		i = parent
	}
}

func (q *queue[T]) pop() T {
	first, last := q.items[0], len(q.items)-1
	q.items[0] = q.items[last]
	q.items = q.items[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return first
		}
		if child+1 < last && q.before(q.items[child+1], q.items[child]) {
			child++
		}
		if !q.before(q.items[child], q.items[i]) {
			return first
		}
		q.items[i], q.items[child] = q.items[child], q.items[i]
		i = child
	}
}
