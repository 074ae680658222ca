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

// current is where z is: exponential means, and the level and trend of Holt and Winters.
type current struct {
	// Last is the latest z outside of bursts.
	Last float64
	// Means weigh the latest z with meanRates.
	Means [len(meanRates)]float64
	// Square is the mean square of what z is from the slower mean.
	Square float64
	// Level is z without its season, Trend what it gains in a bucket.
	Level, Trend float64
}

// meanRates are a factor of 4 apart, so that the regression can make any mean between 2 and 128 buckets of them.
var meanRates = [...]float64{1.0 / 2, 1.0 / 8, 1.0 / 32, 1.0 / 128}

// The indices of the means in meanRates that others refer to.
const (
	midMean  = 1
	slowMean = 2
)

// The rates of Holt and Winters: a tenth is the usual level, a trend of a tenth of it is barely more than none, and the
// trend fades (Gardner and McKenzie, Management Science 1985, https://doi.org/10.1287/mnsc.31.10.1237) within 50
// buckets. They need not fit well: the regression learns the rates that do.
const (
	levelRate, trendRate, trendFade = 0.1, 0.01, 0.98
)

func (c *current) start(z float64) {
	for i := range c.Means {
		c.Means[i] = z
	}
	c.Last, c.Level = z, z
}

// observe takes z, gap buckets after the one before and the seen+1st, and its season. Means are those of all that was
// seen until that is more than they reach back; across a gap, what is before it fades as if the buckets were there.
func (c *current) observe(z, season float64, gap, seen int64) {
	young := 1 / float64(seen+1)
	for i, rate := range meanRates {
		c.Means[i] += (1 - math.Pow(1-math.Max(rate, young), float64(gap))) * (z - c.Means[i])
	}
	c.Last = z
	c.Level += c.Trend * faded(gap)
	c.Trend *= math.Pow(trendFade, float64(gap))
	miss := z - season - c.Level
	c.Level += (1 - math.Pow(1-math.Max(levelRate, young), float64(gap))) * miss
	c.Trend += levelRate * trendRate * miss
}

// deviation is what z is from the slower mean, within eight times what is usual, so that one bucket does not hide what
// repeats.
func (c *current) deviation(z float64, seen int64) float64 {
	far := z - c.Means[slowMean]
	usual := math.Max(c.Square, leastVariance)
	c.Square += math.Max(1/float64(seen+1), 1.0/recent) * (math.Min(far*far, 64*usual) - c.Square)
	return clamp(far, 8*math.Sqrt(usual))
}

// holtWinters is z some buckets on, without its season.
func (c *current) holtWinters(ahead int64) float64 { return c.Level + c.Trend*faded(ahead) }

// faded is what a trend of 1 gains in some buckets: fade + fade^2 + ...
func faded(buckets int64) float64 {
	return trendFade * (1 - math.Pow(trendFade, float64(buckets))) / (1 - trendFade)
}

// move shifts all of it to a new level.
func (c *current) move(shift, last float64) {
	for i := range c.Means {
		c.Means[i] += shift
	}
	c.Last, c.Level, c.Trend = last, c.Level+shift, 0
}
