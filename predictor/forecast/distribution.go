package forecast

import (
	"math"
	"time"
)

// Distribution is that of the count in one bucket of the future. Its zero value is of one that nothing is known of.
type Distribution struct {
	// known says that anything was observed.
	known bool
	mixture
	scores [len(tracked)]float64
}

// mixture is a normal distribution of z beside that of z in a burst.
type mixture struct {
	base, sigma, chance, excess, spread float64
}

func (c *claim) mixture() mixture {
	return mixture{float64(c.Base), float64(c.Sigma), float64(c.Chance), float64(c.Excess), float64(c.Spread)}
}

// below is the chance that z is below a value.
func (m mixture) below(z float64) float64 {
	below := normal((z - m.base) / m.sigma)
	if m.chance > 0 {
		below += m.chance * (normal((z-m.base-m.excess)/m.spread) - below)
	}
	return below
}

// score is the normal score of a z, as the claim has it.
func (c *claim) score(z float64) float64 {
	return clamp(probit(c.mixture().below(z)), mostScore)
}

// Known says whether anything is; if not, every quantile is NaN.
func (d Distribution) Known() bool { return d.known }

// Quantile is the count that what comes is below with a chance of level, above 0 and below 1: 0 or more, and not a
// whole number. NaN where nothing is known or the level is out of its range. Levels within .01 and .99 are held to what
// came; beyond, the tail is that of the distributions.
func (d Distribution) Quantile(level float64) float64 {
	if !d.known || !(level > 0 && level < 1) {
		return math.NaN()
	}
	asked := d.asked(probit(level))
	if d.chance < 1e-6 {
		return counted(d.base + asked*d.sigma)
	}
	share := normal(asked)
	low := math.Min(d.base-mostScore*d.sigma, d.base+d.excess-mostScore*d.spread)
	high := math.Max(d.base+mostScore*d.sigma, d.base+d.excess+mostScore*d.spread)
	for range 40 { // to 10^-12 of the interval
		if middle := (low + high) / 2; d.below(middle) < share {
			low = middle
		} else {
			high = middle
		}
	}
	return counted(high)
}

// asked is the normal score to ask for so that what comes is below it as often as a normal score promises: on the line
// between the tracked ones, beyond them as far from the last as promised.
func (d Distribution) asked(promised float64) float64 {
	last := len(tracked) - 1
	switch {
	case promised <= trackedScores[0]:
		return math.Max(d.scores[0]+promised-trackedScores[0], -mostScore)
	case promised >= trackedScores[last]:
		return math.Min(d.scores[last]+promised-trackedScores[last], mostScore)
	}
	i := 0
	for promised >= trackedScores[i+1] {
		i++
	}
	part := (promised - trackedScores[i]) / (trackedScores[i+1] - trackedScores[i])
	return d.scores[i] + part*(d.scores[i+1]-d.scores[i])
}

// Exceeds is the chance that the count is above some number of arrivals, which is rounded down: of 0, that anything
// comes at all. It is the inverse of [Distribution.Quantile], asked midway between two whole counts. NaN where nothing
// is known or count is NaN; 1 for a count below 0, and 0 for +Inf.
func (d Distribution) Exceeds(count float64) float64 {
	switch {
	case !d.known || math.IsNaN(count):
		return math.NaN()
	case count < 0:
		return 1
	case count > largestCount:
		return 0
	}
	return 1 - normal(d.promised(probit(d.below(stabilised(math.Floor(count)+0.5)))))
}

// promised is the inverse of asked: of scores that are the same, the highest promise.
func (d Distribution) promised(asked float64) float64 {
	last := len(tracked) - 1
	switch {
	case asked >= d.scores[last]:
		return math.Min(trackedScores[last]+asked-d.scores[last], mostScore)
	case asked < d.scores[0]:
		return math.Max(trackedScores[0]+asked-d.scores[0], -mostScore)
	}
	i := 0
	for asked >= d.scores[i+1] {
		i++
	}
	part := (asked - d.scores[i]) / (d.scores[i+1] - d.scores[i])
	return trackedScores[i] + part*(trackedScores[i+1]-trackedScores[i])
}

// Ahead is the distribution of the count in the bucket that is ahead, 1 or more, after the newest that was observed.
// Beyond the horizon nothing was held against what came: errors are taken to grow with the root of the time, up to
// twice those at the horizon. Nothing is known of buckets that are over, and before any was observed.
func (f *Forecaster) Ahead(ahead int64) Distribution {
	if f.seen == 0 || ahead < 1 {
		return Distribution{}
	}
	i := 0
	for i < len(f.knots)-1 && f.knots[i+1].ahead <= ahead {
		i++
	}
	near := f.knots[i].distribution(f, ahead)
	if i == len(f.knots)-1 {
		wider := math.Min(2, math.Sqrt(float64(ahead)/float64(f.knots[i].ahead)))
		near.sigma, near.spread = near.sigma*wider, near.spread*wider
		return near
	}
	if f.knots[i].ahead == ahead {
		return near
	}
	part := math.Log(float64(ahead)/float64(f.knots[i].ahead)) /
		math.Log(float64(f.knots[i+1].ahead)/float64(f.knots[i].ahead))
	return near.towards(f.knots[i+1].distribution(f, ahead), part)
}

// At is the distribution of the count in the bucket that holds a time, as Ahead says it.
func (f *Forecaster) At(at time.Time) Distribution {
	if !reckoned(at) {
		return Distribution{}
	}
	return f.Ahead(floorDiv(at.UnixNano(), int64(f.options.Bucket)) - f.newest)
}

func (k *knot) distribution(f *Forecaster, ahead int64) Distribution {
	c := f.claim(k, ahead)
	return Distribution{known: true, mixture: c.mixture(), scores: k.Scores}
}

// towards is what lies between two distributions, part of the way from d to another.
func (d Distribution) towards(to Distribution, part float64) Distribution {
	mix := func(a, b float64) float64 { return a + part*(b-a) }
	between := Distribution{known: true, mixture: mixture{
		base: mix(d.base, to.base), sigma: mix(d.sigma, to.sigma), chance: mix(d.chance, to.chance),
		excess: mix(d.excess, to.excess), spread: mix(d.spread, to.spread),
	}}
	for i := range between.scores {
		between.scores[i] = mix(d.scores[i], to.scores[i])
	}
	return between
}

// Fan returns the quantiles at levels for each bucket of the horizon, the next bucket first. Without anything observed
// it is nil.
func (f *Forecaster) Fan(levels ...float64) [][]float64 {
	if f.seen == 0 {
		return nil
	}
	fan := make([][]float64, f.options.Horizon)
	for i := range fan {
		distribution := f.Ahead(int64(i) + 1)
		fan[i] = make([]float64, len(levels))
		for j, level := range levels {
			fan[i][j] = distribution.Quantile(level)
		}
	}
	return fan
}
