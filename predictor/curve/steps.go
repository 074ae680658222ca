package curve

import "math"

// Steps is the distribution of the step at which a level is first reached, in the unit of the run's steps, never
// included. Its zero value is of a level that was reached at step 0.
type Steps struct {
	// done is when the level was reached, if it was; then now is 0.
	done, now float64
	mass      mass
}

// Reached says whether the level is reached already, and at which step.
func (s Steps) Reached() (step float64, reached bool) { return s.done, s.now == 0 }

// Never is the chance that the run ends before it reaches the level, 0 to 1.
func (s Steps) Never() float64 {
	if s.now == 0 {
		return 0
	}
	return math.Min(1, math.Max(0, 1-s.mass.reached()))
}

// By is the chance that the level is reached by a step: 0 before any that is known to be too early, and 1 - Never for
// +Inf. NaN for NaN.
func (s Steps) By(step float64) float64 {
	switch {
	case math.IsNaN(step):
		return math.NaN()
	case s.now > 0 && step > 0:
		return s.mass.below(math.Min(farthest, math.Log(step/s.now)))
	case s.now == 0 && step >= s.done:
		return 1
	default:
		return 0
	}
}

// Quantile is the step by which the level is reached with a chance, above 0 and below 1; +Inf for never. NaN where the
// chance is out of its range.
func (s Steps) Quantile(chance float64) float64 {
	switch {
	case !(chance > 0 && chance < 1):
		return math.NaN()
	case s.now == 0:
		return s.done
	default:
		return s.now * math.Exp(s.mass.within(chance))
	}
}

// Interval holds the step with a chance, above 0 and below 1. Where never is likelier than what is left out above, the
// interval has no upper end and leaves all out below, so that it holds no more than it says.
func (s Steps) Interval(chance float64) (low, high float64) {
	out := 1 - chance
	if s.Never() > out/2 {
		return s.Quantile(out), math.Inf(1)
	}
	return s.Quantile(out / 2), s.Quantile(1 - out/2)
}

// deemedNever is the chance of never from which on never is expected: to give up a run that would have reached its
// level is taken to cost five times what it costs to go on with one that does not.
const deemedNever = 5.0 / 6

// Expected is the step to plan with: the middle of when the level is reached if it is, and +Inf where Never is above
// 5/6.
func (s Steps) Expected() float64 {
	switch {
	case s.now == 0:
		return s.done
	case s.Never() > deemedNever:
		return math.Inf(1)
	default:
		return s.now * math.Exp(s.mass.within(s.mass.reached()/2))
	}
}
