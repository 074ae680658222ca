package outlook

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// maxAlternatives is how many alternatives are told: more than a page can draw apart help nobody.
const maxAlternatives = 60

// option is one number of function slots for one stage, or one combination of them for several.
type option struct {
	slots  []int   // one per course
	finish float64 // seconds from now, the middle of the prediction
	cost   quantity.Money
}

// front returns the options that no other beats: of no two does one end earlier, or as early, and cost no more. It is
// ordered by finish; cost falls. Among equals the one with the fewest slots stays.
func front(options []option) []option {
	sorted := slices.Clone(options)
	slices.SortStableFunc(sorted, func(a, b option) int {
		return cmp.Or(cmp.Compare(a.finish, b.finish), cmp.Compare(a.cost, b.cost), slices.Compare(a.slots, b.slots))
	})
	var best []option
	for _, next := range sorted {
		if len(best) == 0 || next.cost < best[len(best)-1].cost {
			best = append(best, next)
		}
	}
	return best
}

// options are what can be done for the stage alone: for each finish that can be had, the fewest slots that reach it,
// ordered by finish. More slots never cost less (TestMoreSlotsNeverCostLess), so these are the cheapest, too, but for
// free functions, of which no more are taken than help: other stages may want them.
func (c Course) options() []option {
	var useful []option
	for n := range c.Most + 1 {
		next := option{slots: []int{n}, finish: c.duration(n) + c.After.Mid, cost: c.cost(n)}
		if len(useful) == 0 || next.finish < useful[len(useful)-1].finish {
			useful = append(useful, next)
		}
	}
	slices.Reverse(useful)
	return useful
}

// merge combines the fronts of stages that go on beside each other: the run ends with the last of them and pays for
// all, so
//
//	finish = max finish_s,   cost = sum cost_s
//
// A combination that nothing beats takes, for the time at which it ends, the cheapest option of every stage that is
// done by then, and that time is the finish of some option. Trying each of those times is therefore exact. The cheapest
// option of a stage that is done by a time is also the one with the fewest slots, so that what does not fit the venue
// then cannot be made to fit. TestMergedStagesAgreeWithBruteForce holds it against all combinations.
func merge(stages [][]option, fits func(slots []int) bool) []option {
	var times []float64
	for _, options := range stages {
		for _, o := range options {
			times = append(times, o.finish)
		}
	}
	slices.Sort(times)
	var found []option
	for _, by := range slices.Compact(times) {
		if together, done := combine(stages, by); done && fits(together.slots) {
			found = append(found, together)
		}
	}
	return front(found)
}

// combine takes the cheapest option of every stage that ends by a time; done is false when one of them has none.
func combine(stages [][]option, by float64) (together option, done bool) {
	for _, options := range stages {
		later, _ := slices.BinarySearchFunc(options, math.Nextafter(by, math.Inf(1)), func(o option, t float64) int {
			return cmp.Compare(o.finish, t)
		})
		if later == 0 {
			return option{}, false
		}
		o := options[later-1]
		together.slots = append(together.slots, o.slots...)
		together.finish = max(together.finish, o.finish)
		together.cost = min(fact.MaxCost, together.cost+o.cost)
	}
	return together, true
}

// thin keeps at most maxAlternatives of a front: its ends, those that keep wants, and of the others what lies at equal
// steps along the curve, measured in parts of the range of each axis.
func thin(options []option, keep func(option) bool) []option {
	if len(options) <= maxAlternatives {
		return options
	}
	wanted := 2
	for _, o := range options[1 : len(options)-1] {
		if keep(o) {
			wanted++
		}
	}
	first, last := options[0], options[len(options)-1]
	along := func(o option) float64 {
		return (o.finish-first.finish)/(last.finish-first.finish) + float64(first.cost-o.cost)/float64(first.cost-last.cost)
	}
	step := 2 / float64(max(1, maxAlternatives-wanted+1))
	kept, next := []option{first}, step
	for _, o := range options[1 : len(options)-1] {
		switch {
		case along(o) >= next:
			kept = append(kept, o)
			next = (math.Floor(along(o)/step) + 1) * step
		case keep(o):
			kept = append(kept, o)
		}
	}
	return append(kept, last)
}
