package pipelines

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor"
)

// Score is how good answers were.
type Score struct {
	// Questions is how many were asked, Known the part that had an answer.
	Questions int
	Known     float64
	// Error is the median of |expected - actual| / actual of the seconds that were left, CostError of the cost; what has
	// no answer is off by 1.
	Error, CostError float64
	// Covered is the part of the answers, 0 where there is none, whose interval held what came, CostCovered of the cost.
	Covered, CostCovered float64
	// Width is the median of High / Low of the seconds that were left.
	Width float64
}

// ScoreOf scores the answers that pick takes of the questions.
func ScoreOf(asked []Question, pick func(Question) Answer) Score {
	s := Score{Questions: len(asked)}
	var errors, costs, widths []float64
	for _, q := range asked {
		answer := pick(q)
		if !answer.Known {
			errors, costs = append(errors, 1), append(costs, 1)
			continue
		}
		s.Known++
		errors = append(errors, math.Abs(answer.Left.Mid-q.Left)/q.Left)
		costs = append(costs, math.Abs(answer.Cost.Mid-q.Cost)/q.Cost)
		widths = append(widths, answer.Left.High/answer.Left.Low)
		s.Covered += within(answer.Left, q.Left)
		s.CostCovered += within(answer.Cost, q.Cost)
	}
	if s.Known > 0 {
		s.Covered, s.CostCovered = s.Covered/s.Known, s.CostCovered/s.Known
		s.Known /= float64(len(asked))
	}
	s.Error, s.CostError, s.Width = median(errors), median(costs), median(widths)
	return s
}

func within(told predictor.Interval, came float64) float64 {
	const rounding = 1e-9
	if told.Low*(1-rounding) <= came && came <= told.High*(1+rounding) {
		return 1
	}
	return 0
}

// median is 0 of nothing.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)/2]
}
