package memory

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// Full is what functions showed when their venue took no more of them: an account shares its concurrency with others,
// and a function gains environments no faster than its venue lets it. The zero value is a venue that never refused any.
type Full struct {
	// Slots is how many the venue was taken to have then, at least 1; 0 when it never refused one.
	Slots int `json:"slots"`
	// At is the clock at that time.
	At fact.Instant `json:"at"`
}

const (
	// oneRefusal is for how long refusals count as one: those of a burst come while the worker tries again.
	oneRefusal = fact.Instant(5 * time.Second)
	// roomDoubles is in what time twice as many are tried again: in it, AWS gives a function 1,000 environments more.
	// Source: https://docs.aws.amazon.com/lambda/latest/dg/scaling-behavior.html
	roomDoubles = fact.Instant(10 * time.Second)
	// mostDoublings is when all slots are tried again, whatever they are.
	mostDoublings = 20
)

// Room is how many slots, of those that there are, the venue is taken to have at a moment of the clock: half of those
// that were in use when it last refused one, at least one, and twice as many after each ten seconds without a refusal.
func (f Full) Room(slots int, clock fact.Instant) int {
	doublings := max(0, clock-f.At) / roomDoubles
	if f.Slots <= 0 || doublings >= mostDoublings {
		return slots
	}
	return min(slots, f.Slots<<doublings)
}

// sane is what may be believed of one that was read.
func (f Full) sane(clock fact.Instant) Full {
	return Full{Slots: min(max(0, f.Slots), maxAttempts), At: min(max(0, f.At), clock)}
}

// recent reports whether a refusal at that time counts as one with the last.
func (f Full) recent(clock fact.Instant) bool { return f.Slots > 0 && clock-f.At < oneRefusal }

// refused is what is known after a refusal while so many functions were in use.
func (f Full) refused(running int, clock fact.Instant) Full {
	return Full{Slots: max(1, f.Room(running, clock)/2), At: clock}
}

// throttled takes note that a function was refused, before its attempt is forgotten.
func (m *State) throttled(e fact.Record) {
	if e.Venue != fact.Function || e.Cause != fact.CauseThrottled || m.Full.recent(m.Clock) {
		return
	}
	running := 0
	for _, a := range m.Attempts {
		if a.Venue == fact.Function && a.Runs() {
			running++
		}
	}
	m.Full = m.Full.refused(running, m.Clock)
}
