package arrivals

import (
	"context"
	"math"
)

// Levels are those of the quantiles that are scored; the outer two are the interval for 80 %.
var Levels = [3]float64{0.1, 0.5, 0.9}

// Forecaster is what is measured.
type Forecaster interface {
	// Observe takes the count of the next bucket, NaN where it is missing.
	Observe(count float64)
	// Quantile is that of the count a fixed number of buckets after the latest; NaN where it knows none.
	Quantile(level float64) float64
}

// Score is how far forecasts were from what came.
type Score struct {
	// Pinball is the mean over buckets and Levels of the pinball loss, arrivals: level times what came above the
	// quantile, 1 - level times what came below it.
	Pinball float64
	// Covered is the part of the buckets whose count was within the interval for 80 %, its ends included.
	Covered float64
	// Buckets is how many were scored.
	Buckets int
}

// Replay tells every forecaster the counts of the trace and scores what each said ahead buckets before, of the buckets
// from on whose count is known and of which all of them said something. Without such a bucket there are no scores.
func Replay(ctx context.Context, trace Trace, ahead, from int, all map[string]Forecaster) (map[string]Score, error) {
	said := map[string][][len(Levels)]float64{}
	scores := map[string]Score{}
	for i, count := range trace.Counts {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if i >= max(from, ahead) && !math.IsNaN(count) && everyone(said, i-ahead) {
			for name := range all {
				scores[name] = scores[name].plus(said[name][i-ahead], count)
			}
		}
		for name, forecaster := range all {
			forecaster.Observe(count)
			var quantiles [len(Levels)]float64
			for j, level := range Levels {
				quantiles[j] = forecaster.Quantile(level)
			}
			said[name] = append(said[name], quantiles)
		}
	}
	for name, score := range scores {
		score.Pinball /= float64(score.Buckets * len(Levels))
		score.Covered /= float64(score.Buckets)
		scores[name] = score
	}
	return scores, nil
}

// everyone says whether all forecasts that were made after bucket i are numbers.
func everyone(said map[string][][len(Levels)]float64, i int) bool {
	for _, of := range said {
		for _, quantile := range of[i] {
			if math.IsNaN(quantile) {
				return false
			}
		}
	}
	return true
}

// plus adds one bucket; Pinball and Covered are sums until the end of a replay.
func (s Score) plus(quantiles [len(Levels)]float64, count float64) Score {
	for i, level := range Levels {
		s.Pinball += math.Max(level*(count-quantiles[i]), (level-1)*(count-quantiles[i]))
	}
	if quantiles[0] <= count && count <= quantiles[len(Levels)-1] {
		s.Covered++
	}
	s.Buckets++
	return s
}
