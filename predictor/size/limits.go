package size

import (
	"cmp"
	"math"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Step is by how much, as a ratio, a size must move before it is changed, but for memory: a limit that follows
// every attempt would restart children and fill the ledger with decisions that change nothing.
const Step = 0.10

// leastLearned is the largest of the least limits: an attempt is given no less, or half as much again as the most that
// was measured.
//
// What a small process takes differs by as much as it is large: a page table, a library more, and what each CPU charges
// in advance, 64 pages. A shell takes 660 KiB at most (cgroup v1), one that starts programs 1.4 MiB, killed at .5;
// 16 MiB for each left nineteen twentieths to spare.
const leastLearned = 16 * quantity.MiB

// Least is the least limit of a stage of which this is the largest peak. Fixed says that its attempts run in
// containers, which engines refuse to start with less than 6 MiB, or size themselves: they have the whole of it.
func Least(largest quantity.Bytes, fixed bool) quantity.Bytes {
	if fixed || largest <= 0 || largest >= leastLearned {
		return leastLearned
	}
	return min(RoundUp(largest*3/2, quantity.MiB), leastLearned)
}

// Limits is what attempts of a stage are given: a size, and what its memory grows with.
type Limits struct {
	Base quantity.Size `json:"base"`
	Term usage.Term    `json:"term,omitzero"`
	// Levels multiply the memory, by 1 for the kind of attempts that takes the most.
	Levels usage.Levels `json:"levels,omitzero"`
}

// At is the limit of memory at these features, in bytes.
func (l Limits) At(features usage.Features) float64 {
	return (float64(l.Base.Memory) + l.Term.At(features)) * l.Levels.At(features)
}

// Short reports whether limits give too little somewhere.
func (l Limits) Short(need Limits, among []usage.Features) bool {
	for _, features := range among {
		if need.At(features) > (1+growStep)*l.At(features) {
			return true
		}
	}
	return need.Base.CPU > l.Base.CPU && !closeTo(float64(need.Base.CPU), float64(l.Base.CPU)) ||
		float64(need.Base.GPUMemory) > (1+growStep)*float64(l.Base.GPUMemory)
}

// Spare reports whether limits give more than is needed somewhere.
func (l Limits) Spare(need Limits, among []usage.Features) bool {
	for _, features := range among {
		if need.At(features) < shrunk(l.At(features)) {
			return true
		}
	}
	return need.Base.CPU < l.Base.CPU && !closeTo(float64(need.Base.CPU), float64(l.Base.CPU)) ||
		float64(need.Base.GPUMemory) < (1-shrinkStep)*float64(l.Base.GPUMemory)
}

// Beyond is the part of what limits give to attempts with these features that they give beyond enough, from 0 to 1.
func (l Limits) Beyond(enough Limits, attempts []usage.Features) float64 {
	given, taken := 0.0, 0.0
	for _, features := range attempts {
		given += l.At(features)
		taken += min(enough.At(features), l.At(features))
	}
	if !(given > 0) {
		return 0
	}
	return 1 - taken/given
}

// Raised are limits that give at least what both give. Where both grow with the same feature alone, they are the curve
// from the larger base to the larger limit at the largest features, of the smaller power, which lies above that of the
// larger one; else need is raised by what it is short of anywhere among these.
func (l Limits) Raised(need Limits, largest usage.Features, among []usage.Features) Limits {
	to := need
	to.Base.CPU, to.Base.GPUMemory = max(l.Base.CPU, need.Base.CPU), max(l.Base.GPUMemory, need.Base.GPUMemory)
	covers, covered := true, true
	for _, features := range among {
		covers = covers && l.At(features) >= need.At(features)
		covered = covered && need.At(features) >= l.At(features)
	}
	switch {
	case covered:
		return to
	case covers:
		to.Base.Memory, to.Term, to.Levels = l.Base.Memory, l.Term, l.Levels
		return to
	}
	by := need.Term
	switch {
	case by.Feature == "", l.Term.Feature == by.Feature && l.Term.Power < by.Power:
		by.Power, by.Unit = l.Term.Power, l.Term.Unit
	}
	by.Feature = cmp.Or(by.Feature, l.Term.Feature)
	if (l.Term.Feature == "" || l.Term.Feature == by.Feature) && l.Term.Simple() && need.Term.Simple() {
		top := max(l.At(largest), need.At(largest))
		to.Base.Memory = max(l.Base.Memory, need.Base.Memory)
		by.PerUnit = 1
		if units := by.At(largest); units > 0 {
			by.PerUnit = max(0, top-float64(to.Base.Memory)) / units
			to.Term = by
			return to
		}
	}
	missing := 0.0
	for _, features := range among {
		missing = max(missing, (l.At(features)-need.At(features))/need.Levels.At(features))
	}
	to.Base.Memory += RoundUp(quantity.Bytes(min(missing, MostMemory)), quantity.MiB)
	return to
}

// Ahead are limits a step above: what has grown once goes on growing, and would be short again with the next attempts.
func (l Limits) Ahead() Limits {
	l.Base.Memory += RoundUp(quantity.Bytes(growStep*float64(l.Base.Memory)), quantity.MiB)
	l.Term = l.Term.Scaled(1 + growStep)
	return l
}

// LargerOf is the larger of each part of two sizes, on the device of the second.
func LargerOf(a, b quantity.Size) quantity.Size {
	b.CPU, b.Memory, b.GPUMemory = max(a.CPU, b.CPU), max(a.Memory, b.Memory), max(a.GPUMemory, b.GPUMemory)
	return b
}

// growStep and shrinkStep are by how much, as ratios, memory must grow or shrink before it is changed: head-room that
// is used up is given back at once, and what is spare once it has been for a while, because memory is what attempts
// wait for. More must be spare than must be missing, so that what is raised is not lowered for the same noise.
const growStep, shrinkStep = 0.01, 0.015

// shrunk is the memory below which less is worth a change: a MiB is what limits are rounded to.
func shrunk(memory float64) float64 { return (1-shrinkStep)*memory - float64(quantity.MiB) }

// Moved reports whether any part of a size changed enough to be changed.
func Moved(from, to quantity.Size) bool {
	return !closeTo(float64(from.CPU), float64(to.CPU)) ||
		float64(to.Memory) > (1+growStep)*float64(from.Memory) || float64(to.Memory) < shrunk(float64(from.Memory)) ||
		from.GPU != to.GPU || from.GPUMemory != to.GPUMemory || from.DeviceClass != to.DeviceClass
}

func closeTo(a, b float64) bool {
	return math.Abs(a-b) <= Step*max(math.Abs(a), math.Abs(b))
}

// CloseTerms reports whether two terms grow with the same, and by about as much.
func CloseTerms(a, b usage.Term) bool {
	alike := a.Like(b) && closeTo(a.PerUnit, b.PerUnit)
	for i := range a.And {
		alike = alike && closeTo(a.And[i].PerUnit, b.And[i].PerUnit)
	}
	return alike
}

// RoundUp is the least multiple of step that is no smaller than value, and not below 0.
func RoundUp[N ~int64](value, step N) N {
	return (max(value, 0) + step - 1) / step * step
}
