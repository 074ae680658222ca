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
}

// Comparison adds up what attempts come to had every one of them held one static size. The zero Comparison is that of
// no attempts.
type Comparison struct {
	// Short is how many attempts need more memory than the static size: where it is not 0, that size does not finish the
	// work.
	Short int
	// Held is for how long the static size would have been held, over all attempts.
	Held time.Duration
}

// Add adds a finished attempt, had it held size, which is the same for all attempts of one Comparison. It assumes:
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
func (c *Comparison) Add(attempt Attempt, size quantity.Size) {
	if !attempt.Made(size) {
		return
	}
	if attempt.OutOfMemory || attempt.Usage.PeakMemory > size.Memory {
		c.Short++
	}
	c.Held = add(c.Held, attempt.Held(size))
}

// Made reports whether the attempt would have been made at size: not when it ran out of a smaller grant than that.
func (a Attempt) Made(size quantity.Size) bool {
	return !a.OutOfMemory || a.Grant.Memory >= size.Memory
}

// Held returns for how long the attempt would have held size.
func (a Attempt) Held(size quantity.Size) time.Duration {
	return add(max(0, a.Start), a.stretched(size.CPU))
}

// stretched returns how long the attempt runs on so many cores, which is never shorter than it did.
func (a Attempt) stretched(cores quantity.Milli) time.Duration {
	wall := max(0, a.Usage.Wall)
	if cores <= 0 {
		return wall
	}
	// wall x (CPU / wall) / cores = CPU time / cores; the quotient is split so that it does not overflow.
	cpu, share := max(0, a.Usage.CPU), time.Duration(cores)
	whole, rest := cpu/share, cpu%share
	if whole > (1<<63-1)/time.Duration(quantity.Core)-1 {
		return 1<<63 - 1
	}
	least := whole*time.Duration(quantity.Core) + time.Duration(float64(rest)/float64(share)*float64(quantity.Core))
	return max(wall, least)
}

// add returns the sum of two durations that are not negative, the longest there is where that overflows.
func add(a, b time.Duration) time.Duration { return a + min(b, 1<<63-1-a) }
