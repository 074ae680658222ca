// Package replay runs a sizing policy over recorded series, tick by tick, and scores the limits that it would have set.
package replay

import (
	"math"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/series"
)

// Policy sets the limit of one series for the next tick from the ticks before it.
type Policy interface {
	// Limit is the limit that holds for the next tick, in the unit of the series.
	Limit() float64
	// Observe tells the use of the tick. A limit is over when the use is more than it.
	Observe(use series.Point, over bool)
}

// Protocol says which series count and how they are scored.
type Protocol struct {
	// LeastPoints is the fewest points that a series must have; shorter ones are left out.
	LeastPoints int
	// Uncounted is how many of the first ticks of each series the policy sees without being scored.
	Uncounted int
	// Censored hides what a use beyond the limit was: the policy sees the limit, and that it was exceeded. So it is when a
	// process is killed for it; without, so it is when it is slowed down or the use is known from elsewhere.
	Censored bool
}

// Score sums up what a policy did. The zero value is that of no tick; scores of several series add up.
type Score struct {
	// Ticks are all that count, Over those with more use than the limit.
	Ticks, Over int
	// Resizes are the changes of the limit by more than resizeStep of the limit at the resize before.
	Resizes int
	// Counted is the time from the first counted tick of each series to its last.
	Counted time.Duration

	slack float64 // the sum of (limit - use) / limit over the ticks within the limit
}

// resizeStep is the relative change of a limit that counts as a resize: smaller ones need not be carried out.
const resizeStep = 0.01

// MeanSlack is the part of the limit that was not used, on average over the ticks within the limit: 0 to 1.
func (s Score) MeanSlack() float64 { return ratio(s.slack, float64(s.Ticks-s.Over)) }

// OverLimit is the part of all counted ticks whose use was more than the limit: 0 to 1.
func (s Score) OverLimit() float64 { return ratio(float64(s.Over), float64(s.Ticks)) }

// ResizesPerHour is how often the limit of one series changed, per hour.
func (s Score) ResizesPerHour() float64 { return ratio(float64(s.Resizes), s.Counted.Hours()) }

func ratio(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}

// Plus returns the score of both.
func (s Score) Plus(other Score) Score {
	s.Ticks += other.Ticks
	s.Over += other.Over
	s.Resizes += other.Resizes
	s.Counted += other.Counted
	s.slack += other.slack
	return s
}

// Counts reports whether the protocol scores a series at all.
func (p Protocol) Counts(of series.Series) bool {
	return len(of.Points) >= max(p.LeastPoints, p.Uncounted+1)
}

// Run replays one series and returns its score; a series that does not count scores nothing.
func (p Protocol) Run(of series.Series, policy Policy) Score {
	var score Score
	if !p.Counts(of) {
		return score
	}
	var held float64
	for i, point := range of.Points {
		limit := policy.Limit()
		over := point.Value > limit
		resized := math.Abs(limit-held) > resizeStep*held
		if i >= p.Uncounted {
			score.Ticks++
			switch {
			case over:
				score.Over++
			case limit > 0: // nothing used of nothing held is no slack
				score.slack += (limit - point.Value) / limit
			}
			if resized && i > 0 {
				score.Resizes++
			}
		}
		if resized {
			held = limit
		}
		if over && p.Censored {
			point.Value = limit
		}
		policy.Observe(point, over)
	}
	score.Counted = of.Points[len(of.Points)-1].At.Sub(of.Points[p.Uncounted].At)
	return score
}
