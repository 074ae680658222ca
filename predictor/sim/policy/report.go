package policy

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TolerablyLate is the part of tasks that may be late with the best policy: its 99th percentile is in time.
const TolerablyLate = 0.01

// Score is what a policy comes to.
type Score struct {
	Policy string `json:"policy"`
	// Best says that none whose late tasks are tolerable costs less; or, where no policy's are, that none is late less
	// often. Of several it is the first.
	Best bool `json:"best"`
	// Cost is that of hosts and functions.
	Cost         quantity.Money `json:"cost_picodollars"`
	HostCost     quantity.Money `json:"host_cost_picodollars"`
	FunctionCost quantity.Money `json:"function_cost_picodollars"`
	// P50, P95 and P99 are percentiles (nearest rank) of the time from arrival to end.
	P50 float64 `json:"p50_seconds"`
	P95 float64 `json:"p95_seconds"`
	P99 float64 `json:"p99_seconds"`
	// Late is the part of tasks that end later than the limit after they came.
	Late float64 `json:"late_ratio"`
	// MostHosts is how many hosts were paid at once at most.
	MostHosts int `json:"hosts_at_most"`
	// OnFunctions is the part of tasks that functions ran, Cold that for which one had to start.
	OnFunctions float64 `json:"on_functions_ratio"`
	Cold        float64 `json:"cold_ratio"`
}

// ScoreOf is what an outcome of at least one arrival comes to, of which those are late that took longer than limit.
func ScoreOf(policy string, outcome Outcome, limit time.Duration) Score {
	sorted := slices.Sorted(slices.Values(outcome.Latencies))
	rank := func(q float64) float64 {
		return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)].Seconds()
	}
	inTime, _ := slices.BinarySearch(sorted, limit+1)
	part := func(n int) float64 { return float64(n) / float64(len(sorted)) }
	return Score{
		Policy: policy, Cost: outcome.Cost(), HostCost: outcome.HostCost, FunctionCost: outcome.FunctionCost,
		P50: rank(0.50), P95: rank(0.95), P99: rank(0.99), Late: part(len(sorted) - inTime),
		MostHosts: outcome.MostHosts, OnFunctions: part(outcome.Spilled), Cold: part(outcome.Cold),
	}
}

// MarkBest marks the best of the scores; nothing where there are none.
func MarkBest(scores []Score) {
	best := -1
	for i, score := range scores {
		if best < 0 || better(score, scores[best]) {
			best = i
		}
	}
	for i := range scores {
		scores[i].Best = i == best
	}
}

func better(a, b Score) bool {
	tolerable := a.Late <= TolerablyLate
	switch {
	case tolerable != (b.Late <= TolerablyLate):
		return tolerable
	case tolerable:
		return a.Cost < b.Cost
	default:
		return cmp.Or(cmp.Compare(a.Late, b.Late), cmp.Compare(a.Cost, b.Cost)) < 0
	}
}
