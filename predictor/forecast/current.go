package forecast

import "math"

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
