package timeline

import (
	"cmp"
	"slices"
	"time"
)

// activity is what an attempt is doing, the most useful first: of all that go on at a moment, the first is charged.
//
// What nobody can tell comes after an attempt's code began, so it is further than a start or a queue.
type activity int

const (
	computing activity = iota
	fetching
	publishing
	untold
	starting
	queued
	activities // how many there are
)

// change says that one more attempt, or one less, does something from some time on. It is the time, in nanoseconds,
// then three bits for the activity and one that is set for less: numbers are sorted several times faster than structs.
type change uint64

const (
	changeBits = 4
	// longest is the longest that fits: 36 years. What is later counts as the engine's.
	longest = 1<<(64-changeBits) - 1
)

func newChange(at int64, of activity, less bool) change {
	c := change(min(at, longest))<<changeBits | change(of)<<1
	if less {
		c |= 1
	}
	return c
}

func (c change) at() int64 { return int64(c >> changeBits) }

func (c change) apply(under *[activities]int) {
	by := 1
	if c&1 != 0 {
		by = -1
	}
	under[c>>1&(1<<(changeBits-1)-1)] += by
}

// Break says where the time of a run went until its end, or until now while it goes on, given its attempts in any
// order.
//
// An attempt is queued from ScheduledAt to AdmittedAt and started until StartedAt; then its code runs for Wall, which
// is taken to be its Fetch, then computation, then its Publish, because nothing tells when in Wall they were; what is
// handed over after Wall (Settle) is Publish, too. What is then left up to EndedAt is Unattributed. An attempt that
// goes on computes. A task is queued between the end of one attempt and ScheduledAt of the next.
//
// It sweeps over the times at which anything changes: O(n log n) for n attempts.
func Break(run Run, now time.Time, attempts []Attempt) Breakdown {
	from, to := run.edges(now)
	start := max(0, run.StartedAt.Sub(from))
	b := Breakdown{Wall: to.Sub(from), Broker: start}
	changes := changesOf(attempts, run.StartedAt, to)
	slices.Sort(changes)
	var under [activities]int
	last := int64(0)
	for _, c := range changes {
		*b.row(&under) += time.Duration(c.at() - last)
		last = c.at()
		c.apply(&under)
	}
	b.Engine += b.Wall - start - time.Duration(last)
	return b
}

// row is what is charged while so many attempts do each activity.
func (b *Breakdown) row(under *[activities]int) *time.Duration {
	rows := [activities]*time.Duration{&b.Compute, &b.Fetch, &b.Publish, &b.Unattributed, &b.Start, &b.Queue}
	for of, attempts := range under {
		if attempts > 0 {
			return rows[of]
		}
	}
	return &b.Engine
}

// changesOf lists the changes between from and to, in nanoseconds since from.
func changesOf(attempts []Attempt, from, to time.Time) []change {
	changes := make([]change, 0, 12*len(attempts))
	add := func(of activity, a, b int64) {
		if a < b {
			changes = append(changes, newChange(a, of, false), newChange(b, of, true))
		}
	}
	for i := range attempts {
		attempt := &attempts[i]
		m := momentsOf(attempt, from, to)
		add(queued, m.scheduled, m.admitted)
		add(starting, m.admitted, m.started)
		fetched, published := m.started, m.computed
		if !attempt.EndedAt.IsZero() {
			fetched, published = split(attempt, from, m)
		}
		add(fetching, m.started, fetched)
		add(computing, fetched, published)
		add(publishing, published, m.computed)
		add(publishing, m.computed, m.settled)
		add(untold, m.settled, m.ended)
	}
	for _, gap := range gaps(attempts) {
		m := momentsOf(&gap, from, to)
		add(queued, m.scheduled, m.ended)
	}
	return changes
}

// split says where in the attempt's run its fetching ends and its publishing begins, both within what is laid out.
func split(attempt *Attempt, from time.Time, m moments) (fetched, published int64) {
	wall := max(0, attempt.Wall)
	fetch := max(0, min(attempt.Fetch, wall))
	publish := max(0, min(attempt.Publish, wall-fetch))
	within := func(after time.Duration) int64 {
		return max(m.started, min(int64(attempt.StartedAt.Add(after).Sub(from)), m.computed))
	}
	return within(fetch), within(wall - publish)
}

// gaps are the times between the attempts of each task, as attempts that were queued and never admitted.
func gaps(attempts []Attempt) []Attempt {
	type task struct{ stage, task string }
	again := map[task][]*Attempt{} // of tasks with later attempts: most have none
	for i := range attempts {
		if a := &attempts[i]; a.Number > 1 {
			again[task{a.Stage, a.Task}] = append(again[task{a.Stage, a.Task}], a)
		}
	}
	if len(again) == 0 {
		return nil
	}
	for i := range attempts {
		a := &attempts[i]
		if of := (task{a.Stage, a.Task}); a.Number <= 1 && again[of] != nil {
			again[of] = append(again[of], a)
		}
	}
	var found []Attempt
	for _, tried := range again {
		slices.SortFunc(tried, func(a, b *Attempt) int { return cmp.Compare(a.Number, b.Number) })
		for i, later := range tried[1:] {
			if before := tried[i].EndedAt; !before.IsZero() && before.Before(later.ScheduledAt) {
				found = append(found, Attempt{ScheduledAt: before, EndedAt: later.ScheduledAt})
			}
		}
	}
	return found
}
