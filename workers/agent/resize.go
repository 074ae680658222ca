package agent

import (
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// attach makes the attempt run in live from now on.
func (r *running) attach(live target, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live, r.gauge = live, newGauge(live.group, r.agent.enforcer.Mode(), now)
	r.agent.gpus.follow(r.gpus, live)
}

// has reports whether a process is the attempt's.
func (t target) has(pid int) bool {
	pids, err := t.group.Pids()
	return err == nil && slices.Contains(pids, pid) || t.owns != nil && t.owns(pid)
}

// pids are the attempt's processes that are in the group; none when they cannot be read.
func (t target) pids() []int {
	pids, err := t.group.Pids()
	if err != nil {
		return nil
	}
	return pids
}

// detach ends the time in which the attempt can be resized. Its processes are gone, or idle: what it leaves behind may
// be collected for long, and nobody could call in what it is lent.
func (r *running) detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = target{}
	if r.borrows {
		r.lent = r.room.borrow(0)
	}
}

// liveAfter is how long an attempt must have run before it is sized by what attempts that run take: its start says
// little about what follows.
const liveAfter = time.Minute

// resize gives the attempt what sizing says now, while it runs.
func (r *running) resize(sizing predictor.Sizing, now time.Time) {
	if r.fixed {
		return
	}
	want, _, _ := sizing.For(r.try.Need(), r.agent.gpus.capacity(r.agent.base, sizing.Base))
	r.mu.Lock()
	used, held := r.used, r.grant
	r.mu.Unlock()
	if !sizing.Live.IsZero() && now.Sub(r.began) >= liveAfter {
		want.CPU, want.Memory = sizing.Live.CPU, sizing.Live.Memory
		if predictor.Relief(held.Memory, r.admitted.Memory, r.expected, used, held.Memory) > held.Memory {
			want.Memory = max(want.Memory, held.Memory) // it has just been given more, or is about to be
		}
	}
	r.change(now, func(held, free quantity.Size) quantity.Size { return resized(held, free, want, used) })
}

// change gives the attempt what decide says, in the books, in the kernel and in the child's runtime. The kernel may
// hold more memory than is asked for, when the attempt uses more.
func (r *running) change(now time.Time, decide func(held, free quantity.Size) quantity.Size) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live.group == nil {
		return
	}
	before := r.limit()
	wanted := r.grant.Memory
	size, lent := r.room.resize(func(held, free quantity.Size) quantity.Size {
		size := decide(held, free)
		wanted = size.Memory
		size.Memory = max(size.Memory, held.Memory) // what is given up is nobody's before the kernel has lowered the limit
		return size
	})
	if size == r.grant && lent == r.lent && wanted == size.Memory {
		return
	}
	limit := size
	limit.Memory = wanted + lent
	memory := limit.Memory // that the kernel allows
	if limit != before {
		memory, _ = r.limitTo(limit)
	}
	if memory != size.Memory+lent {
		size, lent = r.room.resize(func(now, _ quantity.Size) quantity.Size {
			now.Memory = booked(now.Memory, lent, memory)
			return now
		})
	}
	r.grant, r.lent = size, lent
	r.meter.hold(size, now)
	if limit != before {
		r.tell()
	}
}

// limitTo makes the kernel hold the attempt to another limit, and returns the memory that it allows then: more than was
// asked for where the attempt has taken more, and what it was where ok is false. The caller holds mu.
//
// Once the kernel has killed the attempt for memory, its memory is not raised: more helps nobody, and its Record would
// say that so much was not enough. A kill that comes between the look and the raise is for [notEnough].
func (r *running) limitTo(limit quantity.Size) (memory quantity.Bytes, ok bool) {
	before := r.limit().Memory
	raised := limit.Memory > before
	late := raised && r.gauge.killed()
	if late {
		limit.Memory = before
	}
	held, err := r.live.group.Resize(limit)
	if err != nil {
		r.agent.logger.Warn("a running attempt keeps its limits", "task", r.try.Task.ID, "error", err)
		return max(before, held.Memory), false
	}
	if raised && !late {
		r.earlier = before
	}
	return max(limit.Memory, held.Memory), !late
}

// booked is the memory that an attempt holds of what the kernel allows, while this much is lent of it: what it gives up
// comes off what it holds, and where it has more than it holds and is lent, it holds all of it.
func booked(held, lent, allowed quantity.Bytes) quantity.Bytes {
	if allowed-lent > held {
		return allowed
	}
	return allowed - lent
}

// tell hands the attempt its limits; the caller holds mu.
func (r *running) tell() {
	if r.live.tell == nil {
		return
	}
	if err := r.live.tell(r.limit()); err != nil {
		r.live.abandon()
	}
}

func (r *running) held() quantity.Size {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.grant
}
