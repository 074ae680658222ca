package pipelines

import (
	"slices"

	"github.com/spillway-ml/spillway/predictor"
)

// EarlierRuns is the rule of Spillway until November 2026, a baseline: a run takes what the latest eight runs of its
// pipeline took, whatever its input, less the time that has passed. The interval is the 10th to the 90th percentile;
// of one run half to twice.
type EarlierRuns struct{ seconds, dollars []float64 }

const mostEarlier = 8

func (e *EarlierRuns) ended(_ pipeline, r run, was span) {
	cost := 0.0
	for _, task := range slices.Concat(r.stages...) {
		cost += task.Cost.USD()
	}
	e.seconds = append(e.seconds, was.end.Sub(was.start).Seconds())
	e.dollars = append(e.dollars, cost)
	if len(e.seconds) > mostEarlier {
		e.seconds, e.dollars = e.seconds[1:], e.dollars[1:]
	}
}

// answer is what is expected of a run that has gone on for so many seconds.
func (e *EarlierRuns) answer(elapsed float64) Answer {
	var took, cost []float64
	for i, seconds := range e.seconds {
		if seconds > elapsed {
			took, cost = append(took, seconds), append(cost, e.dollars[i])
		}
	}
	if len(took) == 0 {
		return Answer{}
	}
	return Answer{Known: true, Left: across(took).From(-elapsed).AtLeast(0), Cost: across(cost)}
}

// across is the middle 80 percent of values by their nearest ranks.
func across(values []float64) predictor.Interval {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 1 {
		return predictor.Interval{Low: sorted[0] / 2, Mid: sorted[0], High: sorted[0] * 2}
	}
	at := func(tenths int) float64 { return sorted[max(0, (tenths*len(sorted)+9)/10-1)] }
	return predictor.Interval{Low: at(1), Mid: at(5), High: at(9)}
}
