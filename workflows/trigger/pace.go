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

// pace says how many starts of runs may be under way at a time, by how long starts take. It is additive increase and
// multiplicative decrease: Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in
// Computer Networks" (1989), applied to calls as in AIMDLimit of https://github.com/Netflix/concurrency-limits. What is
// bounded is the time that a start waits in the server, and with it what the work of the runs that go on waits there;
// the server never idles for lack of starts, because where starts are quick the limit grows.
//
// Its methods are pure. The zero value is not useful; use newPace. Times are since any fixed moment.
type pace struct {
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

func newPace() pace { return pace{limit: firstStarts} }

// starts is how many may be under way now.
func (p pace) starts() int { return int(p.limit) }

// slow is what a start may take.
func (p pace) slow() time.Duration { return min(max(slowFactor*p.quickest, leastSlow), mostSlow) }

// after is the pace once s is known.
func (p pace) after(s sample) pace {
	took := s.ended - s.began
	if !s.failed {
		if known := time.Duration(float64(p.quickest) * forgetting); p.quickest == 0 || took < known {
			p.quickest = max(took, 1)
		} else {
			p.quickest = known
		}
	}
	switch {
	case s.failed:
		return p.lowered(s, afterFailure)
	case took > p.slow():
		return p.lowered(s, afterSlow)
	case s.full:
		p.limit = min(p.limit+1/p.limit, mostStarts)
	}
	return p
}

// lowered is the pace after a sample that calls for fewer starts; of those that were under way at a time only the first
// counts.
func (p pace) lowered(s sample, factor float64) pace {
	if s.began < p.cut {
		return p
	}
	p.limit, p.cut = max(p.limit*factor, fewestStarts), s.ended
	return p
}
