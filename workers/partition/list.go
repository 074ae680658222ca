package partition

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/workers/graph"
)

// The baselines and starting points of [Latency] follow Baechi (B. Jeon et al., Baechi: Fast Device Placement of
// Machine Learning Graphs, SoCC 2020, https://doi.org/10.1145/3419111.3421302).

// TopologicalFill is m-TOPO: devices are filled in turn, in topological order, each up to an equal share of all memory
// plus the largest operation.
func TopologicalFill(p Problem) (Plan, error) {
	return byMethod(p, "topological fill", (*instance).topologicalFill)
}

func (in *instance) topologicalFill() ([]int, bool) {
	total, largest := 0.0, 0.0
	for _, size := range in.memory {
		total += size
		largest = max(largest, size)
	}
	share := total/float64(len(in.p.Devices)) + largest
	return in.fill(graph.Topological(in.next), func(d int) float64 { return min(share, in.p.Devices[d].room()) })
}

// GreedyFill fills each device in turn up to its memory, depth first, and those with Host set last: the greedy baseline
// of the NeurIPS 2020 paper that [Contiguous] names.
func GreedyFill(p Problem) (Plan, error) {
	return byMethod(p, "greedy fill", func(in *instance) ([]int, bool) {
		return in.fill(in.depthFirst(func(a, b int) int { return b - a }), func(d int) float64 {
			return in.p.Devices[d].room()
		})
	})
}

// EvenSplit gives each device an equal part of the work in topological order, whatever fits; those with Host set only
// where there is no other.
func EvenSplit(p Problem) (Plan, error) {
	return byMethod(p, "even split", func(in *instance) ([]int, bool) {
		devices := in.fillOrder()
		if apart := slices.IndexFunc(devices, func(d int) bool { return in.p.Devices[d].Host }); apart > 0 {
			devices = devices[:apart]
		}
		total := 0.0
		for b := range in.blocks {
			total += in.fastest(b)
		}
		place := make([]int, len(in.blocks))
		done := 0.0
		for _, b := range graph.Topological(in.next) {
			i := 0
			if total > 0 {
				i = min(int(done/total*float64(len(devices))), len(devices)-1)
			}
			place[b] = devices[i]
			done += in.fastest(b)
		}
		return place, true
	})
}

// EarliestTask is m-ETF: of all ready operations and devices, the pair that can start first is scheduled next.
func EarliestTask(p Problem) (Plan, error) {
	return byMethod(p, "earliest task first", func(in *instance) ([]int, bool) { return in.loose.list(nil) })
}

// SmallCommunication is m-SCT: as [EarliestTask], but a device waits for the favourite child of what it ran last where
// that saves a transfer on the longest path.
func SmallCommunication(p Problem) (Plan, error) {
	return byMethod(p, "small communication times", func(in *instance) ([]int, bool) {
		return in.loose.list(in.loose.favourites())
	})
}

func byMethod(p Problem, name string, method func(*instance) ([]int, bool)) (Plan, error) {
	in, err := newInstance(p)
	if err != nil {
		return Plan{}, err
	}
	place, ok := method(in)
	if !ok {
		return Plan{}, in.unfit()
	}
	if len(place) != len(in.blocks) { // the method saw the loose blocks
		in = in.loose
	}
	plan, err := in.plan(place, name)
	plan.Stages = in.stagesOf(place)
	return plan, err
}

// fillOrder is the devices with those of the host last.
func (in *instance) fillOrder() []int {
	devices := make([]int, 0, len(in.p.Devices))
	for _, host := range []bool{false, true} {
		for d, device := range in.p.Devices {
			if device.Host == host {
				devices = append(devices, d)
			}
		}
	}
	return devices
}

// fill puts blocks on devices in turn, up to a limit of memory for each; a block that fits none of those left goes to
// the first that has room.
func (in *instance) fill(order []int, limit func(device int) float64) (place []int, ok bool) {
	devices := in.fillOrder()
	held := make([]float64, len(in.p.Devices))
	place = make([]int, len(in.blocks))
	at := 0
	for _, b := range order {
		for at+1 < len(devices) && held[devices[at]]+in.memory[b] > limit(devices[at]) &&
			in.memory[b] <= limit(devices[at+1]) {
			at++
		}
		d := devices[at]
		if held[d]+in.memory[b] > in.p.Devices[d].room() || !in.runs(b, d) {
			i := slices.IndexFunc(devices, func(d int) bool {
				return held[d]+in.memory[b] <= in.p.Devices[d].room() && in.runs(b, d)
			})
			if i < 0 {
				return nil, false
			}
			d = devices[i]
		}
		place[b] = d
		held[d] += in.memory[b]
	}
	return place, true
}

// lister is a list schedule that is half made.
type lister struct {
	*timeline
	child   []int // the favourite child of each operation; -1 for none
	free    []float64
	held    []float64
	chosen  []int // the device of each block; -1 while open
	last    []int // the operation that each device ran last; -1 for none
	arrives [][]float64
	began   []bool
}

// list schedules the operations one by one and returns the placement of the blocks. child are the favourite children of
// the operations, nil for none. Transfers do not wait for each other here; makespan judges the result with all waits.
// ok is false where an operation finds no device with room.
func (in *instance) list(child []int) (place []int, ok bool) {
	t := in.newTimeline()
	n, devices := len(in.blockOf), len(in.p.Devices)
	l := lister{
		timeline: t, child: child, free: make([]float64, devices), held: make([]float64, devices),
		chosen: make([]int, len(in.blocks)), last: make([]int, devices), arrives: make([][]float64, n),
		began: make([]bool, n),
	}
	for b := range l.chosen {
		l.chosen[b] = -1
	}
	for d := range l.last {
		l.last[d] = -1
	}
	missing := make([]int, n)
	var ready []int
	for op := range n {
		if missing[op] = len(t.reads[op]); missing[op] == 0 {
			ready = append(ready, op)
			l.arrives[op] = make([]float64, devices)
		}
	}
	for len(ready) > 0 {
		at, d := l.choose(ready)
		if at < 0 {
			return nil, false
		}
		op := ready[at]
		ready = slices.Delete(ready, at, at+1)
		l.schedule(op, d)
		for _, id := range l.from[op] {
			for _, reader := range l.tensors[id].Readers {
				if missing[reader]--; missing[reader] == 0 {
					ready = append(ready, reader)
					l.arrives[reader] = l.arrivals(reader)
				}
			}
		}
	}
	return l.chosen, true
}

// chooseSteps is what it takes to look at an operation on a device.
const chooseSteps = 5

// choose returns the ready operation and the device that start first. A device waits for the favourite child of its
// last operation, and takes another only where that one's inputs could be everywhere by then; where nothing else is
// left, nobody waits.
func (l *lister) choose(ready []int) (at, device int) {
	for _, waiting := range []bool{l.child != nil, false} {
		best := math.Inf(1)
		l.effort.spend(chooseSteps * float64(len(ready)*len(l.free)))
		at, device = -1, -1
		for i, op := range ready {
			everywhere := 0.0
			if waiting {
				everywhere = slices.Max(l.arrives[op])
			}
			for d := range l.free {
				if !l.admits(op, d) || (waiting && l.awaits(d, op) && everywhere > l.free[d]) {
					continue
				}
				start := max(l.free[d], l.arrives[op][d])
				// Among equal starts, the earlier end: otherwise a slow device takes the first operations of every graph.
				if cost := start + 1e-3*l.workOn(op, d); cost < best {
					best, at, device = cost, i, d
				}
			}
		}
		if at >= 0 {
			return at, device
		}
	}
	return -1, -1
}

// admits reports whether the device has room for the operation's block, or already holds it.
func (l *lister) admits(op, device int) bool {
	b := l.blockOf[op]
	if l.chosen[b] >= 0 {
		return l.chosen[b] == device
	}
	return l.runs(b, device) && l.held[device]+l.memory[b] <= l.p.Devices[device].room()
}

// awaits reports whether the device waits for another operation than this one.
func (l *lister) awaits(device, op int) bool {
	last := l.last[device]
	if last < 0 || l.child[last] < 0 || l.child[last] == op {
		return false
	}
	return !l.began[l.child[last]]
}

func (l *lister) schedule(op, device int) {
	b := l.blockOf[op]
	if l.chosen[b] < 0 {
		l.chosen[b] = device
		l.held[device] += l.memory[b]
	}
	l.began[op] = true
	l.end[op] = max(l.free[device], l.arrives[op][device]) + l.workOn(op, device)
	l.free[device] = l.end[op]
	l.last[device] = op
}

// arrivals is when all inputs of an operation are on each device.
func (l *lister) arrivals(op int) []float64 {
	arrives := make([]float64, len(l.free))
	for _, id := range l.reads[op] {
		from := l.tensors[id].From
		home := l.chosen[l.blockOf[from]]
		for d := range arrives {
			arrives[d] = max(arrives[d], l.end[from]+l.way(id, home, d))
		}
	}
	return arrives
}
