package forecast

import (
	"math"
	"sort"
)

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
// 16 buckets, twice the horizon, and twice as long as any burst that is remembered, is no excursion: it is the level
// from now on, and what the members and the regression know of the former counts little. With a horizon of one bucket
// and without the 16, bursts of four were levels that changed, and nothing learned that they come again (five times the
// least pinball loss instead of 1.03, TestQuantilesAreThoseOfKnownProcesses).
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
	if f.far.Length < 2*max(int64(f.options.Horizon), f.bursts.longest(), leastToJudge/2) {
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

// burst is a run of buckets far above what was expected.
type burst struct {
	Start  int64 // its first bucket
	Length int64 // how many buckets, at least 1
}

const (
	// burstRoom is how many bursts are remembered.
	burstRoom = 256
	// hazardIntervals is how many intervals between bursts the chance of the next one rests on.
	hazardIntervals = 64
)

// bursts is what is remembered of them, the oldest first.
type bursts struct {
	List []burst
	// Share is the part of buckets that were in one, the latest few thousand counting most.
	Share float64
	// Mean and Variance are of the excess over the base of the buckets in bursts; Seen is how many such buckets.
	Mean, Variance float64
	Seen           float64
}

// add remembers one that ended.
func (b *bursts) add(one burst) {
	if len(b.List) == burstRoom {
		copy(b.List, b.List[1:])
		b.List = b.List[:burstRoom-1]
	}
	b.List = append(b.List, one)
}

// in says whether a bucket was in a burst that is over.
func (b *bursts) in(bucket int64) bool {
	i := sort.Search(len(b.List), func(i int) bool { return b.List[i].Start > bucket })
	return i > 0 && bucket < b.List[i-1].Start+b.List[i-1].Length
}

// phase is the part of the buckets whole periods before one that were in a burst, those of later cycles more; known
// says which buckets count.
func (b *bursts) phase(bucket, latest int64, period float64, known func(float64) bool) float64 {
	sum, weights, weight := b.Share, 1.0, 1.0
	first := math.Max(1, math.Ceil(float64(bucket-latest)/period))
	for k := first; k < first+cyclesBack; k++ {
		if at := float64(bucket) - k*period; known(at) {
			weights += weight
			if b.in(int64(math.Round(at))) {
				sum += weight
			}
		}
		weight *= 0.85
	}
	return sum / weights
}

// lasts is the chance that a burst of some buckets goes on for ahead more: the part of those remembered that did, and
// Lindy's law, elapsed/(elapsed+ahead), as one burst more (the posterior of a scale that nothing is known of).
func (b *bursts) lasts(elapsed, ahead int64) float64 {
	longer, all := float64(elapsed)/float64(elapsed+ahead), 1.0
	for _, one := range b.List {
		if one.Length > elapsed {
			all++
			if one.Length > elapsed+ahead {
				longer++
			}
		}
	}
	return longer / all
}

// comes is the chance that ahead buckets after one outside of bursts is in one: the part of the intervals between
// bursts, of those that were longer than the present one is already, after which it was.
func (b *bursts) comes(bucket, ahead int64) float64 {
	hits, all := b.Share, 1.0
	if len(b.List) == 0 {
		return hits
	}
	elapsed := bucket - b.List[len(b.List)-1].Start
	for i := max(1, len(b.List)-hazardIntervals); i < len(b.List); i++ {
		interval := b.List[i].Start - b.List[i-1].Start
		if interval > elapsed {
			all++
			if interval <= elapsed+ahead && elapsed+ahead < interval+b.List[i].Length {
				hits++
			}
		}
	}
	return hits / all
}

// leastBursts is how many bursts, or buckets of one, outweigh what was thought before.
const leastBursts = 8

// longest is the length of the longest one that is remembered; 0 without any.
func (b *bursts) longest() int64 {
	longest := int64(0)
	for _, one := range b.List {
		longest = max(longest, one.Length)
	}
	return longest
}

// history is which part of each block of another history was in bursts, as far back as they are remembered.
func (b *bursts) history(like *history) history {
	shares := newHistory(like.width, len(like.values))
	shares.next, shares.seen = like.next, like.seen
	for i := range shares.values {
		shares.values[i] = 0
	}
	if len(b.List) == burstRoom {
		shares.seen = min(shares.seen, max(0, like.next-floorDiv(b.List[0].Start, like.width)))
	}
	for _, one := range b.List {
		from, to := max(one.Start, (like.next-shares.seen)*like.width), min(one.Start+one.Length, like.next*like.width)
		for bucket := from; bucket < to; bucket++ {
			shares.values[floorMod(floorDiv(bucket, like.width), int64(len(shares.values)))] += 1 / float32(like.width)
		}
	}
	return shares
}

// take notes a bucket that is known: whether it was in a burst, and how far above the base it was.
func (b *bursts) take(inside bool, excess float64) {
	const memory = 1.0 / 4096
	part := 0.0
	if inside {
		part = 1
		b.Seen++
		rate := math.Max(1/b.Seen, 1.0/64)
		miss := excess - b.Mean
		b.Mean += rate * miss
		b.Variance += rate * ((1-rate)*miss*miss - b.Variance)
	}
	b.Share += memory * (part - b.Share)
}

// pool weighs the logarithms of odds: a logistic regression, learned by steps of AdaGrad (Duchi, Hazan and Singer,
// JMLR 2011, https://jmlr.org/papers/v12/duchi11a.html).
type pool struct {
	Weights, Squares [signCount + 1]float64
}

// start weighs all signs the same, a sign that is not there at another's place included: what they agree on is said.
func (p *pool) start() {
	for _, sign := range []int{stateSign, hourSign, daySign, weekSign} {
		p.Weights[sign] = 1.0 / 4
	}
}

const poolStep = 0.1

func (p *pool) chance(signs *[signCount]float32) float64 {
	logit := p.Weights[signCount]
	for i, sign := range signs {
		logit += p.Weights[i] * float64(sign)
	}
	return 1 / (1 + math.Exp(-logit))
}

func (p *pool) observe(signs *[signCount]float32, inside bool) {
	miss := p.chance(signs)
	if inside {
		miss--
	}
	step := func(i int, sign float64) {
		slope := miss * sign
		p.Squares[i] += slope * slope
		if p.Squares[i] > 0 {
			p.Weights[i] -= poolStep * slope / math.Sqrt(1+p.Squares[i])
		}
	}
	for i, sign := range signs {
		step(i, float64(sign))
	}
	step(signCount, 1)
}

// logOdds of a chance, at most 1 to 1,000 either way.
func logOdds(chance float64) float64 {
	chance = math.Min(math.Max(chance, 0.001), 0.999)
	return math.Log(chance / (1 - chance))
}
