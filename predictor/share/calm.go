package share

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/calm"
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
)

// Slots are polls that are open, and those that come and go with every task tell nobody anything: a steady flow of
// tasks of a millisecond needs now one and now five. So more slots are given at once, and a quarter more than were
// held, and fewer only when no more were needed for calmFor, and then only when that is a quarter fewer.
const (
	calmFor  = fact.Instant(20 * time.Second)
	calmStep = 4 // the part of the slots that a change takes or gives at least
)

// Held is how many slots a stage holds, and whether it needs as many.
type Held struct {
	Slots int
	calm.Eased
}

// Keep is how many slots a stage that needs so many now keeps while there is room, and whether it needs as many then.
func (h Held) Keep(needed int, clock fact.Instant) (kept int, then Held) {
	then = Held{Slots: h.Slots}
	if needed > h.Slots {
		if h.Slots == 0 || needed >= plan.MaxSlots {
			return needed, then
		}
		return max(needed, h.Slots+h.Slots/calmStep), then
	}
	if needed+max(1, h.Slots/calmStep) > h.Slots {
		return h.Slots, then
	}
	most, long, eased := h.Fewer(needed, clock, calmFor)
	then.Eased = eased
	if !long {
		return h.Slots, then
	}
	return most, then
}
