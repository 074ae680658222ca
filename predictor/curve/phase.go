package curve

import "math"

// Phase is where a run is.
type Phase int8

// The phases.
const (
	// Beginning is a run with too few points for a curve, or whose first value is its best.
	Beginning Phase = iota
	// Learning is a run that gets better.
	Learning
	// Plateaued is a run that hardly gets better: the last half of its steps brought a hundredth of all, or less.
	Plateaued
	// Diverged is a run whose latest value is not finite, or that has lost all that it had learned and goes on losing.
	Diverged
)

// String is the name in lower case.
func (p Phase) String() string {
	switch p {
	case Beginning:
		return "beginning"
	case Learning:
		return "learning"
	case Plateaued:
		return "plateaued"
	case Diverged:
		return "diverged"
	default:
		return "unknown"
	}
}

const (
	// flat is the part of all progress that is none.
	flat = 0.01
	// plateau is how many points have to be seen, as many as settle a mean to a third of the noise.
	plateau = 8
	// losing is how many values in a row have to be worse than the one before.
	losing = 3
)

func phaseOf(points []Point, direction Direction, t trace) Phase {
	if diverged(points, direction, t) {
		return Diverged
	}
	n := len(t.steps)
	if n < fewest || t.best[0] == t.best[n-1] {
		return Beginning
	}
	half := n - 1
	for half > 0 && t.steps[half] > t.last()/2 {
		half--
	}
	if n >= plateau && t.best[half]-t.lowest() <= flat*(t.best[0]-t.lowest()) {
		return Plateaued
	}
	return Learning
}

func diverged(points []Point, direction Direction, t trace) bool {
	n := len(points)
	if n == 0 {
		return false
	}
	if !finite(points[n-1].Value) {
		return true
	}
	if n <= losing || len(t.steps) == 0 {
		return false
	}
	for i := n - losing; i < n; i++ {
		if !(direction.loss(points[i].Value) > direction.loss(points[i-1].Value)) {
			return false
		}
	}
	latest := direction.loss(points[n-1].Value)
	return latest > t.best[0]+6*math.Min(t.noise, t.best[0]-t.lowest()) && latest > t.lowest()
}
