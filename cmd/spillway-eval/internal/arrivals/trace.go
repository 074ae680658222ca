package arrivals

import (
	"math"
	"time"
)

// Trace is how many arrivals came in each bucket of time.
type Trace struct {
	// Name is that of the recorded set, or of one series of it.
	Name string
	// Width is that of a bucket.
	Width time.Duration
	// Counts are in the order of time; NaN where nothing was recorded.
	Counts []float64
}

// Gathered is the trace with the counts of times buckets put together; what is left at the end is dropped. A bucket is
// missing where any part of it is.
func (t Trace) Gathered(times int) Trace {
	gathered := Trace{Name: t.Name, Width: t.Width * time.Duration(times)}
	for i := 0; i+times <= len(t.Counts); i += times {
		sum := 0.0
		for _, count := range t.Counts[i : i+times] {
			sum += count
		}
		gathered.Counts = append(gathered.Counts, sum)
	}
	return gathered
}

// Masked is the trace without what its recorder missed: runs of at least least buckets of zero, and one bucket on
// either side, of which a part may be missing. least is 1 or more.
func (t Trace) Masked(least int) Trace {
	masked := append([]float64(nil), t.Counts...)
	for i := 0; i < len(t.Counts); {
		end := i
		for end < len(t.Counts) && t.Counts[end] == 0 {
			end++
		}
		if end-i >= least {
			for j := max(i-1, 0); j < min(end+1, len(masked)); j++ {
				masked[j] = math.NaN()
			}
		}
		i = max(end, i+1)
	}
	return Trace{Name: t.Name, Width: t.Width, Counts: masked}
}
