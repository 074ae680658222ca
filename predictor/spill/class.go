package spill

import (
	"cmp"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/predictor/venue"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Refusal is why functions cannot run a stage at all; empty when they can.
type Refusal string

// Almost equal prices: between one core and less, halving the class doubles the time at the same price, so the larger
// finishes earlier for nothing. Five percent covers the rounding of the bill to milliseconds.
const samePrice = 1.05

// durationShare is the part of the function's limit that the longest task may take: an invoke that runs into the limit
// is billed in full and done again at the pool.
const durationShare = 0.8

// FunctionOverhead is what the runtime of a function takes besides what an attempt takes at the pool: the connection to
// the venue, and pages of the program that processes of one host share.
const FunctionOverhead = 32 * quantity.MiB

// Demand is what a task of a stage takes of a function.
type Demand struct {
	Memory quantity.Bytes
	// Speed is how fast it is with so many cores, Cores how many it has at the pool; 0 for one.
	Speed usage.Speed
	Cores float64
	// Wall is how long it takes at the pool in the mean, Longest how long the longest do; in seconds.
	Wall, Longest float64
	// Device says that it needs a GPU.
	Device bool
	// Held is the class that the stage has now; 0 for none.
	Held quantity.Bytes
}

// Slowdown is by what factor a task takes longer with a class than at the pool.
func (d Demand) Slowdown(class quantity.Bytes) float64 {
	return d.Speed.Slower(cmp.Or(d.Cores, 1), size.ClassCores(class))
}

// Class picks the memory class: among those that hold the stage and finish within the function's limit, the cheapest
// per task; among almost equal prices the fastest, then the smallest. A class once chosen stays while it still holds
// the stage, because another one is another function that starts cold.
func (d Demand) Class(offered venue.Functions) (quantity.Bytes, Refusal) {
	if d.Device {
		return 0, "it needs a GPU, which functions do not have"
	}
	var fits []quantity.Bytes
	tooLong := false
	for _, class := range offered.Classes {
		if class < d.Memory {
			continue
		}
		limit := offered.MaxDuration
		if limit > 0 && d.Longest*d.Slowdown(class) >= durationShare*limit.Seconds() {
			tooLong = true
			continue
		}
		fits = append(fits, class)
	}
	switch {
	case len(fits) == 0 && tooLong:
		return 0, Refusal("a task may take " + words.Seconds(d.Longest) + ", too close to the limit of " +
			words.Seconds(offered.MaxDuration.Seconds()))
	case len(fits) == 0:
		return 0, Refusal("it needs " + d.Memory.String() + ", more than the largest function has")
	case slices.Contains(fits, d.Held):
		return d.Held, ""
	}
	price := func(class quantity.Bytes) quantity.Money {
		return offered.Price(class, Span(d.Wall*d.Slowdown(class)))
	}
	cheapest := price(slices.MinFunc(fits, func(a, b quantity.Bytes) int {
		return int(min(1, max(-1, price(a)-price(b))))
	}))
	chosen := quantity.Bytes(0)
	for _, class := range fits {
		if float64(price(class)) <= samePrice*float64(cheapest) &&
			(chosen == 0 || d.Slowdown(class) < d.Slowdown(chosen)) {
			chosen = class
		}
	}
	return chosen, ""
}
