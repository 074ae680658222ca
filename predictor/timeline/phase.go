package timeline

import (
	"cmp"
	"slices"
	"time"
)

// moments are the times of one attempt in nanoseconds since some origin: never decreasing, and within 0 and the end of
// what is laid out.
type moments struct {
	scheduled, admitted, started, computed, settled, ended int64
}

// momentsOf returns the times of an attempt between from and to. A time that nobody told is that of what came next: an
// attempt that was not admitted is still queued, one that has not started is still being started, and one that has not
// ended goes on until to.
func momentsOf(a *Attempt, from, to time.Time) moments {
	ended := a.EndedAt
	if ended.IsZero() {
		ended = to
	}
	started := a.StartedAt
	if started.IsZero() {
		started = ended
	}
	admitted := a.AdmittedAt
	if admitted.IsZero() {
		admitted = started
	}
	scheduled := a.ScheduledAt
	if scheduled.IsZero() {
		scheduled = admitted
	}
	computed, settled := ended, ended
	if !a.EndedAt.IsZero() {
		computed = started.Add(max(0, a.Wall))
		settled = computed.Add(max(0, a.Settle))
	}
	span := max(0, to.Sub(from))
	at := func(t time.Time, least int64) int64 {
		return max(least, int64(max(0, min(t.Sub(from), span))))
	}
	var m moments
	m.scheduled = at(scheduled, 0)
	m.admitted = at(admitted, m.scheduled)
	m.started = at(started, m.admitted)
	m.ended = at(ended, m.started)
	m.computed = min(m.ended, at(computed, m.started))
	m.settled = min(m.ended, at(settled, m.computed))
	return m
}

// edges are the times between which a run is laid out.
func (r Run) edges(now time.Time) (from, to time.Time) {
	from, to = r.StartedAt, r.EndedAt
	if !r.EventAt.IsZero() && r.EventAt.Before(from) {
		from = r.EventAt
	}
	if to.IsZero() {
		to = now
	}
	if to.Before(r.StartedAt) {
		to = r.StartedAt
	}
	return from, to
}

// byTime orders attempts by when they were scheduled; equal ones by stage, task and number, so that the order in which
// they came does not matter.
func byTime(a, b *Attempt) int {
	if order := a.ScheduledAt.Compare(b.ScheduledAt); order != 0 {
		return order
	}
	return cmp.Or(cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Number, b.Number))
}

// lanes groups attempts by stage, the stage that was scheduled first at the front; within a group they are in the order
// in which they were given.
func lanes(attempts []Attempt) [][]*Attempt {
	places := map[string]int{}
	var grouped [][]*Attempt
	var first []*Attempt // of each group
	for i := range attempts {
		attempt := &attempts[i]
		place, known := places[attempt.Stage]
		if !known {
			place = len(grouped)
			places[attempt.Stage] = place
			grouped, first = append(grouped, nil), append(first, attempt)
		}
		grouped[place] = append(grouped[place], attempt)
		if byTime(attempt, first[place]) < 0 {
			first[place] = attempt
		}
	}
	slices.SortFunc(first, byTime)
	sorted := make([][]*Attempt, len(first))
	for i, attempt := range first {
		sorted[i] = grouped[places[attempt.Stage]]
	}
	return sorted
}
