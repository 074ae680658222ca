package timeline

import "math/bits"

// grid divides the nanoseconds from 0 to span into equal parts: part i is from floor(i span/n) up to floor((i+1)
// span/n).
type grid struct {
	span  int64
	n     int
	edges []int64 // where each part begins, and the span
}

// newGrid divides span into at most n parts, at least one, none of them shorter than a nanosecond.
func newGrid(span int64, n int) grid {
	span = max(0, span)
	if span < int64(n) {
		n = int(span)
	}
	n = max(1, n)
	g := grid{span: span, n: n, edges: make([]int64, n+1)}
	whole, rest := span/int64(n), span%int64(n)
	for i := range g.edges {
		g.edges[i] = whole*int64(i) + rest*int64(i)/int64(n)
	}
	return g
}

func (g grid) width(i int) int64 { return g.edges[i+1] - g.edges[i] }

// part is that in which at lies; the end of the span belongs to the last.
func (g grid) part(at int64) int {
	if at >= g.span {
		return g.n - 1
	}
	high, low := bits.Mul64(uint64(max(0, at)), uint64(g.n))
	quotient, _ := bits.Div64(high, low, uint64(g.span)) // at < span, so it is less than n
	i := int(quotient)
	if i+1 < g.n && g.edges[i+1] <= at { // the edge was rounded down to at
		i++
	}
	return i
}

// series adds up amounts that hold over intervals of a grid. Its integral over each part is exact: whole parts are kept
// as differences (what begins to hold, less what ceases), so that an interval costs the same however many parts it
// covers.
type series struct {
	change  []float64 // of what holds over the whole of a part and all that follow
	partial []float64 // amount x nanoseconds of what holds over some of a part
}

func (g grid) series() series {
	return series{change: make([]float64, g.n+1), partial: make([]float64, g.n)}
}

// add says that amount holds from a up to b.
func (s series) add(g grid, a, b int64, amount float64) {
	if a >= b || amount == 0 {
		return
	}
	first, last := g.part(a), g.part(b)
	if first == last {
		s.partial[first] += amount * float64(b-a)
		return
	}
	s.partial[first] += amount * float64(g.edges[first+1]-a)
	s.partial[last] += amount * float64(b-g.edges[last])
	s.change[first+1] += amount
	s.change[last] -= amount
}

// means returns the mean over each part. An amount that cannot be told from 0 by its rounding error is 0.
func (s series) means(g grid) []float64 {
	const negligible = 1e-6
	means, whole := make([]float64, g.n), 0.0
	for i := range means {
		whole += s.change[i]
		mean := whole
		if width := g.width(i); width > 0 {
			mean += s.partial[i] / float64(width)
		}
		if mean > negligible {
			means[i] = mean
		}
	}
	return means
}
