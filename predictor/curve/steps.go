package curve

import "math"

// Steps is the distribution of the step at which a level is first reached, in the unit of the run's steps, never
// included. A level is seen to be reached when it is measured: steps that are to come are those of measurements, as far
// apart as the latest ones. Its zero value is of a level that was reached at step 0.
type Steps struct {
	// done is when the level was reached, if it was; then now is 0.
	done, now float64
	// every is how many steps the latest measurements are apart; 0 where that is not known.
	every float64
	mass  mass
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
		return s.measured(s.mass.within(chance))
	}
}

// uneven is by which part of their distance measurements come a little later than others.
const uneven = 0.01

// measured is the first measurement at u or later, if they go on as far apart as they were.
func (s Steps) measured(u float64) float64 {
	step := s.now * math.Exp(u)
	if !(s.every > 0) || math.IsInf(step, 1) {
		return step
	}
	return s.now + s.every*math.Max(1, math.Ceil((step-s.now)/s.every-uneven))
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

// deemedNever is the chance of never above which never is expected: where it is likelier than not.
const deemedNever = 0.5

// Expected is the step to plan with: the middle of when the level is reached if it is, and +Inf where Never is above
// 1/2. Who would rather wait in vain than give up too soon goes by Never.
func (s Steps) Expected() float64 {
	switch {
	case s.now == 0:
		return s.done
	case s.Never() > deemedNever:
		return math.Inf(1)
	default:
		return s.measured(s.mass.within(s.mass.reached() / 2))
	}
}
