package usage

import (
	"cmp"
	"math"
	"slices"
)

// weighed is the ratio of a peak to its line, with the weight of the attempt's age.
type weighed struct{ ratio, weight float64 }

// ratios are those of all attempts, the smallest first. The weights are relative to that of the next attempt, which is
// 1: the attempt before it counts nearly as much, those of long ago count less. For n attempts of one weight all below
// is as for exchangeable ones (Vovk et al., Algorithmic Learning in a Random World, 2005, on conformal prediction);
// with weights it holds up to what has changed since, counted by these weights (Barber et al., Conformal prediction
// beyond exchangeability, 2023, https://doi.org/10.1214/23-AOS2276; the weighted quantile is that of Tibshirani et
// al., Conformal prediction under covariate shift, 2019, https://arxiv.org/abs/1904.06019).
type ratios []weighed

func ratiosOf(values, weights []float64) ratios {
	found := make(ratios, len(values))
	for i, value := range values {
		found[i] = weighed{value, weights[i]}
	}
	slices.SortFunc(found, func(a, b weighed) int { return cmp.Compare(a.ratio, b.ratio) })
	return found
}

// without are all others than the i-th smallest.
func (r ratios) without(i int) ratios { return slices.Delete(slices.Clone(r), i, i+1) }

func (r ratios) weight() (sum float64) {
	for _, one := range r {
		sum += one.weight
	}
	return sum
}

// bound is the ratio, among the largest, and the limit above it at which what is spare and what runs out of memory
// cost the least together, and how many of the ratios are above the bound: those that stand so far above the others
// that these would pay more for them than it costs to try the like of them again.
//
// The next attempt passes the largest of ratios with weights w with probability 1 / (1 + sum w). How far above it is
// then is not in what was seen, and is taken from the tail: it passes a limit of bound + h with probability
// [tail.beyond](h) / (1 + sum w). A unit of the limit costs sum w / ratio, an attempt that passes it excess, so the
// least is where
//
//	excess d beyond(h) / dh = - sum w / ratio
//
// but h is at most the usual head-room, margin and for a short history 1/(2n) more: where excesses are so large, few
// tell little of how large, and one retry is the better way to find out.
func (r ratios) bound(stakes Stakes) (bound, limit float64, above int) {
	weight, left, least := r.weight(), 0.0, math.Inf(1)
	for out := range r {
		below := r[:len(r)-out]
		largest := below[len(below)-1]
		perUnit := 0.0
		for _, one := range below {
			perUnit += one.weight / one.ratio
		}
		tail := below.tail(stakes.Margin)
		h := min(tail.headroom(perUnit/stakes.Excess), largest.ratio*(stakes.Margin+1/(2*float64(len(r)))))
		h = max(h, leastHeadroom*largest.ratio)
		total := stakes.Excess * tail.beyond(h)
		for _, one := range r {
			total += one.weight * cost((largest.ratio+h)/one.ratio, stakes.Excess)
		}
		if total < least {
			bound, limit, above, least = largest.ratio, largest.ratio+h, out, total
		}
		if left += largest.weight; left > weight/leftOut || out == len(r)-1 {
			break
		}
	}
	return bound, limit, above
}

// leastHeadroom is never gone below: limits that are held are raised only when they are a per cent short of the newest
// (size.Limits.Short), so what is granted may be as much less than what was learned.
const leastHeadroom = 0.01

// leftOut is the least weight of attempts for each one that a bound may leave out.
const leftOut = 16

// tail is how far the largest ratios are above a threshold: exponentially, with a mean that is known as well as so
// many excesses tell (Pickands, Statistical inference using extreme order statistics, 1975,
// https://doi.org/10.1214/aos/1176343003: the excess over a high threshold is a generalised Pareto one; the
// exponential is its middle). An exponential tail goes on from any point in it as from its threshold.
type tail struct {
	// attempts is the weight of the excesses, excess their weighted sum.
	attempts, excess float64
}

// tail is that of the upper quarter of the ratios: where half of the attempts take another way than the others, a
// lower threshold is between the two and calls the distance between them a tail. What is thought before the excesses
// were seen is half an attempt, as in Jeffreys' prior for a rate, with an excess as large as the others are below the
// threshold: the same noise is on both sides. What is thought of that is one attempt with the usual head-room: five
// equal peaks say less than fifty (TestAShortHistoryIsCareful).
func (r ratios) tail(usual float64) tail {
	threshold := len(r) - 1 - min((len(r)+upperPart-1)/upperPart, len(r)-1)
	over := r[threshold].ratio
	sum, weight := max(usual, leastUsual)*over, 1.0
	for _, one := range r[:threshold] {
		sum += one.weight * (over - one.ratio)
		weight += one.weight
	}
	t := tail{attempts: prior, excess: prior * sum / weight}
	for _, one := range r[threshold+1:] {
		t.attempts += one.weight
		t.excess += one.weight * (one.ratio - over)
	}
	return t
}

const (
	upperPart = 4
	prior     = 0.5
	// leastUsual keeps a policy without any usual head-room above the granularity in which memory is counted: pages of
	// 4 KiB in the smallest limit of 16 MiB.
	leastUsual = 1.0 / 4096
)

// beyond is the probability that an excess is above h: an exponential one's, averaged over what its rate may be, which
// has a gamma distribution after that many excesses of that sum (Gelman et al., Bayesian Data Analysis, 2013, 2.6).
// The less is known, the heavier it is.
func (t tail) beyond(h float64) float64 { return math.Pow(1+h/t.excess, -t.attempts) }

// headroom is the h from which beyond falls by less than slope for each unit more; 0 or more.
func (t tail) headroom(slope float64) float64 {
	return max(0, t.excess*(math.Pow(t.attempts/(t.excess*slope), 1/(t.attempts+1))-1))
}

// quantile is how far above the threshold all but that part of the excesses are.
func (t tail) quantile(part float64) float64 { return t.excess * (math.Pow(part, -1/t.attempts) - 1) }

// quantile is the ratio that the next one stays below with probability q: for n attempts of one weight the i-th
// smallest with q = i / (n + 1), what is between on a straight line, and what is beyond all that was seen by the tail.
// The nearest rank of n would cover four of six where five are known and 80 percent are meant.
func (r ratios) quantile(q, usual float64) float64 {
	total := 1 + r.weight()
	cumulated, lastP := 0.0, 0.0
	for i, one := range r {
		p := (cumulated + (one.weight+1)/2) / total
		if q <= p {
			if i == 0 {
				return 1 / (1/one.ratio + r.inverted().tail(usual).quantile(q/p))
			}
			return r[i-1].ratio + (one.ratio-r[i-1].ratio)*(q-lastP)/(p-lastP)
		}
		cumulated, lastP = cumulated+one.weight, p
	}
	return r[len(r)-1].ratio + r.tail(usual).quantile((1-q)/(1-lastP))
}

// inverted are the inverse ratios: the lower tail of these is the upper of those.
func (r ratios) inverted() ratios {
	found := make(ratios, len(r))
	for i, one := range r {
		found[len(r)-1-i] = weighed{1 / one.ratio, one.weight}
	}
	return found
}

// cost is what an attempt costs that is given limit times its need, in units of that need, besides the need itself.
func cost(limit, excess float64) float64 {
	if limit < 1 {
		return excess
	}
	return limit - 1
}
