package curve

import "math"

// Thinned returns at most about most of the points of a run, 8 or more, evenly over the logarithm of the step: the
// latest of each stretch, the best, and one at step 0. Few enough are returned as they are. Curves are fitted evenly
// over that logarithm, so a fit to what is left tells nearly the same.
func Thinned(points []Point, most int, direction Direction) []Point {
	if len(points) <= most || most < 8 {
		return points
	}
	best, from := -1, 0
	for i, point := range points {
		if finite(point.Value) && (best < 0 || direction.loss(point.Value) < direction.loss(points[best].Value)) {
			best = i
		}
		if point.Step <= 0 {
			from = i + 1
		}
	}
	last := len(points) - 1
	begin := math.Log(points[min(from, last)].Step)
	width := (math.Log(points[last].Step) - begin) / float64(most-3)
	if !(width > 0) {
		return points[len(points)-most:]
	}
	stretch := func(i int) int { return int((math.Log(points[i].Step) - begin) / width) }
	kept := make([]Point, 0, most)
	for i := range points {
		if i == last || i == best || i == from-1 || i >= from && stretch(i+1) > stretch(i) {
			kept = append(kept, points[i])
		}
	}
	return kept
}
