package pricing

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Attempt is one finished attempt, as far as its cost at another size depends on it. An attempt that its venue refused
// held nothing: leave it out.
type Attempt struct {
	// Grant is what it held.
	Grant quantity.Size
	// Usage is what it took; Usage.Wall, Usage.CPU and Usage.PeakMemory count.
	Usage quantity.Usage
	// Start is the time for which it held its grant before the user's code ran.
	Start time.Duration
	// OutOfMemory says that it was killed at, or refused memory within, its grant.
	OutOfMemory bool
	// Cost is what it cost.
	Cost quantity.Money
}

// Comparison is what attempts cost beside what they would have cost had every one of them held one static size. The
// zero Comparison is that of no attempts.
type Comparison struct {
	// Actual is the sum of what they cost.
	Actual quantity.Money
	// Static is what the same work would have cost at the static size. Where Short is not 0, that size does not finish the
	// work, and Static is no price for it.
	Static quantity.Money
	// Attempts is how many attempts there would have been.
	Attempts int
	// Avoided is how many attempts ran out of a grant smaller than the static size, and would not have been needed.
	Avoided int
	// Short is how many attempts need more memory than the static size.
	Short int
	// Stretched is how many would have run longer, for want of cores.
	Stretched int
	// Held is for how long the static size would have been held, over all attempts.
	Held time.Duration
}

// Add adds a finished attempt, and what it would have cost had it held size, at price (Host.For, or Price.Bill of a
// function). Size and price are the same for all attempts of one Comparison. It assumes:
//
//   - An attempt that used more cores than the static size has runs longer in proportion: wall x max(1, (CPU time /
//     wall) / cores). One that was held back by its grant does not run faster in a larger size, which is in favour of a
//     small static size. A size without CPU does not limit it.
//   - An attempt whose peak is above the static memory is killed: it is Short, and counts for its whole time, as if it
//     were killed at the end.
//   - An attempt that ran out of memory in a smaller grant than the static size would not have been made: its retry
//     shows whether the size is enough. One that ran out of a grant as large as the static size or larger is Short.
//   - Everything else ends as it did: errors, time-outs and lost hosts do not depend on the size. Starting takes as
//     long.
//   - The static size is paid for while it is held, as the grants were; idle room on hosts is not counted on either
//     side.
func (c *Comparison) Add(attempt Attempt, size quantity.Size, price func(quantity.Size, time.Duration) quantity.Money) {
	c.Actual = c.Actual.Plus(max(0, attempt.Cost))
	if !attempt.Made(size) {
		c.Avoided++
		return
	}
	c.Attempts++
	if attempt.OutOfMemory || attempt.Usage.PeakMemory > size.Memory {
		c.Short++
	}
	wall, stretched := attempt.stretch(size.CPU)
	if stretched {
		c.Stretched++
	}
	held := add(max(0, attempt.Start), wall)
	c.Held = add(c.Held, held)
	c.Static = c.Static.Plus(price(size, held))
}

// Made reports whether the attempt would have been made at size: not when it ran out of a smaller grant than that.
func (a Attempt) Made(size quantity.Size) bool {
	return !a.OutOfMemory || a.Grant.Memory >= size.Memory
}

// Held returns for how long the attempt would have held size.
func (a Attempt) Held(size quantity.Size) time.Duration {
	wall, _ := a.stretch(size.CPU)
	return add(max(0, a.Start), wall)
}

// stretch returns how long the attempt runs on so many cores, and whether that is longer than it did.
func (a Attempt) stretch(cores quantity.Milli) (wall time.Duration, longer bool) {
	wall = max(0, a.Usage.Wall)
	if cores <= 0 {
		return wall, false
	}
	// wall x (CPU / wall) / cores = CPU time / cores; the quotient is split so that it does not overflow.
	cpu, share := max(0, a.Usage.CPU), time.Duration(cores)
	whole, rest := cpu/share, cpu%share
	if whole > (1<<63-1)/time.Duration(quantity.Core)-1 {
		return 1<<63 - 1, true
	}
	least := whole*time.Duration(quantity.Core) + time.Duration(float64(rest)/float64(share)*float64(quantity.Core))
	return max(wall, least), least > wall
}

// add returns the sum of two durations that are not negative, the longest there is where that overflows.
func add(a, b time.Duration) time.Duration { return a + min(b, 1<<63-1-a) }
