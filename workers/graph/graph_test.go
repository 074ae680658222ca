package graph_test

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/graph"
)

func Example() {
	g, err := graph.ReadPipeDream(strings.NewReader(
		"a -- Linear -- forward_compute_time=1, backward_compute_time=2, activation_size=8, parameter_size=16\n" +
			"b -- Softmax -- forward_compute_time=3, backward_compute_time=4, activation_size=8, parameter_size=0\n" +
			"\ta -- b\n"))
	if err != nil {
		fmt.Println(err)
		return
	}
	s := g.Summary()
	fmt.Println(s.Ops, s.Edges, s.Parameters, s.Total[graph.Accelerator])
	// Output: 2 1 16 B 0.01
}

// cpu is a cost of one class.
func cpu(forward graph.Seconds) map[string]graph.Cost {
	return map[string]graph.Cost{graph.CPU: {Forward: forward}}
}

// recurrent is a cell of two operations that feeds itself, between an input and an output.
func recurrent() graph.Graph {
	return graph.Graph{
		Name: "recurrent",
		Ops: []graph.Op{
			{ID: "in", Costs: cpu(1)},
			{ID: "cell", Costs: cpu(2), Parameters: 10},
			{ID: "gate", Costs: cpu(3), Parameters: 20, Activation: 5},
			{ID: "out", Costs: cpu(4)},
		},
		Edges: []graph.Edge{
			{From: 0, To: 1, Bytes: 8},
			{From: 1, To: 2, Bytes: 4},
			{From: 2, To: 1, Output: 1, Bytes: 2, State: true},
			{From: 2, To: 3, Bytes: 6},
		},
	}
}

func TestAnUndeclaredCycleIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	g := recurrent()
	g.Edges[2].State = false
	if _, err := g.Order(); !errors.Is(err, graph.ErrCycle) || !strings.Contains(err.Error(), "cell, gate") ||
		strings.Contains(err.Error(), "out") {
		t.Errorf("got %v", err)
	}
}

func TestOneTensorHasEachReaderOnce(t *testing.T) {
	t.Parallel()
	g := graph.Graph{
		Ops: []graph.Op{{ID: "a", Costs: cpu(1)}, {ID: "b", Costs: cpu(1)}, {ID: "c", Costs: cpu(1)}},
		Edges: []graph.Edge{
			{From: 0, To: 2, Bytes: 5},
			{From: 0, To: 1, Bytes: 5},
			{From: 0, To: 2, Bytes: 5},
			{From: 0, To: 2, Output: 1, Bytes: 7},
		},
	}
	want := []graph.Tensor{{From: 0, Readers: []int{1, 2}, Bytes: 5}, {From: 0, Readers: []int{2}, Bytes: 7}}
	if diff := cmp.Diff(want, g.Tensors()); diff != "" {
		t.Error(diff)
	}
}

// dag draws edges from smaller to greater vertices, and a renaming that hides this.
func dag(t *rapid.T, most int) [][]int {
	n := rapid.IntRange(1, most).Draw(t, "vertices")
	names := rapid.Permutation(ascending(n)).Draw(t, "names")
	next := make([][]int, n)
	for v := range n {
		for w := v + 1; w < n; w++ {
			if rapid.IntRange(0, 3).Draw(t, "edge") == 0 {
				next[names[v]] = append(next[names[v]], names[w])
			}
		}
	}
	return next
}

func ascending(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func TestIdealsAreAllSetsThatHoldTheirPredecessors(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		next := dag(t, 10)
		n := len(next)
		ideals, err := graph.EnumerateIdeals(next, 1<<n)
		if err != nil {
			t.Fatal(err)
		}
		got := map[int]int{} // set to number
		for id := range ideals.Count {
			set := 0
			for v := range n {
				if ideals.Has(id, v) {
					set |= 1 << v
				}
			}
			got[set] = id
		}
		count := 0
		for set := range 1 << n {
			closed := true
			for v, successors := range next {
				for _, w := range successors {
					closed = closed && (set>>w&1 == 0 || set>>v&1 == 1)
				}
			}
			if !closed {
				continue
			}
			count++
			id, found := got[set]
			if !found {
				t.Fatalf("%b is an ideal and was not found", set)
			}
			for v := range n { // the steps down lead to the ideals with one vertex less
				if smaller, isIdeal := got[set&^(1<<v)]; set>>v&1 == 1 && isIdeal {
					step := graph.Step{Vertex: int32(v), Ideal: int32(smaller)}
					if !slices.Contains(ideals.Below[id], step) || smaller >= id {
						t.Fatalf("ideal %b lacks the step without %d", set, v)
					}
				}
			}
			other := rapid.IntRange(0, ideals.Count-1).Draw(t, "other")
			if missing := ideals.Difference(id, other); len(missing) != 0 == ideals.Contains(other, id) {
				t.Fatalf("%d lacks %v of %d", other, missing, id)
			}
		}
		if count != ideals.Count || len(got) != count {
			t.Fatalf("%d ideals, %d sets, want %d", ideals.Count, len(got), count)
		}
		if _, err := graph.EnumerateIdeals(next, count-1); count > 1 && !errors.Is(err, graph.ErrTooManyIdeals) {
			t.Fatalf("with a limit of %d: %v", count-1, err)
		}
	})
}

func TestIdealsAlongAnOrderLeaveNoGapBeforeTheirFloors(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		next := dag(t, 10)
		n := len(next)
		order, floors := graph.Topological(next), make([]int, n)
		for i := range floors {
			least := 0
			if i > 0 {
				least = floors[i-1]
			}
			floors[i] = rapid.IntRange(least, i).Draw(t, "floor")
		}
		all, err := graph.EnumerateIdeals(next, 1<<n)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{}
		for id := range all.Count {
			keeps := true
			for i, v := range order {
				for _, w := range order[:floors[i]] {
					keeps = keeps && (!all.Has(id, v) || all.Has(id, w))
				}
			}
			if keeps {
				want[fmt.Sprint(all.Difference(id, 0))] = true
			}
		}
		near, err := graph.IdealsAlong(next, order, floors, 1<<n)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for id := range near.Count {
			set := fmt.Sprint(near.Difference(id, 0))
			if _, twice := got[set]; twice || !want[set] {
				t.Fatalf("%s is there twice or should not be", set)
			}
			got[set] = id
		}
		if len(got) != len(want) {
			t.Fatalf("%d ideals, want %d", len(got), len(want))
		}
		for id := range near.Count { // the steps down lead to all of them with one vertex less
			down := 0
			for other := range near.Count {
				if less := near.Difference(id, other); len(less) == 1 && near.Contains(id, other) {
					down++
					step := graph.Step{Vertex: int32(less[0]), Ideal: int32(other)}
					if !slices.Contains(near.Below[id], step) || other >= id {
						t.Fatalf("ideal %d lacks the step without %d", id, less[0])
					}
				}
			}
			if down != len(near.Below[id]) {
				t.Fatalf("ideal %d has %d steps, want %d", id, len(near.Below[id]), down)
			}
		}
		if _, err := graph.IdealsAlong(next, order, floors, near.Count-1); near.Count > 1 &&
			!errors.Is(err, graph.ErrTooManyIdeals) {
			t.Fatalf("with a limit of %d: %v", near.Count-1, err)
		}
	})
}

func TestIdealsReachALimitedWayBeyondTheirFirstGap(t *testing.T) {
	t.Parallel()
	const n = 100 // one before the chain of all others
	next := make([][]int, n)
	for v := 1; v < n-1; v++ {
		next[v] = []int{v + 1}
	}
	ideals, err := graph.IdealsAlong(next, ascending(n), make([]int, n), 1000)
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	for id := range ideals.Count {
		if !ideals.Has(id, 0) {
			most = max(most, len(ideals.Difference(id, 0)))
		}
	}
	if most != 63 || ideals.Count != n+1+most || len(ideals.Difference(ideals.Count-1, 0)) != n {
		t.Errorf("%d ideals, %d vertices beyond the gap", ideals.Count, most)
	}
}

func TestPrefixesAreTheIdealsOfAChain(t *testing.T) {
	t.Parallel()
	order := []int{2, 0, 1}
	prefixes := graph.Prefixes(order)
	chain, err := graph.EnumerateIdeals([][]int{{1}, {}, {0}}, 10)
	if err != nil {
		t.Fatal(err)
	}
	for id := range chain.Count {
		for v := range order {
			if prefixes.Has(id, v) != chain.Has(id, v) {
				t.Errorf("prefix %d and vertex %d differ", id, v)
			}
		}
		if diff := cmp.Diff(chain.Below[id], prefixes.Below[id]); diff != "" {
			t.Error(diff)
		}
	}
}

func TestATopologicalOrderLeadsForward(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		next := dag(t, 12)
		order := graph.Topological(next)
		at := make([]int, len(next))
		for i, v := range order {
			at[v] = i
		}
		if len(order) != len(next) {
			t.Fatalf("%v of %d vertices", order, len(next))
		}
		for v, successors := range next {
			for _, w := range successors {
				if at[v] >= at[w] {
					t.Fatalf("%d -> %d leads back in %v", v, w, order)
				}
			}
		}
	})
}

func TestComponentsAreWhatReachesEachOther(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "vertices")
		next := make([][]int, n)
		reach := make([]uint, n)
		for v := range n {
			reach[v] = 1 << v
			for w := range n {
				if rapid.IntRange(0, 4).Draw(t, "edge") == 0 {
					next[v] = append(next[v], w)
					reach[v] |= 1 << w
				}
			}
		}
		for range n {
			for v := range n {
				for w := range n {
					if reach[v]>>w&1 == 1 {
						reach[v] |= reach[w]
					}
				}
			}
		}
		total, after := 0, uint(0)
		for _, component := range graph.Components(next) {
			total += len(component)
			for _, v := range component {
				var same uint
				for w := range n {
					if reach[v]>>w&1 == 1 && reach[w]>>v&1 == 1 {
						same |= 1 << w
					}
				}
				if bits.OnesCount(same) != len(component) || reach[v]&after != 0 {
					t.Fatalf("%v is no component, or comes after one that it reaches", component)
				}
			}
			for _, v := range component {
				after |= 1 << v
			}
		}
		if total != n {
			t.Fatalf("%d of %d vertices are in components", total, n)
		}
	})
}

func TestALongChainIsNoProblem(t *testing.T) {
	t.Parallel()
	const n = 200_000
	next := make([][]int, n)
	for v := range n - 1 {
		next[v] = []int{v + 1}
	}
	if got := len(graph.Components(next)); got != n {
		t.Errorf("%d components, want %d", got, n)
	}
	if got := len(graph.Topological(next)); got != n {
		t.Errorf("%d vertices in order, want %d", got, n)
	}
}
