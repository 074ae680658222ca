package graph

import (
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrCycle is wrapped by errors about cycles that are not declared as recurrent.
var ErrCycle = errors.New("the graph has a cycle")

// Order returns the indices of all operations so that every edge but state edges leads forward; among those that are
// ready, the smallest index comes first. A cycle is an error that wraps ErrCycle and names its operations.
func (g Graph) Order() ([]int, error) {
	next := make([][]int, len(g.Ops))
	for _, e := range g.Edges {
		if !e.State {
			next[e.From] = append(next[e.From], e.To)
		}
	}
	order := Topological(next)
	if len(order) == len(g.Ops) {
		return order, nil
	}
	return nil, g.cycleError(next, order)
}

// Topological returns the vertices 0 to len(next)-1 of a directed graph so that every vertex precedes its successors;
// among those that are ready, the smallest comes first. Vertices on or behind a cycle are left out.
func Topological(next [][]int) []int {
	waits := make([]int, len(next))
	for _, successors := range next {
		for _, v := range successors {
			waits[v]++
		}
	}
	ready := &smallest{}
	for v, n := range waits {
		if n == 0 {
			ready.vertices = append(ready.vertices, v) // ascending, so already a heap
		}
	}
	order := make([]int, 0, len(next))
	for ready.Len() > 0 {
		v, _ := heap.Pop(ready).(int)
		order = append(order, v)
		for _, w := range next[v] {
			if waits[w]--; waits[w] == 0 {
				heap.Push(ready, w)
			}
		}
	}
	return order
}

// smallest is a heap of vertices.
type smallest struct{ vertices }

// vertices has the methods of sort.Interface.
type vertices []int

func (s vertices) Len() int           { return len(s) }
func (s vertices) Less(i, j int) bool { return s[i] < s[j] }
func (s vertices) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }

// Push implements heap.Interface.
func (s *smallest) Push(v any) {
	if vertex, ok := v.(int); ok {
		s.vertices = append(s.vertices, vertex)
	}
}

// Pop implements heap.Interface.
func (s *smallest) Pop() any {
	last := len(s.vertices) - 1
	v := s.vertices[last]
	s.vertices = s.vertices[:last]
	return v
}

// cycleError names one cycle among the vertices that order lacks.
func (g Graph) cycleError(next [][]int, order []int) error {
	ordered := make([]bool, len(next))
	for _, v := range order {
		ordered[v] = true
	}
	for _, component := range Components(next) {
		loops := len(component) > 1 || slices.Contains(next[component[0]], component[0])
		if loops && !ordered[component[0]] {
			names := make([]string, len(component))
			for i, v := range component {
				names[i] = g.Ops[v].ID
			}
			return fmt.Errorf("%w through %s; declare the edge that leads to the next time step as state", ErrCycle,
				strings.Join(names, ", "))
		}
	}
	return ErrCycle
}

// Components returns the strongly connected components of a directed graph in topological order, each with its vertices
// ascending.
//
// Tarjan's algorithm (R. Tarjan, Depth-first search and linear graph algorithms, SIAM J. Comput. 1(2), 1972,
// https://doi.org/10.1137/0201010), with a stack of its own, as graphs may be chains of many thousand vertices.
func Components(next [][]int) [][]int {
	t := tarjan{next: next, index: make([]int, len(next)), low: make([]int, len(next)), on: make([]bool, len(next))}
	for v := range next {
		if t.index[v] == 0 {
			t.visit(v)
		}
	}
	slices.Reverse(t.found) // they come sinks first
	return t.found
}

type tarjan struct {
	next       [][]int
	index, low []int // index counts from 1; 0 is unseen
	on         []bool
	stack      []int
	seen       int
	found      [][]int
}

func (t *tarjan) visit(root int) {
	type frame struct{ v, at int }
	frames := []frame{{v: root}}
	for len(frames) > 0 {
		f := &frames[len(frames)-1]
		if f.at == 0 && t.index[f.v] == 0 {
			t.seen++
			t.index[f.v], t.low[f.v] = t.seen, t.seen
			t.stack = append(t.stack, f.v)
			t.on[f.v] = true
		}
		if f.at < len(t.next[f.v]) {
			w := t.next[f.v][f.at]
			f.at++
			if t.index[w] == 0 {
				frames = append(frames, frame{v: w})
			} else if t.on[w] {
				t.low[f.v] = min(t.low[f.v], t.index[w])
			}
			continue
		}
		done := f.v
		frames = frames[:len(frames)-1]
		if len(frames) > 0 {
			parent := frames[len(frames)-1].v
			t.low[parent] = min(t.low[parent], t.low[done])
		}
		if t.low[done] == t.index[done] {
			t.close(done)
		}
	}
}

// close takes the component of root from the stack.
func (t *tarjan) close(root int) {
	at := len(t.stack) - 1
	for t.stack[at] != root {
		at--
	}
	component := slices.Clone(t.stack[at:])
	t.stack = t.stack[:at]
	for _, v := range component {
		t.on[v] = false
	}
	slices.Sort(component)
	t.found = append(t.found, component)
}
