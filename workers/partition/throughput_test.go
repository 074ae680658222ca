package partition_test

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
)

func TestAContiguousPlanIsTheBestOfAll(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem(t, shape{ops: 6, devices: 2, tight: rapid.Bool().Draw(t, "tight")})
		p.Links.ThroughHost = true
		want := bestOf(p, func(a []int) bool { return contiguous(p, a) }, func(a []int) float64 {
			return slices.Max(loadsOf(p, a))
		})
		got, err := partition.Contiguous(p)
		if math.IsInf(want, 1) {
			if err == nil {
				t.Fatalf("%v, though there is no plan", got.Assignment)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if !allowed(p, got.Assignment) || !contiguous(p, got.Assignment) || !near(float64(got.StepTime), want) {
			t.Fatalf("%v of load %v, want %v", got.Assignment, got.StepTime, want)
		}
		if !got.Optimal {
			t.Fatal("it does not know that it is the best")
		}
	})
}

func TestLoadsAreWhatTheirDefinitionSays(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem(t, shape{ops: 8, devices: 3})
		assignment := rapid.SliceOfN(rapid.IntRange(0, len(p.Devices)-1), len(p.Graph.Ops), len(p.Graph.Ops)).
			Draw(t, "assignment")
		plan, err := partition.Evaluate(p, assignment)
		if !allowed(p, assignment) {
			if err == nil {
				t.Fatal("it is not allowed, and was not refused")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		want := loadsOf(p, assignment)
		for d, share := range plan.PerDevice {
			if !near(float64(share.Load), want[d]) {
				t.Fatalf("device %d has load %v, want %v", d, share.Load, want[d])
			}
		}
		if !near(float64(plan.StepTime), slices.Max(want)) {
			t.Fatalf("time %v, want %v", plan.StepTime, slices.Max(want))
		}
	})
}

func TestNoPlanBeatsTheLowerBoundAndMovesNeverHarm(t *testing.T) {
	t.Parallel()
	exact := 0
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem(t, shape{ops: 6, devices: 2, tight: rapid.Bool().Draw(t, "tight")})
		first, err := partition.Contiguous(p)
		if err != nil {
			return
		}
		plan, err := partition.Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		best := bestOf(p, func([]int) bool { return true }, func(a []int) float64 { return slices.Max(loadsOf(p, a)) })
		if bound := float64(plan.LowerBound); bound > best*(1+1e-9) {
			t.Fatalf("the bound is %v, and a plan takes %v", bound, best)
		}
		if !allowed(p, plan.Assignment) || plan.StepTime > first.StepTime || float64(plan.StepTime) < best*(1-1e-9) {
			t.Fatalf("%v takes %v, after %v; the best of all takes %v", plan.Assignment, plan.StepTime, first.StepTime, best)
		}
		if near(float64(plan.StepTime), best) {
			exact++
		}
	})
	if exact == 0 {
		t.Error("the local search never found the best of all")
	}
}

func TestMovesTakeTheEndsOfAChainTogether(t *testing.T) {
	t.Parallel()
	p := partition.Problem{Devices: equal(2, 0), Links: partition.Links{ThroughHost: true}}
	for i, work := range []graph.Seconds{3, 6, 3} {
		p.Graph.Ops = append(p.Graph.Ops, graph.Op{ID: strconv.Itoa(i), Costs: map[string]graph.Cost{fast: {Forward: work}}})
		if i > 0 {
			p.Graph.Edges = append(p.Graph.Edges, graph.Edge{From: i - 1, To: i, Bytes: 1})
		}
	}
	stages, err := partition.Contiguous(p)
	if err != nil {
		t.Fatal(err)
	}
	plan := solve(t, p)
	if stages.StepTime != 9 || plan.StepTime != 6 || !plan.Optimal || !strings.Contains(plan.Reason, "no plan is faster") {
		t.Errorf("stages take %v, the plan %v: %s", stages.StepTime, plan.StepTime, plan.Reason)
	}
}

func TestAGraphOfTrainingKeepsGradientsWithTheirLayers(t *testing.T) {
	t.Parallel()
	p := towers(4, 3)
	plan := solve(t, p)
	for i, op := range p.Graph.Ops {
		if op.BackwardOf == "" {
			continue
		}
		mate, _ := p.Graph.Index(op.BackwardOf)
		if plan.Assignment[i] != plan.Assignment[mate] {
			t.Errorf("%s is on device %d, %s on %d", op.ID, plan.Assignment[i], op.BackwardOf, plan.Assignment[mate])
		}
	}
	if plan.Used() == nil || plan.StepTime < plan.LowerBound {
		t.Errorf("got %+v", plan)
	}
}

// towers is the training of a chain of layers, forward and back, for so many devices.
func towers(layers, devices int) partition.Problem {
	var g graph.Graph
	cost := map[string]graph.Cost{fast: {Forward: 1}}
	name := func(i int) string { return "layer " + string(rune('a'+i)) }
	for i := range layers {
		g.Ops = append(g.Ops, graph.Op{ID: name(i), Costs: cost, Workspace: 10})
		if i > 0 {
			g.Edges = append(g.Edges, graph.Edge{From: i - 1, To: i, Bytes: 1})
		}
	}
	for i := range layers {
		g.Ops = append(g.Ops, graph.Op{ID: "gradient of " + name(i), BackwardOf: name(i), Costs: cost, Workspace: 10})
		g.Edges = append(g.Edges, graph.Edge{From: i, To: layers + i, Bytes: 1, Output: 1})
		if i > 0 {
			g.Edges = append(g.Edges, graph.Edge{From: layers + i, To: layers + i - 1, Bytes: 1})
		}
	}
	return partition.Problem{Graph: g, Devices: equal(devices, 0), Links: partition.Links{ThroughHost: true}}
}

func TestEveryMethodKeepsToColoursClassesAndMemory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem(t, shape{ops: 10, devices: 3, tight: true})
		p.Objective = rapid.SampledFrom([]partition.Objective{partition.Throughput, partition.Latency}).Draw(t, "objective")
		for name, method := range map[string]func(partition.Problem) (partition.Plan, error){
			"solve": partition.Solve, "contiguous": partition.Contiguous, "linearised": partition.Linearised,
			"m-TOPO": partition.TopologicalFill,
			"m-ETF":  partition.EarliestTask, "m-SCT": partition.SmallCommunication, "greedy": partition.GreedyFill,
		} {
			plan, err := method(p)
			if errors.Is(err, partition.ErrUnfit) {
				continue
			}
			if errors.Is(err, partition.ErrProblem) {
				return // no device runs what must be together
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !allowed(p, plan.Assignment) {
				t.Fatalf("%s: %v is not allowed", name, plan.Assignment)
			}
			again, err := partition.Evaluate(p, plan.Assignment)
			if err != nil || !near(float64(again.StepTime), float64(plan.StepTime)) {
				t.Fatalf("%s says %v, the assignment takes %v: %v", name, plan.StepTime, again.StepTime, err)
			}
		}
	})
}

func TestTheSameProblemHasTheSamePlan(t *testing.T) {
	t.Parallel()
	for _, objective := range []partition.Objective{partition.Throughput, partition.Latency, partition.Step} {
		p := layered(60, 4, 1)
		p.Objective = objective
		first, second := solve(t, p), solve(t, p)
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%v: %s", objective, diff)
		}
	}
}

func TestARecurrenceStaysOnOneDevice(t *testing.T) {
	t.Parallel()
	p := towers(5, 3)
	p.Graph.Edges = append(p.Graph.Edges, graph.Edge{From: 3, To: 1, Output: 2, Bytes: 1, State: true})
	plan := solve(t, p)
	if a := plan.Assignment; a[1] != a[2] || a[2] != a[3] {
		t.Errorf("the recurrence is on devices %v", a[1:4])
	}
}

func TestAnUndeclaredCycleIsRefused(t *testing.T) {
	t.Parallel()
	p := towers(3, 2)
	p.Graph.Edges = append(p.Graph.Edges, graph.Edge{From: 2, To: 0, Output: 2, Bytes: 1})
	if _, err := partition.Solve(p); !errors.Is(err, graph.ErrCycle) {
		t.Errorf("got %v", err)
	}
}
