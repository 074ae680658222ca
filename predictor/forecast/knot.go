package forecast

import "math"

// knot is what is learned about buckets a certain number ahead.
type knot struct {
	ahead int64
	// waiting are the claims about buckets that are not over, by bucket modulo their number.
	waiting []claim
	learned
}

// learned is the part of a knot that has one size.
type learned struct {
	Regression ridge
	Pool       pool
	// Losses are the members' recent sums of pinball losses at the median, in standard deviations.
	Losses [memberCount]float64
	// Slow and Fast are the mean squares of the errors over the latest day of minutes and the latest hour, Count of how
	// many claims.
	Slow, Fast, Count float64
	// Scores are the normal scores that are asked for each of the tracked levels.
	Scores [len(tracked)]float64
}

// tracked are the levels whose quantiles are held to what they promise; others lie between them.
var tracked = [...]float64{0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99}

// trackedScores are their quantiles of the standard normal distribution, trackedSteps one over its density there.
var trackedScores, trackedSteps = func() (scores, steps [len(tracked)]float64) {
	for i, level := range tracked {
		scores[i] = probit(level)
		steps[i] = math.Sqrt(2*math.Pi) * math.Exp(scores[i]*scores[i]/2)
	}
	return scores, steps
}()

const (
	// recent is how many buckets back losses and the slower mean square reach: a day of minutes, so that each hour of
	// it counts, and a tail of one in a hundred has been seen a dozen times.
	recent = 1440
	// quick is how many the faster mean square reaches: an hour of minutes.
	quick = 60
	// priorCount is how many errors the spread that is thought of before any was seen counts as.
	priorCount = 4
	// leastVariance is that of a stage at which nothing came in a thousand buckets: one arrival moves z by about 1.
	leastVariance = 1.0 / 1024
	// trackRate is how fast a tracked level follows: within recent buckets. At 0.005, within 200, its own noise cost up to
	// five in a hundred of the pinball loss: errors that overlap are wrong together.
	trackRate = 1.0 / recent
)

func newKnot(ahead int64) knot {
	k := knot{ahead: ahead, waiting: make([]claim, ahead)}
	k.Pool.start()
	k.Scores = trackedScores
	k.drop()
	return k
}

// drop forgets the claims that wait.
func (k *knot) drop() {
	for i := range k.waiting {
		k.waiting[i].Target = math.MinInt64
	}
}

// claimOf returns what was claimed about a bucket; nil when nothing was.
func (k *knot) claimOf(bucket int64) *claim {
	if c := &k.waiting[floorMod(bucket, k.ahead)]; c.Target == bucket {
		return c
	}
	return nil
}

func (k *knot) wait(c claim) { k.waiting[floorMod(c.Target, k.ahead)] = c }

// jump lets what was learned of another level count a tenth.
func (k *knot) jump() {
	k.drop()
	k.Regression.fade(0.1)
	k.Count = math.Min(k.Count, 4*priorCount)
	for i := range k.Losses {
		k.Losses[i] *= 0.1
	}
}

// renew drops what was learned about predictors whose meaning changed, and about the naive member where that did: its
// loss is that of the regression, so that it has to show its worth.
func (k *knot) renew(predictors [2]int, naive bool) {
	for _, i := range predictors {
		k.Regression.forget(i)
	}
	if naive {
		k.Losses[seasonalNaive] = k.Losses[autoregression]
	}
}

// sigma is the standard deviation of the errors where z is about some value: the geometric mean of the slow and the
// fast mean square, because errors are large together. Before any was seen a count may be half or twice as large as
// expected, beside the noise of two Poisson counts.
func (k *knot) sigma(z float64) float64 {
	before := priorCount * (2 + z*z/16)
	slow := (before + k.Count*k.Slow) / (priorCount + k.Count)
	fast := (before + k.Count*k.Fast) / (priorCount + k.Count)
	return math.Sqrt(math.Max(math.Sqrt(slow*fast), leastVariance))
}

var hedgeRate = math.Sqrt(8 * math.Log(memberCount) / recent)

// average weighs the members by Hedge (Freund and Schapire, JCSS 1997, https://doi.org/10.1006/jcss.1997.1504): each
// with exp(-rate loss), the rate sqrt(8 ln(members) / recent) of its bound on the regret over recent buckets.
func (k *knot) average(points *[memberCount]float32) float64 {
	best := math.Inf(1)
	for i, point := range points {
		if !math.IsNaN(float64(point)) {
			best = math.Min(best, k.Losses[i])
		}
	}
	sum, weights := 0.0, 0.0
	for i, point := range points {
		if !math.IsNaN(float64(point)) {
			weight := math.Exp(-hedgeRate * (k.Losses[i] - best))
			sum, weights = sum+weight*float64(point), weights+weight
		}
	}
	return math.Max(sum/weights, 0)
}

// learn holds what was claimed about a bucket against its z. inside says that z is far from what was expected, burst
// that it is in a burst: such buckets teach the chance of bursts and the tracked levels, not the members.
func (k *knot) learn(bucket int64, z float64, inside, burst bool) {
	c := k.claimOf(bucket)
	if c == nil {
		return
	}
	if c.Signs != ([signCount]float32{}) {
		k.Pool.observe(&c.Signs, burst)
	}
	if k.Count >= 2*priorCount {
		k.track(c.score(z))
	}
	if inside {
		return
	}
	base, sigma := float64(c.Base), float64(c.Sigma)
	k.Regression.observe(&c.Looks, clamp(z-float64(c.Reference), 3*farSigmas*sigma), 1/(sigma*sigma*float64(k.ahead)))
	miss := clamp(z-base, farSigmas*sigma)
	k.Count++
	k.Slow += math.Max(1/k.Count, 1.0/recent) * (miss*miss - k.Slow)
	k.Fast += math.Max(1/k.Count, 1.0/quick) * (miss*miss - k.Fast)
	for i, point := range c.Points {
		if !math.IsNaN(float64(point)) {
			k.Losses[i] = k.Losses[i]*(1-1.0/recent) + math.Min(math.Abs(z-float64(point))/sigma, farSigmas)
		}
	}
}

// track moves each tracked level by what came: up where z was above it, down where it was below, by steps that keep it
// where the part of z below it is what it promises, whatever the distribution is. This is adaptive conformal inference
// in the form of quantile tracking (Gibbs and Candes, NeurIPS 2021, https://arxiv.org/abs/2106.00170; Angelopoulos,
// Candes and Tibshirani, NeurIPS 2023, https://arxiv.org/abs/2307.16895).
func (k *knot) track(score float64) {
	rate := math.Max(trackRate, 1/(k.Count+20))
	for i, level := range tracked {
		step := level
		if score < k.Scores[i] {
			step--
		}
		k.Scores[i] = clamp(k.Scores[i]+rate*step*trackedSteps[i], mostScore)
	}
	for i := 1; i < len(tracked); i++ {
		k.Scores[i] = math.Max(k.Scores[i], k.Scores[i-1])
	}
}

// mostScore is a normal score that nothing passes: one in 10^15.
const mostScore = 8

// probit is the quantile of the standard normal distribution, normal its distribution function.
func probit(level float64) float64 { return math.Sqrt2 * math.Erfinv(2*level-1) }

func normal(score float64) float64 { return 0.5 * math.Erfc(-score/math.Sqrt2) }
