package space

import (
	"slices"
	"sync"
	"time"
)

// catchUp is how many times as fast as it passes the time may catch up with a clock that is ahead of what was
// witnessed.
const catchUp = 24

// clock says by which time things age. That is the machine's clock, but for one that was turned ahead: then only so
// much counts as has gone by since, and catchUp times that. A clock that is years ahead until somebody corrects it, an
// hour later, makes things a day older, and not so old that all of them go. An engine that was not started for a week
// has caught up after seven hours. A clock that is behind what was witnessed is believed at once, and so is one that
// comes back from there: what is written meanwhile bears its times. Its methods may be called concurrently.
type clock struct {
	wall func() time.Time
	ran  func() time.Duration // since some moment, whatever is done to the machine's clock

	mu   sync.Mutex
	seen time.Time     // guarded by mu: the latest that was answered
	at   time.Duration // guarded by mu: what ran said when it was asked last
	// answers are guarded by mu: those of the last remembered, and the one before them, in their order.
	answers []answer
}

// answer is what a clock has answered.
type answer struct {
	now time.Time
	ran time.Duration
}

// remembered is for how long a clock knows what it has answered: before is asked for at most so much.
const remembered = max(lag, 24*time.Hour)

// newClock returns a clock that goes on from the latest that another one has answered.
func newClock(seen time.Time) *clock {
	began := time.Now()
	return clockOf(seen, time.Now, func() time.Duration { return time.Since(began) })
}

func clockOf(seen time.Time, wall func() time.Time, ran func() time.Duration) *clock {
	return &clock{wall: wall, ran: ran, seen: seen, at: ran(), answers: []answer{{seen, ran()}}}
}

// now is the time by which things age, and by how much the machine's clock is ahead of it.
func (c *clock) now() (now time.Time, ahead time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.look()
}

// look is now. The caller holds mu.
func (c *clock) look() (now time.Time, ahead time.Duration) {
	ran, wall := c.ran(), c.wall().Round(0)
	now = steady(c.seen, wall, ran-c.at)
	if now.After(c.seen) {
		c.seen = now
	}
	c.at = ran
	c.answers = append(c.answers, answer{now, ran})
	c.answers = slices.Delete(c.answers, 0, lastBy(c.answers, ran-remembered))
	return now, wall.Sub(now)
}

// latest is the latest that was answered.
func (c *clock) latest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// before returns the last time that was at least so long ago, at most remembered, in every way: what bears a later one
// may have come since, by a clock that has caught up or was turned back meanwhile.
func (c *clock) before(span time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, _ := c.look()
	return beforeOf(c.answers, now, c.at, span)
}

// beforeOf is what was at least span ago, where those were the answers up to one now, after so long.
func beforeOf(answers []answer, now time.Time, ran, span time.Duration) time.Time {
	before, from := now.Add(-span), ran-span
	for _, one := range answers[lastBy(answers, from):] {
		if then := one.now.Add(-max(0, one.ran-from)); then.Before(before) {
			before = then
		}
	}
	return before
}

// lastBy is the place of the last answer that was given by then; 0 where all came later.
func lastBy(answers []answer, ran time.Duration) int {
	later := slices.IndexFunc(answers, func(one answer) bool { return one.ran > ran })
	if later < 0 {
		later = len(answers)
	}
	return max(0, later-1)
}

// steady is by which time things age, where the latest was seen, the machine's clock says wall, and so much has gone by
// since it was asked last.
func steady(seen, wall time.Time, gone time.Duration) time.Time {
	steady := seen.Add(gone)
	return steady.Add(min(wall.Sub(steady), catchUp*gone))
}
