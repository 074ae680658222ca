package curve

import "math"

// Steps is the distribution of the step at which a level is first reached, in the unit of the run's steps, never
// included. Its zero value is of a level that was reached at step 0.
type Steps struct {
	// done is when the level was reached, if it was; then now is 0.
	done, now float64
	mass      mass
}

// Never is the chance that the run ends before it reaches the level, 0 to 1.
func (s Steps) Never() float64 {
	if s.now == 0 {
		return 0
	}
	return math.Min(1, math.Max(0, 1-s.mass.reached()))
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
