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
	// Base and Term are the line: an attempt is expected to take about Base + Term.At(features) bytes, times its level.
	Base float64
	Term Term
	// Levels multiply the line, by 1 for the kind that takes the most, and Unseen does so for the limits of other values
	// than those that have a level of their own.
	Levels Levels
	Unseen float64
	// Low, Mid and High bound the middle 80 percent of the peaks, relative to the line.
	Low, Mid, High float64
	// Bound is what peaks stayed below lately, and Limit what an attempt should be given, relative to the line: Bound
	// with head-room.
	Bound, Limit float64
	// Above is what an attempt should be given that passed its limit, relative to the line: as much as those needed that
	// the limit leaves out. 0 where these are fewer than enoughAbove: then nothing tells.
	Above float64
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
func (n Need) At(features Features) float64 {
	return (n.Base + n.Term.At(features)) * n.Levels.At(features)
}

// Beyond is how far above all that was seen the first limit of an attempt may be. Needs saturate: buffers are full, a
// cache is as large as it may be, a reference is loaded once. Nothing in the smaller inputs tells at which size, and a
// line over 100 GB of input that is followed to 1,200 grants seven times what is used. To look for a need by doubling
// costs at most a few times what knowing it would have (Bentley and Yao, An almost optimal algorithm for unbounded
// searching, 1976, https://doi.org/10.1016/0020-0190(76)90071-5); where the line was right, one attempt is killed, and
// what had started with it, before the line is followed.
const Beyond = 2

// fade is how much less each attempt counts than the next one: after 33 attempts it has lost two thirds of its weight.
const fade = 0.97

// Stakes are what head-room is chosen by.
type Stakes struct {
	// Margin is by how much the largest ratios are usually above the others, which counts while few attempts say
	// otherwise.
	Margin float64
	// Excess is what an attempt costs that runs out of memory, in units of its own need held for its own time: it ran for
	// nothing, the next one is larger, and somebody waits. Outside of LeastExcess to MostExcess it counts as the nearer of
	// these, and 0 as MostExcess.
	Excess float64
}

const (
	// MostExcess is about the weight of all attempts that a History ever has, 29: what is rarer than one among them is in
	// none of them, and head-room against it would be paid for with nothing to tell how much is enough.
	MostExcess = 30
	// LeastExcess is that of an attempt that is started again at once, on memory that others wait for as well: it ran for
	// nothing.
	LeastExcess = 1
)

// sane are the stakes within their bounds.
func (s Stakes) sane() Stakes {
	if !(s.Excess > 0) {
		s.Excess = MostExcess
	}
	s.Excess = min(max(s.Excess, LeastExcess), MostExcess)
	return s
}

// Learn finds what the attempts of a history need, and what explains it: nothing, or powers and products of features
// that predict the attempts better than chance would, and whose limits would have cost less (see [search.better]).
//
// Limits are above the largest ratio of actual to expected peaks by as much as the spread of these ratios makes worth
// paying for (see [ratios.bound]): a hundredth where peaks differ by less than that, a tenth where they differ by a
// twentieth. A ratio that stands far above the others is left out where all the others would pay more for it than it
// costs to try that one attempt again. The attempts that ran out of memory enter as having needed somewhat more than
// their limit. ok is false while fewer than Enough attempts were measured to their end.
//
// Held is what explained the peaks before, the zero Term for nothing: it goes on to as long as nothing is better by as
// much as it must be better than nothing. Powers of one feature are much alike, and with every attempt another of them
// fits best.
func Learn(h *History, stakes Stakes, held Term) (need Need, ok bool) {
	if h == nil || !h.valid() || h.Known() < Enough {
		return Need{}, false
	}
	need = newSearch(h, stakes.sane()).best(held).need()
	if h.Unmet() < Beyond*h.LargestPeak() {
		need.Most = Beyond * max(slices.Max(h.Peaks), h.LargestPeak())
	}
	return need, true
}

// enoughAbove is how many attempts above the limit tell what the next of their kind needs.
const enoughAbove = 2

// rounding is what the product of a line and a ratio may be off by: the interval of peaks that are all the same has
// them in it.
const rounding = 1e-9

// exceededBy is how much more than its limit an attempt that passed it is thought to have needed at least.
const exceededBy = 1.5

// price is the mean cost of the attempts, had each been given the limit that the others suggest. Only those from the
// bound up, which above of them pass, have moved it.
func (r ratios) price(limit float64, above int, stakes Stakes) float64 {
	total, weights := 0.0, 0.0
	for i, one := range r {
		given := limit
		if i >= len(r)-1-above {
			_, given, _ = r.without(i).bound(stakes)
		}
		total += one.weight * cost(given/one.ratio, stakes.Excess)
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
	return medianIn(make([]float64, len(values)), values)
}
