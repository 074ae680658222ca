package usage

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Enough is how many attempts must have been measured to their end before a Need rests on them.
const Enough = 5

// Need is what attempts of a stage will take, as learned from its history.
// The zero value knows nothing.
type Need struct {
	// Base and Term are the line: an attempt is expected to take about Base + Term.At(features) bytes.
	Base float64
	Term Term
	// Low, Mid and High bound the middle 80 percent of the peaks, relative to the line.
	Low, Mid, High float64
	// Bound is what peaks stayed below lately, and Limit what an attempt should be given, relative to the line: Bound
	// with head-room.
	Bound, Limit float64
	// Most is what a first attempt should be given at most, in bytes, wherever the line leads: Beyond times the largest
	// peak that was seen, or the largest limit that was not enough. 0 is no bound: one was given as much and ran out of
	// memory, and none has shown yet what it takes.
	Most float64
	// Attempts is how many peaks it rests on.
	Attempts int
	// Explained says in words what the need depends on: "input_bytes", "the square of length"; empty when on nothing
	// known.
	Explained string
}

// At returns the line at these features, in bytes.
func (n Need) At(features Features) float64 { return n.Base + n.Term.At(features) }

// Beyond is how far above all that was seen the first limit of an attempt may be. Needs saturate: buffers are full, a
// cache is as large as it may be, a reference is loaded once. Nothing in the smaller inputs tells at which size, and a
// line over 100 GB of input that is followed to 1,200 grants seven times what is used. To look for a need by doubling
// costs at most a few times what knowing it would have (Bentley and Yao, An almost optimal algorithm for unbounded
// searching, 1976, https://doi.org/10.1016/0020-0190(76)90071-5); where the line was right, one attempt is killed, and
// what had started with it, before the line is followed.
const Beyond = 2

const (
	// fade is how much less each attempt counts than the next one: after 33 attempts it has lost two thirds of its
	// weight.
	fade = 0.97
	// simpler is by how much a feature must lower the cost before it is believed: with noise alone, one of several
	// features and powers always looks a little better than none (TestNoiseIsNotExplained).
	simpler = 0.90
	// spread is the ratio between the largest and the smallest value of a feature below which a slope says more about
	// noise than about it.
	spread = 1.5
	// maxPerUnit bounds a slope over bytes of input: text compressed a hundredfold, decoded and held several times over.
	maxPerUnit = 1024
	// overCost is what an attempt costs that runs out of memory, in units of its own need held for its own time: it ran
	// for nothing, the next one is twice as large, and somebody waits.
	overCost = 30
)

// Learn finds what the attempts of a history need: it fits a line over each feature, its square, its square
// root, and over none, and takes the one whose limits would have cost the least (each left-out attempt is given the
// limit that the others suggest; what is spare is paid for, and so is running out of memory).
//
// Limits are above the largest ratio of actual to expected peaks by as much as the spread of these ratios makes worth
// paying for (see [ratios.bound]): a hundredth where peaks differ by less than that, a tenth where they differ by a
// twentieth. Margin is by how much the largest ratios are usually above the others, which counts while few attempts
// say otherwise. A ratio that stands far above the others is left out where all the others would pay more for it than
// it costs to try that one attempt again. The attempts that ran out of memory enter as having needed somewhat more
// than their limit. ok is false while fewer than Enough attempts were measured to their end.
func Learn(h *History, margin float64) (need Need, ok bool) {
	if h == nil || !h.valid() || h.Known() < Enough {
		return Need{}, false
	}
	best, plain := h.candidate(-1, 0, margin)
	cost := plain
	for column, name := range h.Names {
		if low, high := bounds(h.Columns[column]); high <= spread*low || high <= 0 {
			continue
		}
		line := plain
		for _, exponent := range [...]float64{1, 2, 0.5} {
			if exponent == 0.5 && line >= simpler*plain {
				continue // where the line is not believed, a third power would be by chance more often
			}
			next, price := h.candidate(column, exponent, margin)
			if name == InputBytes && next.Term.PerUnit*power(h.Largest(name), exponent) > maxPerUnit*h.Largest(name) {
				continue
			}
			if next.Term.PerUnit > 0 && price < simpler*cost {
				best, cost = next, price
			}
			if exponent == 1 {
				line = price
			}
		}
	}
	if h.Unmet() < Beyond*h.LargestPeak() {
		best.Most = Beyond * slices.Max(h.Peaks)
	}
	return best, true
}

// candidate fits one line and prices it. Column is the feature's, -1 for none.
func (h *History) candidate(column int, exponent, margin float64) (Need, float64) {
	points := make([]point, h.Len())
	weight := 1.0
	for i := h.Len() - 1; i >= 0; i-- { // the latest first
		place := h.place(i)
		p := point{y: h.Peaks[place], weight: weight}
		if column >= 0 {
			p.x = power(h.Columns[column][place], exponent)
		}
		points[i] = p
		weight *= fade
	}
	withSlope := column >= 0
	h.raiseExceeded(points, withSlope)
	f := fitLine(points, withSlope)
	need := Need{Base: f.base, Attempts: h.Known()}
	if f.slope > 0 {
		need.Term = Term{Feature: h.Names[column], Power: exponent, PerUnit: f.slope}
		need.Explained = h.Names[column]
		switch exponent {
		case 0.5:
			need.Explained = "the square root of " + need.Explained
		case 2:
			need.Explained = "the square of " + need.Explained
		}
	}
	all := ratiosOf(f.ratios, points)
	need.Low, need.Mid, need.High = all.quantile(0.1, margin), all.quantile(0.5, margin), all.quantile(0.9, margin)
	need.Low, need.High = need.Low*(1-rounding), need.High*(1+rounding)
	largest, limit, above := all.bound(margin)
	need.Bound, need.Limit = largest, limit
	return need, all.price(limit, above, margin)
}

// rounding is what the product of a line and a ratio may be off by: the interval of peaks that are all the same has
// them in it.
const rounding = 1e-9

// raiseExceeded replaces the limit that an attempt exceeded by what it is thought to have needed: what the line
// through the others says there, and at least exceededBy times the limit. This is the imputation step of expectation
// maximisation for censored data, once.
func (h *History) raiseExceeded(points []point, withSlope bool) {
	if h.Exceeded == 0 {
		return
	}
	measured := make([]point, 0, len(points))
	for i, p := range points {
		if !h.exceeded(h.place(i)) {
			measured = append(measured, p)
		}
	}
	f := fitLine(measured, withSlope)
	for i := range points {
		if h.exceeded(h.place(i)) {
			points[i].y = max(points[i].y*exceededBy, f.base+f.slope*points[i].x)
		}
	}
}

// exceededBy is how much more than its limit an attempt that passed it is thought to have needed at least.
const exceededBy = 1.5

// price is the mean cost of the attempts, had each been given the limit that the others suggest. Only those from the
// bound up, which above of them pass, have moved it.
func (r ratios) price(limit float64, above int, margin float64) float64 {
	total, weights := 0.0, 0.0
	for i, one := range r {
		given := limit
		if i >= len(r)-1-above {
			_, given, _ = r.without(i).bound(margin)
		}
		total += one.weight * cost(given/one.ratio)
		weights += one.weight
	}
	return total / weights
}

// String says what the need rests on, for reasons: "23 attempts, by input_bytes".
func (n Need) String() string {
	text := strconv.Itoa(n.Attempts) + " attempts"
	if n.Explained != "" {
		text = fmt.Sprintf("%s, by %s", text, n.Explained)
	}
	return text
}

func bounds(values []float64) (low, high float64) {
	low = math.Inf(1)
	for _, value := range values {
		low, high = min(low, value), max(high, value)
	}
	return low, high
}

// median is the lower median of values, which must not be empty.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}
