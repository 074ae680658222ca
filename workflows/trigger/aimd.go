package trigger

import "time"

// The bounds of how many starts may be under way at a time, and where it begins.
const (
	fewestStarts = 2
	firstStarts  = 16
	mostStarts   = 64
)

// What a start may take before it counts as slow: slowFactor times the quickest of late, so that a Temporal far away is
// not taken for a busy one, within these bounds. The upper one is a quarter of what the Temporal client allows one
// request.
const (
	slowFactor = 8
	leastSlow  = 500 * time.Millisecond
	mostSlow   = 2500 * time.Millisecond
)

// How the limit changes: by one for each limit of quick starts, by these factors after a slow and a failed one.
const (
	afterSlow    = 0.8
	afterFailure = 0.5
	// forgetting is by how much the quickest start of late is taken for slower with each start, so that it follows a
	// server that has changed.
	forgetting = 1.0005
)

// aimd says how many starts of runs may be under way at a time, by how long starts take. It is additive increase and
// multiplicative decrease: Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in
// Computer Networks" (1989), applied to calls as in AIMDLimit of https://github.com/Netflix/concurrency-limits. What is
// bounded is the time that a start waits in the server, and with it what the work of the runs that go on waits there;
// the server never idles for lack of starts, because where starts are quick the limit grows.
//
// Its methods are pure. The zero value is not useful; use newAIMD. Times are since any fixed moment.
type aimd struct {
	limit    float64
	quickest time.Duration // of late; 0 before the first
	cut      time.Duration // when the limit was lowered last: what began before that tells nothing of the new one
}

// sample is one start that is over.
type sample struct {
	began, ended time.Duration
	// failed says that it failed for a reason that may pass: a deadline, or a server that is away.
	failed bool
	// full says that no other start could have been under way with it: only then does a quick one call for more.
	full bool
}

func newAIMD() aimd { return aimd{limit: firstStarts} }

// starts is how many may be under way now.
func (l aimd) starts() int { return int(l.limit) }

// slow is what a start may take.
func (l aimd) slow() time.Duration { return min(max(slowFactor*l.quickest, leastSlow), mostSlow) }

// after is the limiter once s is known.
func (l aimd) after(s sample) aimd {
	took := s.ended - s.began
	if !s.failed {
		if known := time.Duration(float64(l.quickest) * forgetting); l.quickest == 0 || took < known {
			l.quickest = max(took, 1)
		} else {
			l.quickest = known
		}
	}
	switch {
	case s.failed:
		return l.lowered(s, afterFailure)
	case took > l.slow():
		return l.lowered(s, afterSlow)
	case s.full:
		l.limit = min(l.limit+1/l.limit, mostStarts)
	}
	return l
}

// lowered is the limiter after a sample that calls for fewer starts; of those that were under way at a time only the
// first counts.
func (l aimd) lowered(s sample, factor float64) aimd {
	if s.began < l.cut {
		return l
	}
	l.limit, l.cut = max(l.limit*factor, fewestStarts), s.ended
	return l
}
