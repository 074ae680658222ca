package size

import (
	"math"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Excess is what an attempt that runs out of memory costs those who wait for it, and what the memory that it has beyond
// its need costs those who wait for memory.
type Excess struct {
	// Wall is how long an attempt takes, Lost how much of that is done again after one ran out of memory, and Restart how
	// long it takes until the next one runs; in seconds, 0 or more.
	Wall, Lost, Restart float64
	// Retry is how many times the limit that was not enough the next attempt is given; 1 or more.
	Retry float64
	// Own is what an hour of the attempt is worth: of an earlier end (see [Hour]), and of what it holds; in US dollars, 0
	// or more.
	Own float64
	// Others is what an hour of earlier finish is worth to those that wait for memory, in US dollars (see [Others]), and
	// Wanted how much they want it (see [Wanted]).
	Others, Wanted float64
}

// Price is the cost of running out of memory in units of the attempt's own need, spare for its own time:
//
//	(Lost s + (Retry - 1) Wall s + (Lost + Restart) Own) / (Wall s),        s = Wanted Others
//
// The first two are memory that was held for nothing, and will be spare; the third is the wait. It is usage.MostExcess
// where spare memory is worth nothing to anybody, or Wall is not known; never less than usage.LeastExcess.
func (e Excess) Price() float64 {
	spare := e.Wall * e.Wanted * e.Others
	if !(spare > 0) {
		return usage.MostExcess
	}
	price := e.Lost/e.Wall + e.Retry - 1 + (e.Lost+e.Restart)*e.Own/spare
	if math.IsNaN(price) {
		return usage.MostExcess
	}
	return min(max(price, usage.LeastExcess), usage.MostExcess)
}

// Hour is what an hour of earlier finish is worth to a run, in US dollars: this value, where its goal does not say;
// nothing to one that minimises cost, and to one that minimises latency as many times as much as cores are worth to it.
func Hour(value quantity.Money, minimise fact.Objective) float64 {
	switch minimise {
	case fact.Cost:
		return 0
	case fact.Latency:
		return MostWorth * value.USD()
	}
	return value.USD()
}

// Waiting are tasks of a run that wait for room.
type Waiting struct {
	// Memory is what they ask for, in bytes, and Hour what an hour of earlier finish is worth to their run, in US dollars.
	Memory, Hour float64
}

// Others is what an hour of earlier finish is worth to those that wait, in US dollars: the mean over the memory that
// they ask for, which is what spare memory would go to. 0 where nobody waits.
func Others(waiting []Waiting) float64 {
	memory, worth := 0.0, 0.0
	for _, w := range waiting {
		memory, worth = memory+w.Memory, worth+w.Memory*w.Hour
	}
	if !(memory > 0) {
		return 0
	}
	return worth / memory
}

// Wanted is the part of those that wait for room which wait for memory, 0 to 1: of the memory that is held and asked
// for, what is beyond all that there is, as far as cores do not keep the same from it. Both are given relative to what
// there is.
func Wanted(memory, cores float64) float64 {
	if !(memory > 1) {
		return 0
	}
	return max(0, 1-max(1, cores)/memory)
}
