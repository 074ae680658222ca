package outlook

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Forecast is what is expected of a run that goes on.
type Forecast struct {
	// Finish is in how many seconds from now it ends, and Cost what it will have cost altogether by then, in US dollars.
	Finish, Cost fact.Interval
	// Runs is on how many earlier runs this rests, at least 1. Of one, the intervals are [usage.Series.AcrossRuns]: a
	// guess.
	Runs int
}

// ForecastOf compares the run with the earlier runs of its pipeline that called the same stages first, in the same
// order, and reused results of the same: what is left is what they took less the time that passed, but for the wait
// for the first attempt, and the interval is their spread. known is false for runs that are unknown or over, and when
// no earlier run is alike or this run already took longer than all that are.
func ForecastOf(m *memory.State, run string, now time.Time) (forecast Forecast, known bool) {
	if m.Runs[run] == nil || !m.Runs[run].Known {
		return Forecast{}, false
	}
	r := m.Runs[run]
	elapsed := m.Elapsed(r, memory.At(now))
	var took, cost usage.Series
	for _, earlier := range m.Alike(r) {
		if earlier.Seconds > elapsed {
			took.Push(earlier.Seconds, memory.MaxRunsKept)
			cost.Push(earlier.Cost.USD(), memory.MaxRunsKept)
		}
	}
	if len(took.Values) == 0 {
		return Forecast{}, false
	}
	return Forecast{
		Finish: took.AcrossRuns().From(-elapsed).AtLeast(0),
		Cost:   cost.AcrossRuns().AtLeast(r.Spent.USD()),
		Runs:   len(took.Values),
	}, true
}
