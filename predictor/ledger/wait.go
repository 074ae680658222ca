package ledger

import (
	"cmp"
	"math"
	"slices"
)

// Wait is how long attempts of a stage waited from when their task was put on the queue until a venue admitted them;
// later attempts of a task from when they were taken from the queue. The zero value says that none has ended.
// Attempts that a venue refused are left out: what they waited is no wait for work.
type Wait struct {
	// MedianSeconds is the wait of the attempt in the middle, at most 5 percent above it; LongestSeconds is the longest
	// of all.
	MedianSeconds  float64 `json:"median_seconds"`
	LongestSeconds float64 `json:"longest_seconds"`
	// Attempts is how many there were.
	Attempts int `json:"attempts"`
}

// waits counts waits in buckets of which each reaches waitGrowth times as far as the one below, so that a stage of
// any number of attempts takes some hundred bytes. The zero value is empty.
type waits struct {
	buckets           []waitBucket // by exponent
	count             int
	shortest, longest float64 // seconds
}

// waitBucket counts waits of up to leastWait x waitGrowth^exponent seconds.
type waitBucket struct{ exponent, count int }

const (
	waitGrowth = 1.05
	leastWait  = 0.001 // seconds: what is shorter counts as this
)

// add counts a wait of 0 seconds or more.
func (w *waits) add(seconds float64) {
	if w.count == 0 || seconds < w.shortest {
		w.shortest = seconds
	}
	w.longest = max(w.longest, seconds)
	w.count++
	exponent := int(math.Ceil(math.Log(max(seconds, leastWait)/leastWait)/math.Log(waitGrowth) - 1e-9))
	i, known := slices.BinarySearchFunc(w.buckets, exponent, func(b waitBucket, exponent int) int {
		return cmp.Compare(b.exponent, exponent)
	})
	if !known {
		w.buckets = slices.Insert(w.buckets, i, waitBucket{exponent: exponent})
	}
	w.buckets[i].count++
}

// view is what others see of the waits. The median is the lower of the middle two.
func (w *waits) view() Wait {
	seen := Wait{LongestSeconds: w.longest, Attempts: w.count}
	below := 0
	for _, bucket := range w.buckets {
		if below += bucket.count; below >= (w.count+1)/2 {
			bound := leastWait * math.Pow(waitGrowth, float64(bucket.exponent))
			seen.MedianSeconds = min(max(bound, w.shortest), w.longest)
			break
		}
	}
	return seen
}
