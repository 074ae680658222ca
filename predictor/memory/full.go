package memory

import (
	"cmp"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// Full is what functions showed when their venue took no more of them: an account shares its concurrency with others,
// and a function gains environments no faster than its venue lets it. The zero value is a venue that never refused any.
type Full struct {
	// Slots is how many the venue was taken to have then, at least 1; 0 when it never refused one.
	Slots int `json:"slots"`
	// At is that time, as [State.Pass] told it.
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

// Room is how many slots, of those that there are, the venue is taken to have at a time: half of those
// that were in use when it last refused one, at least one, and twice as many after each ten seconds without a refusal.
func (f Full) Room(slots int, now fact.Instant) int {
	doublings := max(0, now-f.At) / roomDoubles
	if f.Slots <= 0 || doublings >= mostDoublings {
		return slots
	}
	return min(slots, f.Slots<<doublings)
}

// sane is what may be believed of one that was read. Earlier builds wrote a clock that began at 0: long ago.
func (f Full) sane() Full {
	return Full{Slots: min(max(0, f.Slots), maxAttempts), At: max(0, f.At)}
}

// by is what is known at a time: no refusal is later, whatever another clock told before.
func (f Full) by(now fact.Instant) Full {
	f.At = min(f.At, now)
	return f
}

// recent reports whether a refusal at that time counts as one with the last.
func (f Full) recent(now fact.Instant) bool { return f.Slots > 0 && now-f.At < oneRefusal }

// refused is what is known after a refusal while so many functions were in use.
func (f Full) refused(running int, now fact.Instant) Full {
	return Full{Slots: max(1, f.Room(running, now)/2), At: now}
}

// throttled takes note that a function was refused, before its attempt is forgotten. Its time is the one that was told
// last, as whoever only folds tells it too, and the clocks of hosts may be an hour off; before any, it is the event's.
func (m *State) throttled(e fact.Record) {
	now := cmp.Or(m.passed, fact.At(e.At))
	if e.Venue != fact.Function || e.Cause != fact.CauseThrottled || m.Full.recent(now) {
		return
	}
	running := map[fact.StageID]int{}
	for _, a := range m.Attempts {
		if a.Venue == fact.Function && a.Runs() {
			running[a.Stage()]++
		}
	}
	invokes := 0
	for stage, attempts := range running {
		if st := m.Stages[stage]; st != nil && st.Batch.Most() > 1 { // one slot's invoke runs several of them
			attempts = min(attempts, max(1, st.Functions))
		}
		invokes += attempts
	}
	m.Full = m.Full.refused(invokes, now)
}
