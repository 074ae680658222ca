package search

import (
	"fmt"
	"math"
)

// Ahead is what the curve of a trial says of the objective that it would end with, had it all there is.
type Ahead struct {
	// Best is the objective that it comes to at most: with one chance in twenty it ends with a better one.
	Best float64
	// Before is the best objective that it had when it had had one part in Eta of what it has had now; NaN where nobody
	// knows. From the second rung on it is what the trial told at the end of the rung below, and is not looked at.
	Before float64
}

// Expect tells what is expected of a trial where it is now, after the report of its last job. ASHA promotes no trial
// that is out by it: see [Place]. What is no number is passed over. What was not asked for is refused.
func (s *Search) Expect(trial int, ahead Ahead) error {
	if trial < 0 || trial >= len(s.trials) || s.trials[trial].running || len(s.trials[trial].objective) == 0 {
		return fmt.Errorf("expect of trial %d: it has not told where it is", trial)
	}
	if s.options.Maximise {
		ahead.Best, ahead.Before = -ahead.Best, -ahead.Before
	}
	if !math.IsNaN(ahead.Best) {
		s.trials[trial].ahead = &ahead
	}
	return nil
}

// slower is how much more the objective may gain than it gained lately, and a trial is out all the same.
const slower = 2

// out reports whether a trial that waits is not worth going on: by its curve it would end worse than one that came
// further stands already, with nineteen chances in twenty, and it would as well were it to gain twice as much from rung
// to rung as in the last one. The second is for learning rates that fall at the end, of which a curve shows nothing
// before: of trainings whose curve was flat by then, some ended as the best of their pool. Losses as a power of the
// steps gain less from rung to rung.
func (s *Search) out(i int) bool {
	t := s.trials[i]
	if t.ahead == nil || s.options.Algorithm != ASHA {
		return false
	}
	best, found := s.bestAbove(t.rung)
	if !found || !(t.ahead.Best > best) {
		return false
	}
	now, before := s.at(i, t.rung), t.ahead.Before
	if t.rung > t.first {
		before = s.at(i, t.rung-1)
	}
	gain := max(before-now, 0) * float64(s.Rungs()-1-t.rung)
	return now-slower*gain > best // not where it is NaN
}

// bestAbove is the best objective that was told at the end of a rung above one.
func (s *Search) bestAbove(rung int) (best float64, found bool) {
	best = math.Inf(1)
	for above := rung + 1; above < s.Rungs(); above++ {
		if ended := s.ended[above]; len(ended) > 0 {
			best = min(best, s.at(ended[0], above))
		}
	}
	return best, !math.IsInf(best, 1)
}
