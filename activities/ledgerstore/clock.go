package ledgerstore

import (
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

// mostAhead is by how much the clock of whoever tells may be ahead of the server's and is still taken as it is: what
// one host tells then lies in one time, its attempts within its minutes, and nothing of it is counted twice or not at
// all. It is more than a wrong time zone is off (14 h), and little beside the week for which minutes stay open: who is
// so much ahead closes them a day early.
//
// Beyond it the book of open minutes would be lost: it forgets what is a week older than the latest time that it has
// heard of, and a clock in 2030 would leave no minute of a host open until then. See
// TestAClockThatIsYearsAheadSpoilsNoMinutes.
const mostAhead = 24 * time.Hour

// correction is what is to be added to times that end at some time by a clock that is too far ahead of the server's,
// when the server has stored the message: then it has ended when it was stored. 0 is for a clock that is not, and for a
// message of which it is not known when it was stored.
func correction(at, stored time.Time) time.Duration {
	if stored.IsZero() || at.Sub(stored) <= mostAhead {
		return 0
	}
	return stored.Sub(at)
}

// heldIn is what a host tells in the server's time: as long as it was told.
func heldIn(e predictor.HostHeld, stored time.Time) predictor.HostHeld {
	off := correction(e.At, stored)
	e.From, e.At = e.From.Add(off), e.At.Add(off)
	return e
}

// recordIn is a Record in the server's time. What it cost stays as it was told. The host does not say when the task was
// scheduled, so that is corrected only where it is ahead as well.
func recordIn(e predictor.Record, stored time.Time) predictor.Record {
	off := correction(e.At, stored)
	e.At = e.At.Add(off)
	if correction(e.ScheduledAt, stored) != 0 {
		e.ScheduledAt = e.ScheduledAt.Add(off)
	}
	return e
}
