package predictor

import (
	"cmp"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// What the last attempts took goes up and down, and so does the line that is fitted to it; a limit that follows is
// another within the second. So limits that are learned are raised at once, as far as they must be, and lowered only
// when less has been enough for settleFor, or settleSoon where muchSpare of a slot is to spare, to what was the most
// meanwhile: a large part keeps others waiting. What was guessed or declared gives way to what is learned at once.
const (
	settleFor  = instant(2 * time.Minute)
	settleSoon = instant(30 * time.Second)
	muchSpare  = 1.0 / 3
)

// limits is what attempts of a stage are given: a size, and what its memory grows with.
type limits struct {
	Base quantity.Size `json:"base"`
	Term usage.Term    `json:"term,omitzero"`
}

// at is the limit of memory at these features, in bytes.
func (l limits) at(features usage.Features) float64 {
	return float64(l.Base.Memory) + l.Term.At(features)
}

// settling says since when less than what a stage holds has been enough. The zero value says that it is not.
type settling struct {
	// Since is by the clock.
	Since instant `json:"since,omitempty"`
	// Enough are limits that would have been enough since, Slot the largest slot that they would have come to.
	Enough limits        `json:"enough"`
	Slot   quantity.Size `json:"slot"`
}

// settled is next with the limits that the stage holds where these are enough and have not been too much for long, and
// the size of a slot with them. Both are learned.
func (d *decider) settled(st *stage, next Sizing, slot quantity.Size) (Sizing, quantity.Size) {
	need, held := limits{next.Base, next.Term}, limits{st.Sizing.Base, st.Sizing.Term}
	otherDevice := need.Base.GPU != held.Base.GPU || need.Base.DeviceClass != held.Base.DeviceClass
	if otherDevice || need == held && slot == st.Slot {
		st.Settling = settling{}
		return next, slot
	}
	among := d.probes(st, need.Term, held.Term, st.Settling.Enough.Term)
	kept := held
	if held.short(need, among) {
		kept = held.raised(need, among)
	}
	next.Base, next.Term = kept.Base, kept.Term
	keptSlot := largerOf(d.slotOf(st, next), st.Slot).AtMost(d.largestHost())
	if !kept.spare(need, among) && !moved(keptSlot, slot) {
		st.Settling = settling{}
		return next, keptSlot
	}
	clock := max(1, d.memory.clock)
	if st.Settling.Since == 0 {
		st.Settling = settling{Since: clock, Enough: need, Slot: slot}
	}
	st.Settling.Enough = st.Settling.Enough.raised(need, among)
	st.Settling.Slot = largerOf(st.Settling.Slot, slot)
	wait := settleFor
	if enough := st.Settling.Slot; float64(enough.CPU) < (1-muchSpare)*float64(keptSlot.CPU) ||
		float64(enough.Memory) < (1-muchSpare)*float64(keptSlot.Memory) {
		wait = settleSoon
	}
	if clock-st.Settling.Since < wait {
		return next, keptSlot
	}
	next.Base, next.Term = st.Settling.Enough.Base, st.Settling.Enough.Term
	keptSlot = st.Settling.Slot
	st.Settling = settling{Since: clock, Enough: need, Slot: slot}
	return next, keptSlot
}

// probes are features at which limits with these terms are compared: none, the largest that were seen lately, and,
// where they grow with different ones, those of every attempt that is remembered.
func (d *decider) probes(st *stage, terms ...usage.Term) []usage.Features {
	names := map[string]float64{}
	for _, term := range terms {
		if term.Feature != "" && term.Feature != usage.InputBytes {
			names[term.Feature] = st.model.Memory.Largest(term.Feature)
		}
	}
	found := []usage.Features{{}, {Input: float64(largestInput(st)), Named: names}}
	first := cmp.Or(terms...) // none where all are
	for _, term := range terms {
		if term.Feature != "" && term.Feature != first.Feature {
			return append(found, st.model.Memory.Features()...)
		}
	}
	return found
}

// short reports whether limits give too little somewhere.
func (l limits) short(need limits, among []usage.Features) bool {
	for _, features := range among {
		if need.at(features) > (1+growStep)*l.at(features) {
			return true
		}
	}
	return need.Base.CPU > l.Base.CPU && !closeTo(float64(need.Base.CPU), float64(l.Base.CPU)) ||
		float64(need.Base.GPUMemory) > (1+growStep)*float64(l.Base.GPUMemory)
}

// spare reports whether limits give more than is needed somewhere.
func (l limits) spare(need limits, among []usage.Features) bool {
	for _, features := range among {
		if need.at(features) < (1-shrinkStep)*l.at(features) {
			return true
		}
	}
	return need.Base.CPU < l.Base.CPU && !closeTo(float64(need.Base.CPU), float64(l.Base.CPU)) ||
		float64(need.Base.GPUMemory) < (1-shrinkStep)*float64(l.Base.GPUMemory)
}

// raised are limits that give at least what both give. Where both grow with the same feature, they are the line from
// the larger base to the larger limit at the largest need, which lies above squares too; else need is raised by what it
// is short of anywhere.
func (l limits) raised(need limits, among []usage.Features) limits {
	to := need
	to.Base.CPU, to.Base.GPUMemory = max(l.Base.CPU, need.Base.CPU), max(l.Base.GPUMemory, need.Base.GPUMemory)
	covers, covered := true, true
	for _, features := range among {
		covers = covers && l.at(features) >= need.at(features)
		covered = covered && need.at(features) >= l.at(features)
	}
	switch {
	case covered:
		return to
	case covers:
		to.Base.Memory, to.Term = l.Base.Memory, l.Term
		return to
	}
	by := need.Term
	if by.Feature == "" || l.Term.Power == 1 {
		by.Power = l.Term.Power
	}
	by.Feature = cmp.Or(by.Feature, l.Term.Feature)
	if l.Term.Feature == "" || l.Term.Feature == by.Feature {
		largest := among[1] // see probes
		top := max(l.at(largest), need.at(largest))
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
		missing = max(missing, l.at(features)-need.at(features))
	}
	to.Base.Memory += roundUp(quantity.Bytes(min(missing, mostMemory)), quantity.MiB)
	return to
}

// largerOf is the larger of each part of two sizes, on the device of the second.
func largerOf(a, b quantity.Size) quantity.Size {
	b.CPU, b.Memory, b.GPUMemory = max(a.CPU, b.CPU), max(a.Memory, b.Memory), max(a.GPUMemory, b.GPUMemory)
	return b
}
