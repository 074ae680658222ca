package partition

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/workers/graph"
)

// timeline is a graph as the simulator of one batch sees it: every operation by itself. It holds a placement with what
// its simulation came to; see try for changes of it.
type timeline struct {
	*instance
	tensors []graph.Tensor
	from    [][]int   // the tensors that each operation makes
	reads   [][]int   // the tensors that each operation reads
	order   []int     // the operations in topological order
	at      []int     // the place of each operation in that order
	works   []float64 // of each operation, by kind of device
	hops    []float64 // of each tensor to its host or another device, by kind; nil where links differ by pair

	place []int // of each operation
	work  []float64
	rank  []float64 // the longest way to the end, with the transfers of the placement
	to    [][]int   // of each tensor, the devices that need it and do not make it, ascending

	moment  // what is being simulated
	kept    moment
	changes changes
	steps   float64 // taken so far, in the units of a budget
}

// moment is the state of a simulation between two times at which something happens.
type moment struct {
	now     float64
	done    int     // operations that have ended
	missing []int32 // of each operation, the tensors that are not there
	end     []float64
	ready   []float64 // since when each operation could run
	cause   []int32   // what each operation waited for last: a producer, or the one before on its device; -1 for nothing
	// contested is when the rank of each operation first mattered; +Inf where it did not.
	contested []float64
	busy      []bool
	last      []int32      // the operation that each device began last; -1 for none
	waiting   []queue[int] // of each device, the operations that may start
	channels  []float64    // until when each is taken
	events    queue[event]
}

func (in *instance) newTimeline() *timeline {
	g := in.p.Graph
	order, err := g.Order()
	if err != nil {
		panic("the order of a validated graph: " + err.Error())
	}
	n, devices := len(g.Ops), len(in.p.Devices)
	t := &timeline{
		instance: in, tensors: in.outputs, order: order, from: make([][]int, n), reads: make([][]int, n),
		at: make([]int, n), place: make([]int, n), rank: make([]float64, n), work: make([]float64, n),
		to: make([][]int, len(in.outputs)),
		moment: moment{
			missing: make([]int32, n), end: make([]float64, n), ready: make([]float64, n), cause: make([]int32, n),
			contested: make([]float64, n), busy: make([]bool, devices), last: make([]int32, devices),
			waiting: make([]queue[int], devices), channels: make([]float64, (devices+1)*(devices+1)),
			events: queue[event]{before: earlier},
		},
	}
	for d := range t.waiting {
		t.waiting[d].before = t.further
	}
	for i, op := range order {
		t.at[op] = i
	}
	for i, made := range t.tensors {
		t.from[made.From] = append(t.from[made.From], i)
		for _, reader := range made.Readers {
			t.reads[reader] = append(t.reads[reader], i)
		}
	}
	t.price()
	return t
}

// workOn is opWork as it was looked up.
func (t *timeline) workOn(op, device int) float64 { return t.works[t.kindOf[device]*len(t.order)+op] }

// price looks up what operations and transfers take, by kind of device.
func (t *timeline) price() {
	for _, k := range t.kinds {
		for op := range t.order {
			t.works = append(t.works, t.opWork(op, k.devices[0]))
		}
	}
	if !t.p.Links.ThroughHost && len(t.p.Links.Pairs) > 0 {
		return
	}
	for _, k := range t.kinds {
		for id := range t.tensors {
			t.hops = append(t.hops, t.transferTime(id, k.devices[0], -1))
		}
	}
}

// makespan simulates one batch for a placement of blocks: each device runs one operation at a time, of those whose
// inputs are there the one with the longest way to go; every tensor is sent once to each device that needs it, as soon
// as it is made, and transfers wait for each other on each channel while devices work on. A channel is a pair of
// devices, or with Links.ThroughHost the way out of a device or into it.
func (in *instance) makespan(place []int) float64 {
	if in.line == nil {
		in.line = in.newTimeline()
	}
	return in.line.simulate(place)
}

// simulate lays out a placement of blocks from the beginning, and keeps it.
func (t *timeline) simulate(place []int) float64 {
	for op, b := range t.blockOf {
		t.put(op, place[b])
	}
	for id := range t.tensors {
		t.to[id] = t.route(id, t.to[id][:0])
	}
	for _, op := range slices.Backward(t.order) {
		t.rank[op] = t.ranked(op)
	}
	t.changes.since = 0
	t.begin()
	span, _ := t.run(func(float64) bool { return false })
	t.keep()
	return span
}

func (t *timeline) put(op, device int) {
	t.place[op] = device
	t.work[op] = t.workOn(op, device)
}

// route lists the devices to which a tensor goes.
func (t *timeline) route(id int, to []int) []int {
	made := t.tensors[id]
	home := t.place[made.From]
	for _, reader := range made.Readers {
		if d := t.place[reader]; d != home && !slices.Contains(to, d) {
			to = append(to, d)
		}
	}
	slices.Sort(to)
	return to
}

// ranked is the longest way of an operation to the end, from those of its readers.
func (t *timeline) ranked(op int) float64 {
	longest := 0.0
	for _, id := range t.from[op] {
		for _, reader := range t.tensors[id].Readers {
			longest = max(longest, t.rank[reader]+t.way(id, t.place[op], t.place[reader]))
		}
	}
	return longest + t.work[op]
}

// begin sets the state before anything has happened.
func (t *timeline) begin() {
	t.now, t.done = 0, 0
	clear(t.busy)
	clear(t.channels)
	t.events.items = t.events.items[:0]
	for d := range t.waiting {
		t.waiting[d].items = t.waiting[d].items[:0]
		t.last[d] = -1
	}
	for op, reads := range t.reads {
		t.missing[op] = int32(len(reads)) //nolint:gosec // a graph has far fewer than 2^31 tensors
		t.cause[op], t.contested[op] = -1, math.Inf(1)
	}
	for _, op := range t.order {
		if t.missing[op] == 0 {
			t.await(op, -1)
		}
	}
	t.changes.reached = 0
}

// eventSteps is what it takes to let something happen, in the units of a budget.
const eventSteps = 110

// run goes on to the end and returns when that is. exceeds is told times that the end is no earlier than, and stops the
// simulation by returning true; done is false then.
func (t *timeline) run(exceeds func(float64) bool) (span float64, done bool) {
	if !t.dispatch(exceeds) {
		return 0, false
	}
	for len(t.events.items) > 0 {
		t.now = t.events.items[0].at
		for len(t.events.items) > 0 && t.events.items[0].at == t.now {
			t.steps += eventSteps
			t.happen(t.events.pop())
		}
		if !t.dispatch(exceeds) {
			return 0, false
		}
		t.changes.mark(&t.moment)
	}
	return t.now, true
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
	if t.hops != nil {
		return t.hops[t.kindOf[device]*len(t.tensors)+id]
	}
	return t.transferTime(id, device, to)
}

func (t *timeline) transferTime(id, device, to int) float64 {
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
		t.done++
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
	made := t.tensors[id]
	for _, reader := range made.Readers {
		if t.place[reader] == device {
			if t.missing[reader]--; t.missing[reader] == 0 {
				t.await(reader, made.From)
			}
		}
	}
}

// await queues an operation on its device, as one of its producers has let it; -1 for none.
func (t *timeline) await(op, producer int) {
	t.ready[op], t.cause[op] = t.now, int32(producer) //nolint:gosec // a graph has far fewer than 2^31 operations
	waiting := &t.waiting[t.place[op]]
	waiting.push(op)
	if len(waiting.items) < 2 {
		return
	}
	for _, one := range [2]int{waiting.items[0], op} {
		t.contested[one] = min(t.contested[one], t.now)
	}
	if len(waiting.items) == 2 { // the first may have been alone until now
		t.contested[waiting.items[1]] = min(t.contested[waiting.items[1]], t.now)
	}
}

// dispatch starts an operation on every idle device that has one. It returns false where the end is known to exceed
// what is allowed.
func (t *timeline) dispatch(exceeds func(float64) bool) bool {
	for d := range t.waiting {
		if t.busy[d] || len(t.waiting[d].items) == 0 {
			continue
		}
		op := t.waiting[d].pop()
		if t.ready[op] < t.now {
			t.cause[op] = t.last[d]
		}
		t.busy[d], t.last[d] = true, int32(op) //nolint:gosec // a graph has far fewer than 2^31 operations
		t.end[op] = t.now + t.work[op]
		t.events.push(event{at: t.end[op], kind: ended, id: op})
		if exceeds((t.now + t.rank[op]) * (1 - sameTime)) {
			return false
		}
	}
	return true
}

// further puts the longest way to go first.
func (t *timeline) further(a, b int) bool {
	return t.rank[a] > t.rank[b] || (t.rank[a] == t.rank[b] && a < b)
}

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
