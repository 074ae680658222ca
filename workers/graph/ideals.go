package graph

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// ErrTooManyIdeals is wrapped when a graph has more ideals than the bound that was given.
var ErrTooManyIdeals = errors.New("too many ideals")

// Ideals are all sets of vertices of a directed acyclic graph that contain every predecessor of their members. A cut
// between two stages of a pipeline is an ideal, and a stage is the difference of two of them.
type Ideals struct {
	// Count is how many there are. Ideal 0 is empty, ideal Count-1 has all vertices, and a subset has a smaller number
	// than its supersets.
	Count int
	// Below lists, for each ideal, those with one vertex less.
	Below [][]Step

	words int
	bits  []uint64
}

// Step leads from an ideal to the one without Vertex.
type Step struct{ Vertex, Ideal int32 }

// Has reports whether the ideal contains the vertex.
func (s *Ideals) Has(ideal, vertex int) bool {
	return s.bits[ideal*s.words+vertex/64]>>(vertex%64)&1 == 1
}

// Contains reports whether an ideal has all vertices of another one.
func (s *Ideals) Contains(ideal, other int) bool {
	for word := range s.words {
		if s.bits[other*s.words+word]&^s.bits[ideal*s.words+word] != 0 {
			return false
		}
	}
	return true
}

// Difference returns the vertices of an ideal that another one lacks, ascending.
func (s *Ideals) Difference(ideal, smaller int) []int {
	var vertices []int
	for word := range s.words {
		for rest := s.bits[ideal*s.words+word] &^ s.bits[smaller*s.words+word]; rest != 0; rest &= rest - 1 {
			vertices = append(vertices, 64*word+bits.TrailingZeros64(rest))
		}
	}
	return vertices
}

// Prefixes returns the ideals of a linear order of the vertices 0 to len(order)-1.
func Prefixes(order []int) *Ideals {
	n := len(order)
	s := &Ideals{Count: n + 1, Below: make([][]Step, n+1), words: (n + 63) / 64}
	s.bits = make([]uint64, s.words*(n+1))
	for i, v := range order {
		s.Below[i+1] = []Step{{Vertex: int32(v), Ideal: int32(i)}} //nolint:gosec // a graph has far fewer than 2^31 vertices
		set := s.bits[(i+1)*s.words:][:s.words]
		copy(set, s.bits[i*s.words:])
		set[v/64] |= 1 << (v % 64)
	}
	return s
}

// EnumerateIdeals returns all ideals of the graph whose edges are next, at most limit of them; more are an error that
// wraps ErrTooManyIdeals. A chain of n vertices has n+1 ideals, n vertices without edges have 2^n. The graph must have
// no cycle.
func EnumerateIdeals(next [][]int, limit int) (*Ideals, error) {
	n := len(next)
	before := make([][]int, n)
	for v, successors := range next {
		for _, w := range successors {
			before[w] = append(before[w], v)
		}
	}
	s := &Ideals{words: (n + 63) / 64}
	known := map[string]int32{}
	s.add(make([]uint64, s.words), known)
	var sources []int
	for v := range n {
		if len(before[v]) == 0 {
			sources = append(sources, v)
		}
	}
	ready := [][]int{sources} // by ideal, the vertices that may follow; dropped once they have
	scratch := make([]uint64, s.words)
	// Breadth first: all sets of k vertices come before those of k+1.
	for id := 0; id != s.Count; id++ { // it grows
		for _, v := range ready[id] {
			copy(scratch, s.bits[id*s.words:(id+1)*s.words])
			scratch[v/64] |= 1 << (v % 64)
			bigger, old := known[key(scratch)]
			if !old {
				if s.Count >= limit {
					return nil, fmt.Errorf("%w: more than %d of a graph of %d vertices", ErrTooManyIdeals, limit, n)
				}
				bigger = s.add(scratch, known)
				ready = append(ready, s.follow(int(bigger), v, ready[id], next[v], before))
			}
			//nolint:gosec // bounded by limit
			s.Below[bigger] = append(s.Below[bigger], Step{Vertex: int32(v), Ideal: int32(id)})
		}
		ready[id] = nil
	}
	return s, nil
}

// follow returns the vertices that may follow an ideal, from those of the ideal without v.
func (s *Ideals) follow(ideal, v int, ready, successors []int, before [][]int) []int {
	after := make([]int, 0, len(ready)+len(successors))
	for _, w := range ready {
		if w != v {
			after = append(after, w)
		}
	}
	for i, w := range successors {
		if !slices.Contains(successors[:i], w) && s.holds(ideal, before[w]) {
			after = append(after, w)
		}
	}
	slices.Sort(after)
	return after
}

func (s *Ideals) add(set []uint64, known map[string]int32) int32 {
	id := int32(s.Count) //nolint:gosec // bounded by limit
	s.Count++
	s.bits = append(s.bits, set...)
	s.Below = append(s.Below, nil)
	known[key(set)] = id
	return id
}

func (s *Ideals) holds(ideal int, vertices []int) bool {
	for _, v := range vertices {
		if !s.Has(ideal, v) {
			return false
		}
	}
	return true
}

func key(set []uint64) string {
	text := make([]byte, 0, 8*len(set))
	for _, word := range set {
		text = binary.LittleEndian.AppendUint64(text, word)
	}
	return string(text)
}

// near is an ideal close to a linear order: its first so many places, and those of a mask beyond the one after them.
// Bit k is place first + 1 + k.
type near struct {
	first int
	ahead uint64
}

// mostAhead is how many places from its first gap on an ideal of [IdealsAlong] may have.
const mostAhead = 64

func (i near) has(place int) bool {
	return place < i.first || (place > i.first && i.ahead>>(place-i.first-1)&1 == 1)
}

// with adds a place that is missing.
func (i near) with(place int) near {
	if place > i.first {
		i.ahead |= 1 << (place - i.first - 1)
		return i
	}
	run := bits.TrailingZeros64(^i.ahead)
	return near{first: i.first + 1 + run, ahead: i.ahead >> run >> 1}
}

// follow lists the places that may be added. before are the places that each needs.
func (i near) follow(before [][]int, floors []int) []int {
	var places []int
	for at := i.first; at < min(len(before), i.first+mostAhead) && floors[at] <= i.first; at++ {
		missing := func(place int) bool { return !i.has(place) }
		if missing(at) && !slices.ContainsFunc(before[at], missing) {
			places = append(places, at)
		}
	}
	return places
}

// IdealsAlong returns the ideals that keep close to a linear order of all vertices, the graph's edges leading forward
// in it: floors[i], of 0 to i and never descending, is the first place of the order whose vertex may be missing where
// that of place i is there. With floors[i] = i they are the prefixes of the order; with 0 everywhere all ideals that
// reach less than 64 places beyond their first gap. They are closed under union and intersection, so that one leads to
// each of its supersets vertex by vertex. More than limit are an error that wraps ErrTooManyIdeals.
func IdealsAlong(next [][]int, order, floors []int, limit int) (*Ideals, error) {
	n := len(order)
	place := make([]int, n)
	for i, v := range order {
		place[v] = i
	}
	before := make([][]int, n)
	for v, successors := range next {
		for _, w := range successors {
			before[place[w]] = append(before[place[w]], place[v])
		}
	}
	s := &Ideals{Below: make([][]Step, 1), words: (n + 63) / 64}
	all, known := []near{{}}, map[near]int{}
	for id := 0; id != len(all); id++ { // it grows, by sets of one vertex more
		for _, at := range all[id].follow(before, floors) {
			bigger := all[id].with(at)
			to, old := known[bigger]
			if !old {
				if to = len(all); to >= limit {
					return nil, fmt.Errorf("%w: more than %d along an order of %d vertices", ErrTooManyIdeals, limit, n)
				}
				known[bigger] = to
				all, s.Below = append(all, bigger), append(s.Below, nil)
			}
			//nolint:gosec // bounded by limit
			s.Below[to] = append(s.Below[to], Step{Vertex: int32(order[at]), Ideal: int32(id)})
		}
	}
	s.Count = len(all)
	s.bits = make([]uint64, s.words*s.Count)
	for id := 1; id < s.Count; id++ { // as one of those below, with one more
		step := s.Below[id][0]
		set := s.bits[id*s.words:][:s.words]
		copy(set, s.bits[int(step.Ideal)*s.words:][:s.words])
		set[step.Vertex/64] |= 1 << (step.Vertex % 64)
	}
	return s, nil
}
