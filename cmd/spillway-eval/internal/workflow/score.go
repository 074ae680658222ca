package workflow

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor"
)

// enough is how many tasks of a process must have ended before what is expected of the next ones is scored.
const enough = 5

// worstError caps what one wrong time adds to a mean: times a hundredfold off are no worse than times fivefold off.
const worstError = 5

// Score sums up how tasks went. The zero value is that of no task.
type Score struct {
	// Tasks are all, Failures the attempts that ran out of memory.
	Tasks, Failures int
	// Wastage is the memory that was held and not used, in GB h: all that attempts held which ran out of memory, and the
	// part above the peak of those that did not.
	Wastage float64
	// Scored are the tasks that enter what follows.
	Scored int
	// WallMedian and WallMean are of |expected - actual| / actual of the run time, each at most worstError.
	WallMedian, WallMean float64
	// CoveredPeaks and CoveredWalls are the parts of the tasks whose peak or run time is within its interval.
	CoveredPeaks, CoveredWalls float64
	// PeakInterval and WallInterval are the mean interval scores of the logarithms (see intervalScore).
	PeakInterval, WallInterval float64
}

// ScoreOf scores the outcomes of one workflow or of several.
func ScoreOf(outcomes []Outcome) Score {
	score := Score{Tasks: len(outcomes)}
	var errors []float64
	for _, o := range outcomes {
		peak, wall := float64(o.Peak), o.Run.Seconds()
		held := o.Limit - peak
		for _, limit := range o.Failed {
			held += limit
		}
		score.Failures += len(o.Failed)
		score.Wastage += held * o.Run.Hours() / 1e9
		if o.Known < enough {
			continue
		}
		errors = append(errors, min(math.Abs(o.First.Wall.Mid-wall)/wall, worstError))
		score.CoveredPeaks += covered(o.First.Peak, peak)
		score.CoveredWalls += covered(o.First.Wall, wall)
		score.PeakInterval += intervalScore(o.First.Peak, peak, 1)
		score.WallInterval += intervalScore(o.First.Wall, wall, 0.001)
	}
	if score.Scored = len(errors); score.Scored == 0 {
		return score
	}
	for _, mean := range []*float64{
		&score.CoveredPeaks, &score.CoveredWalls, &score.PeakInterval, &score.WallInterval,
	} {
		*mean /= float64(score.Scored)
	}
	for _, e := range errors {
		score.WallMean += e / float64(len(errors))
	}
	score.WallMedian = median(errors)
	return score
}

func covered(interval predictor.Interval, actual float64) float64 {
	if interval.Low <= actual && actual <= interval.High {
		return 1
	}
	return 0
}

// intervalScore is the interval score of Winkler (Gneiting and Raftery, Strictly proper scoring rules, 2007, equation
// 43) for the middle 80 percent, of natural logarithms: the width of the interval, and ten times by how much the actual
// is outside. 0.69 is an interval that spans a factor of two and holds the actual. What is below least counts as that.
func intervalScore(interval predictor.Interval, actual, least float64) float64 {
	low, high := math.Log(max(interval.Low, least)), math.Log(max(interval.High, least))
	y := math.Log(max(actual, least))
	const outside = 2 / 0.2
	return high - low + outside*(max(0, low-y)+max(0, y-high))
}

// median is the middle of the values, the mean of two where there are two; 0 without any.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}
