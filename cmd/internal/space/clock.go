package space

import "time"

// catchUp is how many times as fast as it passes the time may catch up with a clock that is ahead of what was
// witnessed.
const catchUp = 24

// clock says by which time things age. That is the machine's clock, but for one that was turned ahead: then only so
// much counts as has gone by since, and catchUp times that. A clock that is years ahead until somebody corrects it, an
// hour later, makes things a day older, and not so old that all of them go. An engine that was not started for a week
// has caught up after seven hours. One goroutine at a time uses it.
type clock struct {
	wall func() time.Time
	ran  func() time.Duration // since some moment, whatever is done to the machine's clock
	seen time.Time            // what was answered last
	at   time.Duration        // what ran said then
}

// newClock returns a clock that goes on from what another one has answered last.
func newClock(seen time.Time) *clock {
	began := time.Now()
	return &clock{wall: time.Now, ran: func() time.Duration { return time.Since(began) }, seen: seen}
}

// now is the time by which things age, and by how much the machine's clock is ahead of it.
func (c *clock) now() (now time.Time, ahead time.Duration) {
	ran, wall := c.ran(), c.wall().Round(0)
	c.seen, c.at = steady(c.seen, wall, ran-c.at), ran
	return c.seen, wall.Sub(c.seen)
}

// steady is by which time things age, where it was seen last, the machine's clock says wall, and so much has gone by.
func steady(seen, wall time.Time, gone time.Duration) time.Time {
	steady := seen.Add(gone)
	return steady.Add(min(wall.Sub(steady), catchUp*gone))
}
