package agent

import (
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
)

// An attempt of which little is known is admitted with what it is thought to take, and grows: it is lent a part of the
// memory that nobody holds, so its limit is above its grant from its first instruction on, and what it takes of that is
// held by it at the next look. However fast it allocates, the kernel holds nothing back and kills nothing while the
// host has room. What is lent is given back as soon as another attempt waits for it; where the host is full, there is
// nothing to lend, and the grant is the limit.

// Looks at an attempt that may outgrow its grant are so close to each other that one which allocates allocatedPerSecond
// takes no more than what it is lent in between: four times what one thread writes into new pages (a page costs a
// quarter of a microsecond at least). They are never closer than soonestLook, in which the kernel's numbers are read
// for a hundredth of a core.
const (
	allocatedPerSecond = 4 * quantity.GiB
	soonestLook        = 50 * time.Millisecond
)

// lookAfter is when an attempt to which this much is lent must be looked at again.
func lookAfter(lent quantity.Bytes) time.Duration {
	return max(time.Duration(float64(lent)/float64(allocatedPerSecond)*float64(time.Second)), soonestLook)
}

// looks are the looks at an attempt that borrows, besides its samples.
type looks struct {
	running *running
	timer   *time.Timer // nil where the attempt does not borrow
}

func newLooks(r *running) *looks {
	l := &looks{running: r}
	if r.borrows {
		l.timer = time.NewTimer(soonestLook)
	}
	return l
}

// next fires when the attempt must be looked at.
func (l *looks) next() <-chan time.Time {
	if l.timer == nil {
		return nil
	}
	return l.timer.C
}

// look counts the attempt with what it takes, and lends it its part of what is left.
func (l *looks) look() {
	if l.timer == nil {
		return
	}
	l.running.look()
	l.again()
}

// again sets the time of the next look. An attempt to which nothing is lent cannot outgrow its grant: the next sample,
// or whoever calls loans in, looks at it.
func (l *looks) again() {
	if l.timer == nil {
		return
	}
	if lent := l.running.loan(); lent > 0 {
		l.timer.Reset(lookAfter(lent))
	} else {
		l.timer.Stop()
	}
}

func (l *looks) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

func (r *running) look() {
	r.mu.Lock()
	gauge := r.gauge
	r.mu.Unlock()
	if gauge == nil {
		return // it waits for its process
	}
	now := r.agent.now()
	if taken, ok := gauge.memory(); ok {
		r.follow(taken, now)
	}
	r.lend()
}

// follow makes the attempt hold what it takes now, and no plan takes that from it. What it took before and has given
// back it need not hold: a size of running attempts would be raised to their peaks at every look.
func (r *running) follow(taken quantity.Bytes, now time.Time) {
	r.mu.Lock()
	r.used = predictor.Follow(0, taken, taken+quantity.MiB) // as much as it holds then
	r.mu.Unlock()
	r.change(now, func(held, free quantity.Size) quantity.Size {
		held.Memory = predictor.Follow(held.Memory, taken, free.Memory)
		return held
	})
}

// borrow takes the first loan of an attempt that may outgrow its grant, before its processes start.
func (r *running) borrow() {
	if !r.borrows {
		return
	}
	part, _ := r.room.loan()
	lent := r.room.borrow(part)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lent = lent
}

// worthLending is by how much, as a part of it, a loan must become another before the limit is changed.
const worthLending = 8

// nextLoan is what an attempt is lent whose loan is held, and whose part is another now. Called says that somebody
// waits for what is lent.
func nextLoan(held, part quantity.Bytes, called bool) quantity.Bytes {
	if part < held && called || max(part, held)-min(part, held) > held/worthLending {
		return part
	}
	return held
}

// lend makes what the attempt is lent its part of what is free now. Books are changed before a limit is raised, and
// after it is lowered, so that the limits of all are never more than the host has.
func (r *running) lend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live.group == nil {
		return
	}
	before := r.lent
	part, called := r.room.loan()
	switch lent := nextLoan(before, part, called); {
	case lent < before:
		r.hold(lent)
		r.lent = r.room.borrow(r.lent)
	case lent > before:
		if lent = r.room.borrow(lent); lent > before {
			r.hold(lent)
		}
		r.lent = r.room.borrow(r.lent)
	}
	if r.lent != before {
		r.tell()
	}
}

// hold holds the attempt to its grant and this loan, and notes what is lent then: more than that where the kernel could
// not take away what it has taken, and what was lent before where the limit stays as it is. The caller holds mu.
func (r *running) hold(lent quantity.Bytes) {
	limit := r.grant
	limit.Memory += lent
	if memory, ok := r.limitTo(limit); ok {
		r.lent = memory - r.grant.Memory
	}
}

// closeLoan makes the grant of an attempt that is over what it has taken, and no more than that where it borrowed. One
// that was killed for memory held what was not enough: see [notEnough]. Charged is the most that the kernel counted
// against the limit, peak the most that could not be taken away.
func (r *running) closeLoan(killed bool, peak, charged quantity.Bytes, now time.Time) {
	if !r.borrows && !killed {
		return
	}
	r.mu.Lock()
	r.last = r.limit().Memory
	if killed {
		r.last = notEnough(r.last, r.earlier, charged)
	}
	last := r.last
	r.mu.Unlock()
	r.change(now, func(held, free quantity.Size) quantity.Size {
		if killed {
			held.Memory = last
		} else {
			held.Memory = min(predictor.Follow(held.Memory, peak, free.Memory), last)
		}
		return held
	})
}

// notEnough is the limit at which an attempt was killed, of the one that it had in the end and the one before that was
// raised to it, 0 where none was: the one that the most that was charged is closer to. A limit that is raised between a
// kill and its being noticed was never passed by anybody, and would be taken for what the next attempt must exceed,
// which no host can where it was all of one.
//
// Compared is what is closer, as a kernel charges pages in batches, and some let what dies charge beyond its limit.
func notEnough(limit, earlier, charged quantity.Bytes) quantity.Bytes {
	if 0 < earlier && earlier < limit && charged-earlier < limit-charged {
		return earlier
	}
	return limit
}

// grantOf is what an attempt held that ended so: one that ran out of memory all that it might take, whoever refused it
// more, since that is what was not enough.
func (r *running) grantOf(ending slot.Ending) quantity.Size {
	held := r.held()
	if ending.Outcome == predictor.OutOfMemory && ending.Cause != predictor.CauseDeviceMemory && r.last > 0 {
		held.Memory = r.last
	}
	return held
}

// loan is what the attempt is lent now.
func (r *running) loan() quantity.Bytes {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lent
}

// limit is what the kernel holds the attempt to; the caller holds mu.
func (r *running) limit() quantity.Size {
	limit := r.grant
	limit.Memory += r.lent
	return limit
}

// limits is the same.
func (r *running) limits() quantity.Size {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limit()
}
