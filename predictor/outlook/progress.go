package outlook

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Progress is how far a running attempt is by its own word, and when it ends by that.
type Progress struct {
	Stage string `json:"stage"`
	Task  string `json:"task"`
	// Attempt counts the attempts of the task from 1.
	Attempt int `json:"attempt"`
	// Step is how much is done: steps, rows or bytes; Of is how much there is to do, 0 where it did not say.
	Step int `json:"step"`
	Of   int `json:"of,omitempty"`
	// Left is in how many seconds from now it ends; zero where nothing tells.
	Left fact.Interval `json:"left_seconds,omitzero"`
	// PerSecond is what it does in a second by its own word, by what: samples, tokens; nil where it does not say.
	PerSecond map[string]float64 `json:"per_second,omitempty"`
}

// mostProgress is of how many attempts of a run is told.
const mostProgress = 64

// ProgressOf is how far the attempts of each of these runs are that go on and say so, those that end last first, of
// each run at most 64.
func ProgressOf(m *memory.State, now fact.Instant, runs map[string]bool) map[string][]Progress {
	found := map[string][]Progress{}
	for _, one := range m.Reporting() {
		if running := one.Attempt; runs[running.Run] && one.Task != "" {
			found[running.Run] = append(found[running.Run], Progress{
				Stage: running.Stage().Name, Task: one.Task, Attempt: one.Number, Step: one.Step, Of: one.Of,
				Left: leftOf(m, running, now), PerSecond: one.PerSecond,
			})
		}
	}
	for run, of := range found {
		slices.SortFunc(of, func(a, b Progress) int {
			return cmp.Or(cmp.Compare(b.Left.Mid, a.Left.Mid), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Task, b.Task))
		})
		found[run] = of[:min(len(of), mostProgress)]
	}
	return found
}

// leftOf is in how many seconds an attempt ends that says how far it is; zero where its word tells nothing of that.
func leftOf(m *memory.State, running memory.Attempt, now fact.Instant) fact.Interval {
	told, known := m.ByProgress(running, now)
	if !known {
		return fact.Interval{}
	}
	cores := m.Grants[running.Key].CPU.Cores()
	if running.Venue == fact.Function {
		cores = size.ClassCores(m.Stages[running.Stage()].Class)
	}
	age, times := m.Age(running, now), m.Stages[running.Stage()].Model.Times(running.Venue, cores)
	mean, _ := times.Mean()
	left := m.Goes(running, now, age, times, times.Residual(age, mean))
	square := math.Log1p(told.Now.Variation * told.Now.Variation)
	mid := left * math.Exp(-square/2)
	around := math.Exp(usage.Normal80 * math.Sqrt(square))
	return fact.Interval{Low: mid / around, Mid: mid, High: atMost(mid*around, longestRun)}
}
