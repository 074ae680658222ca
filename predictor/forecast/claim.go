package forecast

import "math"

// The members of the ensemble.
const (
	lastValue = iota
	holtWinters
	seasonalNaive
	autoregression
	memberCount
)

// What the regression looks at, all as differences, so that a slope of 0 everywhere says the middle mean.
const (
	one         = iota
	lastLevel   // the last z less the middle mean
	fastLevel   // the faster mean less the middle one
	slowLevel   // the slower mean less the middle one
	slowerLevel // the slowest mean less the middle one
	dayChange   // what the profile of a day gains until then
	dayLevel    // the profile now less the middle mean
	weekChange  // the same of a week
	weekLevel
	hourThen // what repeats within hours, then
	hourNow
	predictorCount
)

// What the chance of a burst is pooled from.
const (
	stateSign  = iota // of the intervals between bursts, or how long the present one is
	insideSign        // the same while one lasts
	hourSign          // at the same time of the hours before
	daySign           // at the same time of the days before
	weekSign          // at the same time of the weeks before
	signCount
)

// claim is what was said about a bucket, and what that rests on. It is in float32: there is one for each bucket of a
// horizon, and it is kept only until its bucket is over.
type claim struct {
	// Target is the bucket.
	Target int64
	// Points are what the members say, NaN where they know nothing; Reference is the middle mean.
	Points    [memberCount]float32
	Reference float32
	Looks     [predictorCount]float32
	Signs     [signCount]float32
	// Base and Sigma are the normal distribution of z, Chance that of a burst or of a dip that lasts, in which z is
	// Excess from Base, with a standard deviation of Spread.
	Base, Sigma, Chance, Excess, Spread float32
}

// claim says what the bucket ahead after the newest will be, by what a knot has learned about such.
func (f *Forecaster) claim(k *knot, ahead int64) claim {
	target := f.newest + ahead
	middle := f.now.Means[midMean]
	nan := float32(math.NaN())
	c := claim{Target: target, Reference: float32(middle), Points: [memberCount]float32{
		lastValue: float32(f.now.Last), seasonalNaive: nan,
	}}
	c.Looks[one] = 1
	c.Looks[lastLevel] = float32(f.now.Last - middle)
	c.Looks[fastLevel] = float32(f.now.Means[midMean-1] - middle)
	c.Looks[slowLevel] = float32(f.now.Means[slowMean] - middle)
	c.Looks[slowerLevel] = float32(f.now.Means[slowMean+1] - middle)
	c.Points[holtWinters] = float32(f.now.holtWinters(ahead) + f.season(target))
	if now, then, known := f.coarse.between(f.newest, target, f.cycles.Day); known {
		c.Points[seasonalNaive] = float32(then)
		c.Looks[dayChange], c.Looks[dayLevel] = float32(then-now), float32(now-middle)
	}
	if now, then, known := f.coarse.between(f.newest, target, f.cycles.Week); known {
		c.Points[seasonalNaive] = float32(then)
		c.Looks[weekChange], c.Looks[weekLevel] = float32(then-now), float32(now-middle)
	}
	if now, then, known := f.fine.between(f.newest, target, f.cycles.Hour); known {
		c.Looks[hourThen], c.Looks[hourNow] = float32(then), float32(now)
	}
	c.Points[autoregression] = float32(middle + k.Regression.at(&c.Looks))
	base := k.average(&c.Points)
	c.Base, c.Sigma, c.Spread = float32(base), float32(k.sigma(base)), 1
	f.claimFar(k, &c, ahead)
	return c
}

// claimFar says how likely the bucket is in a burst or in a dip that lasts, and where it is then.
func (f *Forecaster) claimFar(k *knot, c *claim, ahead int64) {
	lasting := f.bursts.lasts(f.far.Length, ahead)
	if f.far.Sign < 0 {
		c.Chance, c.Excess, c.Spread = float32(lasting), float32(f.far.mean()), 2*c.Sigma
		c.Signs = f.signs(c.Target, f.bursts.Share, false)
		return
	}
	if f.far.Length == 0 && len(f.bursts.List) == 0 {
		return
	}
	state := lasting
	if f.far.Length == 0 {
		state = f.bursts.comes(f.newest, ahead)
	}
	c.Signs = f.signs(c.Target, state, f.far.Length > 0)
	excess := f.bursts.Mean
	if f.far.Length > 0 { // more and more as high as this one, the longer it is
		excess += f.far.Count / (f.far.Count + leastBursts) * (f.far.mean() - excess)
	}
	sigma := float64(c.Sigma)
	c.Excess, c.Spread = float32(excess), float32(math.Sqrt(f.bursts.Variance+sigma*sigma))
	c.Chance = float32(k.Pool.chance(&c.Signs))
	if f.far.Length > 0 && len(f.bursts.List) < leastBursts {
		c.Chance = float32(lasting)
	}
}

// signs are the logarithms of the odds of a burst at a bucket: of the state, and where periods are known at the same
// time of those before; where none is, what the state says.
func (f *Forecaster) signs(target int64, state float64, inside bool) [signCount]float32 {
	odds := float32(logOdds(state))
	signs := [signCount]float32{stateSign: odds, hourSign: odds, daySign: odds, weekSign: odds}
	if inside {
		signs[insideSign] = odds
	}
	known := func(bucket float64) bool { return !math.IsNaN(f.coarse.at(bucket)) }
	for i, period := range [...]float64{f.cycles.Hour, f.cycles.Bursts[0], f.cycles.Bursts[1]} {
		if period > 0 && len(f.bursts.List) > 0 {
			signs[hourSign+i] = float32(logOdds(f.bursts.phase(target, f.newest, period, known)))
		}
	}
	return signs
}
