package partition_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
)

// whole makes every span of a problem at least one whole second and no device that of the host, so that a clock can
// tick through it.
func whole(p partition.Problem) partition.Problem {
	for i := range p.Graph.Ops {
		for class, cost := range p.Graph.Ops[i].Costs {
			p.Graph.Ops[i].Costs[class] = graph.Cost{Forward: cost.Forward + 1}
		}
	}
	for i := range p.Graph.Edges {
		p.Graph.Edges[i].Bytes++
	}
	for i := range p.Devices {
		p.Devices[i].Host = false
	}
	p.Objective = partition.Latency
	return p
}

func TestTheMakespanIsWhatAClockShows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := whole(drawProblem(t, shape{ops: 9, devices: 3}))
		assignment := rapid.SliceOfN(rapid.IntRange(0, len(p.Devices)-1), len(p.Graph.Ops), len(p.Graph.Ops)).
			Draw(t, "assignment")
		if !allowed(p, assignment) {
			return
		}
		plan, err := partition.Evaluate(p, assignment)
		if err != nil {
			t.Fatal(err)
		}
		if want := tick(p, assignment); !near(float64(plan.StepTime), float64(want)) {
			t.Fatalf("makespan %v, the clock shows %d", plan.StepTime, want)
		}
	})
}

// parcel is a tensor on its way to a device, or to the host (device -1) first.
type parcel struct{ from, device, left int }

// clock is a slow simulator: every second it looks at everything.
type clock struct {
	p          partition.Problem
	assignment []int
	rank       []int
	has        []map[int]bool // by device, the operations whose output is there
	running    []int          // by device, the operation; -1 for none
	left       []int
	begun      []bool
	lines      map[[2]int][]parcel // by channel; the first one travels
	done       int
}

// tick returns the second at which the last operation ends.
func tick(p partition.Problem, assignment []int) int {
	c := clock{
		p: p, assignment: assignment, rank: make([]int, len(assignment)), running: slices.Repeat([]int{-1}, len(p.Devices)),
		left: make([]int, len(p.Devices)), begun: make([]bool, len(assignment)), lines: map[[2]int][]parcel{},
	}
	for range p.Devices {
		c.has = append(c.has, map[int]bool{})
	}
	for i := len(assignment) - 1; i >= 0; i-- { // edges lead from smaller to greater numbers
		for _, e := range p.Graph.Edges {
			if e.From != i {
				continue
			}
			way := 0
			if assignment[i] != assignment[e.To] {
				way = int(e.Bytes)
				if p.Links.ThroughHost {
					way *= 2
				}
			}
			c.rank[i] = max(c.rank[i], c.rank[e.To]+way)
		}
		c.rank[i] += c.work(i)
	}
	for now := 0; ; now++ {
		c.arrive()
		if c.done == len(assignment) {
			return now
		}
		c.begin()
		for d, op := range c.running {
			if op >= 0 {
				c.left[d]--
			}
		}
		for _, line := range c.lines {
			if len(line) > 0 {
				line[0].left--
			}
		}
	}
}

func (c *clock) work(op int) int {
	return int(c.p.Graph.Ops[op].Costs[c.p.Devices[c.assignment[op]].Class].Forward)
}

// arrive ends what has no second left: operations, then uploads, then transfers to devices.
func (c *clock) arrive() {
	var ended []int
	for d, op := range c.running {
		if op >= 0 && c.left[d] == 0 {
			ended = append(ended, op)
			c.running[d] = -1
		}
	}
	slices.Sort(ended)
	for _, op := range ended {
		c.done++
		c.has[c.assignment[op]][op] = true
		if to := c.receivers(op); len(to) > 0 {
			if c.p.Links.ThroughHost {
				c.put([2]int{c.assignment[op], -1}, parcel{from: op, device: -1})
				continue
			}
			for _, d := range to {
				c.put([2]int{c.assignment[op], d}, parcel{from: op, device: d})
			}
		}
	}
	var uploaded []int
	for channel, line := range c.lines {
		if len(line) == 0 || line[0].left > 0 {
			continue
		}
		c.lines[channel] = line[1:]
		if line[0].device < 0 {
			uploaded = append(uploaded, line[0].from)
		} else {
			c.has[line[0].device][line[0].from] = true
		}
	}
	slices.Sort(uploaded)
	for _, op := range uploaded {
		for _, d := range c.receivers(op) {
			c.put([2]int{-1, d}, parcel{from: op, device: d})
		}
	}
}

func (c *clock) put(channel [2]int, one parcel) {
	for _, e := range c.p.Graph.Edges {
		if e.From == one.from {
			one.left = int(e.Bytes)
		}
	}
	c.lines[channel] = append(c.lines[channel], one)
}

func (c *clock) receivers(op int) []int {
	var to []int
	for _, e := range c.p.Graph.Edges {
		if e.From == op && c.assignment[e.To] != c.assignment[op] {
			to = append(to, c.assignment[e.To])
		}
	}
	slices.Sort(to)
	return slices.Compact(to)
}

// begin starts, on every idle device, the operation with the longest way to go among those that may start.
func (c *clock) begin() {
	for d := range c.running {
		if c.running[d] >= 0 {
			continue
		}
		next := -1
		for op, at := range c.assignment {
			ready := at == d && !c.begun[op]
			for _, e := range c.p.Graph.Edges {
				ready = ready && (e.To != op || c.has[d][e.From])
			}
			if ready && (next < 0 || c.rank[op] > c.rank[next]) {
				next = op
			}
		}
		if next >= 0 {
			c.begun[next] = true
			c.running[d], c.left[d] = next, c.work(next)
		}
	}
}

func TestAPlacementForLatencyIsCloseToTheBestOfAll(t *testing.T) {
	t.Parallel()
	worst := 1.0
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem(t, shape{ops: 5, devices: 2, tight: rapid.Bool().Draw(t, "tight")})
		p.Objective = partition.Latency
		p.Moves = 4000
		best := bestOf(p, func([]int) bool { return true }, func(a []int) float64 {
			plan, err := partition.Evaluate(p, a)
			if err != nil {
				t.Fatal(err)
			}
			if plan.LowerBound > plan.StepTime*(1+1e-9) {
				t.Fatalf("%v takes %v, below the bound %v", a, plan.StepTime, plan.LowerBound)
			}
			return float64(plan.StepTime)
		})
		plan, err := partition.Solve(p)
		if err != nil {
			// A list schedule may fill the devices so that the last block finds no room.
			return
		}
		if float64(plan.StepTime) > 1.3*best+1e-9 || math.IsInf(best, 1) {
			t.Fatalf("%v takes %v, the best %v", plan.Assignment, plan.StepTime, best)
		}
		if best > 0 {
			worst = max(worst, float64(plan.StepTime)/best)
		}
	})
	t.Logf("at most %.3f times the best", worst)
}

func TestParallelTowersRunInParallel(t *testing.T) {
	t.Parallel()
	var g graph.Graph
	cost := map[string]graph.Cost{fast: {Forward: 1}}
	for tower := range 4 {
		for i := range 10 {
			g.Ops = append(g.Ops, graph.Op{ID: string(rune('a'+tower)) + string(rune('0'+i)), Costs: cost})
			if i > 0 {
				g.Edges = append(g.Edges, graph.Edge{From: len(g.Ops) - 2, To: len(g.Ops) - 1, Bytes: 1})
			}
		}
	}
	p := partition.Problem{
		Graph: g, Devices: equal(4, 0), Objective: partition.Latency,
		Links: partition.Links{Between: partition.Link{BytesPerSecond: 1}},
	}
	if plan := solve(t, p); plan.StepTime != 10 {
		t.Errorf("four towers of ten seconds take %v on four devices", plan.StepTime)
	}
}
