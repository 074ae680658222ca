package partition

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/graph"
)

func TestWidenedStagesAreContiguousAndNoWorse(t *testing.T) {
	t.Parallel()
	better := 0
	rapid.Check(t, func(t *rapid.T) {
		in := drawInstance(t, 12)
		place, _, ok := in.linearised()
		if !ok {
			t.Fatal("no plan along any order")
		}
		before := slices.Max(in.loads(place))
		wider, improved := in.widen(place, 1)
		after := slices.Max(in.loads(wider))
		if improved != (after < before*(1-1e-9)) || after > before {
			t.Fatalf("improved is %v: load %v, before %v", improved, after, before)
		}
		if in.stagesOf(wider) == nil || !in.placeFits(wider) {
			t.Fatalf("%v is not contiguous or does not fit", wider)
		}
		if improved {
			better++
		}
	})
	if better == 0 {
		t.Error("it never found anything better")
	}
}

// Graphs of wide modules have too many ideals to look at them all, and orders find stages that are far from balanced.
func TestStagesOfWideGraphsComeCloseToTheLeastPossible(t *testing.T) {
	t.Parallel()
	for _, shape := range []struct{ ops, branches int }{{300, 8}, {326, 8}, {1000, 8}, {3000, 12}} {
		p := wideProblem(shape.ops, shape.branches, Throughput)
		p.Contiguous = true
		if _, ideals := wide(shape.ops, shape.branches, 1); ideals < 1e6 {
			t.Errorf("%v: %v ideals are not many", shape, ideals)
		}
		in, err := newInstance(p)
		if err != nil {
			t.Fatal(err)
		}
		along, _, _ := in.linearised()
		in.effort = newEffort(p)
		plan, err := in.solve()
		if err != nil {
			t.Fatal(err)
		}
		// The last search may go beyond by what one ideal takes.
		if in.effort.left < -0.1*newEffort(p).left {
			t.Errorf("%v: the budget was exceeded by %v steps", shape, -in.effort.left)
		}
		if gap := plan.StepTime/plan.LowerBound - 1; gap > 0.02 {
			t.Errorf("%v: %v is %.3f above the least possible; along orders, %v", shape, plan.StepTime, gap,
				slices.Max(in.loads(along)))
		}
		if !in.placeFits(plan.Assignment) || plan.Stages == nil {
			t.Errorf("%v: not contiguous", shape)
		}
	}
}

func TestWideGraphsTakeTheirBudgetAndNoMore(t *testing.T) {
	t.Parallel()
	for _, objective := range []Objective{Throughput, Latency, Step} {
		p := wideProblem(3000, 12, objective)
		in, err := newInstance(p)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := in.solve()
		if err != nil {
			t.Fatal(err)
		}
		if over := -in.effort.left / newEffort(p).left; over > 0.02 {
			t.Errorf("%v: it took %.3f of its budget", objective, 1+over)
		}
		p.Budget = time.Nanosecond
		hasty, err := solve(p)
		if err != nil {
			t.Fatal(err)
		}
		// Orders drawn at random shorten few steps.
		if plan.StepTime > hasty.StepTime || (objective != Step && plan.StepTime == hasty.StepTime) {
			t.Errorf("%v: %v with a budget, %v without", objective, plan.StepTime, hasty.StepTime)
		}
	}
}

func TestASpentBudgetLeadsToTheSamePlanAgain(t *testing.T) {
	t.Parallel()
	for _, objective := range []Objective{Throughput, Latency, Step} {
		p := wideProblem(1000, 8, objective)
		p.Budget = 100 * time.Millisecond
		first, err := Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		second, err := Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%v: %s", objective, diff)
		}
		if !strings.Contains(first.Reason, "the least possible") {
			t.Errorf("%v: %q does not tell how far from the least possible it may be", objective, first.Reason)
		}
	}
}

// TestManyDevicesTakeTheBudgetAndNoMore has so many devices that PipeDream's table of all stages alone would take more
// than the budget.
func TestManyDevicesTakeTheBudgetAndNoMore(t *testing.T) {
	t.Parallel()
	const ops, reads, devices = 300, 100, 64
	random := rand.New(rand.NewPCG(1, ops))
	p := Problem{Objective: Step, Training: true, Links: Links{Between: Link{BytesPerSecond: 2000}}, MostMicroBatches: 16}
	for i := range ops {
		work := graph.Seconds(0.5 + random.ExpFloat64())
		p.Graph.Ops = append(p.Graph.Ops, graph.Op{
			ID: strconv.Itoa(i), Costs: map[string]graph.Cost{"gpu": {Forward: work, Backward: 2 * work}}, Parameters: 500,
			Activation: 500,
		})
		for _, from := range random.Perm(i)[:min(i, reads)] {
			p.Graph.Edges = append(p.Graph.Edges, graph.Edge{From: from, To: i, Bytes: 150})
		}
	}
	for d := range devices {
		p.Devices = append(p.Devices, Device{ID: strconv.Itoa(d), Class: "gpu"})
	}
	in, err := newInstance(p)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := in.solve()
	if err != nil {
		t.Fatal(err)
	}
	if over := -in.effort.left / newEffort(p).left; over > 0.02 {
		t.Errorf("it took %.3f of its budget", 1+over)
	}
	t.Logf("%v, of at least %v: %s", plan.StepTime, plan.LowerBound, plan.Reason)
}
