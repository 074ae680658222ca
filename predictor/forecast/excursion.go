package forecast

import "math"

// excursion is a run of buckets that are far from what was expected and not over yet; its zero value is none.
type excursion struct {
	// Start is its first bucket, Length how many there are.
	Start, Length int64
	// Sum is of what z was above or below, Count of how many buckets: some may be missing.
	Sum, Count float64
	// Sign is 1 for a burst and -1 for a dip.
	Sign float64
}

// mean is how far from the base it is, 0 for none.
func (e excursion) mean() float64 {
	if e.Count == 0 {
		return 0
	}
	return e.Sum / e.Count
}

const (
	// farSigmas is how far from what was expected a bucket is no noise any more: one normal error in 16,000, of the errors
	// that are usual or of a Poisson count, whichever are larger.
	farSigmas = 4
	// leastToJudge is how many buckets must be known first.
	leastToJudge = 16
)

// judge says whether a bucket is far from what was expected one bucket before, and in which direction. A run that lasts
// twice the horizon, and twice as long as any burst that is remembered, is no excursion: it is the level from now on,
// and what the members and the regression know of the former counts little.
func (f *Forecaster) judge(bucket, gap int64, z float64) (inside bool, sign float64) {
	if f.seen < leastToJudge {
		return false, 0
	}
	expected, sigma := f.now.Means[midMean], 2*f.knots[0].sigma(f.now.Means[midMean])
	if last := f.knots[0].claimOf(bucket); last != nil {
		expected, sigma = float64(last.Base), float64(last.Sigma)
	}
	if f.far.Length > 0 && gap > int64(f.options.Horizon) {
		f.endExcursion()
	}
	miss := z - expected
	inside, sign = math.Abs(miss) > farSigmas*math.Max(sigma, poissonSigma(expected)), math.Copysign(1, miss)
	if !inside || sign != f.far.Sign {
		f.endExcursion()
	}
	f.bursts.take(inside && sign > 0, miss)
	if !inside {
		return false, 0
	}
	if f.far.Length == 0 {
		f.far = excursion{Start: bucket, Sign: sign}
	}
	f.far.Length = bucket - f.far.Start + 1
	f.far.Sum, f.far.Count = f.far.Sum+miss, f.far.Count+1
	if f.far.Length < max(2*int64(f.options.Horizon), f.bursts.longest()*2) {
		return true, sign
	}
	f.now.move(f.far.mean(), z)
	f.coarse.fill(f.far.Start, f.newest, f.now.Means[slowMean])
	f.far = excursion{}
	for i := range f.knots {
		f.knots[i].jump()
	}
	return false, 0
}

// poissonSigma is the standard deviation of z of a Poisson count whose mean is that of z: 1 of many, and of few that of
// 0 or 1 arrivals, (z(1) - z(0))^2 = 1.25 times their mean.
func poissonSigma(z float64) float64 { return math.Sqrt(math.Min(1, 1.25*counted(z))) }

// endExcursion remembers a burst that is over.
func (f *Forecaster) endExcursion() {
	if f.far.Length > 0 && f.far.Sign > 0 {
		f.bursts.add(burst{Start: f.far.Start, Length: f.far.Length})
	}
	f.far = excursion{}
}
