package predictor

import (
	"cmp"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// What the last attempts took goes up and down, and so does the line that is fitted to it; a limit that follows is
// another within the second. So limits that are learned are raised at once, as far as they must be, and lowered only
// when less has been enough for settleFor, or settleSoon where muchSpare is to spare, to what was the most meanwhile: a
// large part keeps others waiting. What was guessed or declared gives way to what is learned at once.
const (
	settleFor  = fact.Instant(2 * time.Minute)
	settleSoon = fact.Instant(30 * time.Second)
	muchSpare  = 1.0 / 3
)

// settled is next with the limits that the stage holds where these are enough and have not been too much for long, and
// the size of a slot with them. Both are learned.
func (d *decider) settled(st *memory.Stage, next size.Sizing, slot quantity.Size) (size.Sizing, quantity.Size) {
	need, held := next.Limits(), st.Sizing.Limits()
	otherDevice := need.Base.GPU != held.Base.GPU || need.Base.DeviceClass != held.Base.DeviceClass
	if otherDevice || need == held && slot == st.Slot {
		st.Settling = memory.Settling{}
		return next, slot
	}
	largest, among := d.probes(st, need.Term, held.Term, st.Settling.Enough.Term)
	kept := held
	if held.Short(need, among) {
		kept = held.Raised(need.Ahead(), largest, among)
	}
	next = next.Limited(kept)
	sized := d.slotOf(st, next)
	keptSlot := size.LargerOf(sized, st.Slot).AtMost(d.largestFor(next.Base))
	keptSlot.GPUMemory = sized.GPUMemory // that of whole GPUs keeps nobody out
	if !kept.Spare(need, among) && !size.Moved(keptSlot, slot) {
		st.Settling = memory.Settling{}
		return next, keptSlot
	}
	clock := max(1, d.memory.Clock)
	if st.Settling.Since == 0 {
		st.Settling = memory.Settling{Since: clock, Enough: need, Slot: slot}
	}
	st.Settling.Enough = st.Settling.Enough.Raised(need, largest, among)
	st.Settling.Slot = size.LargerOf(st.Settling.Slot, slot)
	waited := clock - st.Settling.Since
	if waited < settleSoon || waited < settleFor && !muchToSpare(st, kept, keptSlot) {
		return next, keptSlot
	}
	next = next.Limited(st.Settling.Enough)
	keptSlot = st.Settling.Slot
	st.Settling = memory.Settling{Since: clock, Enough: need, Slot: slot}
	return next, keptSlot
}

// muchToSpare reports whether muchSpare of what is kept would have been enough without: of a slot, which is that of the
// largest attempt and no more than a host, or of all the latest attempts.
func muchToSpare(st *memory.Stage, kept size.Limits, keptSlot quantity.Size) bool {
	enough := st.Settling.Slot
	return float64(enough.CPU) < (1-muchSpare)*float64(keptSlot.CPU) ||
		float64(enough.Memory) < (1-muchSpare)*float64(keptSlot.Memory) ||
		kept.Beyond(st.Settling.Enough, st.Model.Memory.Features()[:st.Model.Memory.Len()]) > muchSpare
}

// probes are the largest features that were seen lately, and all at which limits with these terms are compared: none,
// the largest, and, where they grow with different ones or with several, those of every attempt that is remembered.
func (d *decider) probes(st *memory.Stage, terms ...usage.Term) (largest usage.Features, among []usage.Features) {
	names := map[string]float64{}
	for _, term := range terms {
		for _, name := range term.Names() {
			if name != usage.InputBytes {
				names[name] = st.Model.Memory.Largest(name)
			}
		}
	}
	largest = usage.Features{Input: float64(largestInput(st)), Named: names}
	among = []usage.Features{{}, largest}
	first := cmp.Or(terms...) // none where all are
	for _, term := range terms {
		if !term.Simple() {
			return largest, append(among[:1], st.Model.Memory.Features()...)
		}
		if term.Feature != "" && term.Feature != first.Feature {
			return largest, append(among, st.Model.Memory.Features()...)
		}
	}
	return largest, among
}
