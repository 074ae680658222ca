package curve

import (
	"fmt"
	"math"
	"slices"
)

// Workload is what earlier runs of a workload were like. The zero value knows none. It does not change, and any number
// of runs may be fitted beside it at once.
type Workload struct {
	direction Direction
	runs      []earlier
	// levels are the losses of all runs, evenly over the logarithm of their steps, in order.
	levels []float64
	// paces is by how much runs differ in how many steps they take to the same level, as a logarithm.
	paces float64
}

// earlier is one earlier run.
type earlier struct {
	trace
	// logs are the logarithms of the steps, ranks where the losses are among the levels.
	logs, ranks []float64
}

// NewWorkload learns from the points of earlier runs, in any order of the runs, all in the same direction and counted
// in the same steps. What a run of fewer than two usable points was like is not known; it is left out. The error wraps
// [ErrStep], [ErrOrder] or [ErrDirection].
func NewWorkload(direction Direction, runs ...[]Point) (*Workload, error) {
	if err := direction.check(); err != nil {
		return nil, fmt.Errorf("learn from earlier runs: %w", err)
	}
	w := &Workload{direction: direction}
	for i, points := range runs {
		if err := check(points); err != nil {
			return nil, fmt.Errorf("learn from run %d of %d: %w", i+1, len(runs), err)
		}
		t := traced(points, direction)
		if len(t.steps) < 2 {
			continue
		}
		w.runs = append(w.runs, earlier{trace: t})
		w.levels = append(w.levels, t.thinned(mostPoints).best...)
	}
	slices.Sort(w.levels)
	for r := range w.runs {
		run := &w.runs[r]
		for i, step := range run.steps {
			run.logs, run.ranks = append(run.logs, math.Log(step)), append(run.ranks, w.rank(run.best[i]))
		}
	}
	w.paces = w.pace()
	return w, nil
}

// Runs is how many runs are known.
func (w *Workload) Runs() int {
	if w == nil {
		return 0
	}
	return len(w.runs)
}

// leastPace is by how much runs of the same configuration differ.
const leastPace = 0.05

// pace is the median, over levels and runs, of how far a run's steps to a level are from the middle run's.
func (w *Workload) pace() float64 {
	var apart []float64
	for q := 1; q < 10 && len(w.levels) > 0; q++ {
		level := w.levels[len(w.levels)*q/10]
		var logs []float64
		for _, run := range w.runs {
			if s := run.first(level); !math.IsInf(s, 1) && s > run.steps[0] {
				logs = append(logs, math.Log(s))
			}
		}
		slices.Sort(logs)
		for _, log := range logs {
			apart = append(apart, math.Abs(log-logs[len(logs)/2]))
		}
	}
	if len(apart) == 0 {
		return leastPace
	}
	slices.Sort(apart)
	return math.Max(leastPace, apart[len(apart)/2])
}

// rank is where a loss is among the levels, from 0, the best, to 1: losses of all sizes are compared alike.
func (w *Workload) rank(loss float64) float64 {
	n := len(w.levels)
	i, _ := slices.BinarySearch(w.levels, loss)
	switch i {
	case 0:
		return 0
	case n:
		return 1
	}
	low, high := w.levels[i-1], w.levels[i]
	return (float64(i-1) + (loss-low)/(high-low)) / float64(n-1)
}

// loss is the inverse of rank; below 0 it is -Inf, which no run ever reached.
func (w *Workload) loss(rank float64) float64 {
	n := len(w.levels)
	at := rank * float64(n-1)
	if !(at > 0) {
		return math.Inf(-1)
	}
	i := min(int(at), n-2)
	return w.levels[i] + math.Min(1, at-float64(i))*(w.levels[i+1]-w.levels[i])
}

// at is the rank of an earlier run by a step, between its points on the logarithmic axis.
func (e *earlier) at(log float64) float64 {
	i, found := slices.BinarySearch(e.logs, log)
	switch {
	case i == len(e.logs):
		return e.ranks[i-1]
	case found || i == 0:
		return e.ranks[i]
	}
	part := (log - e.logs[i-1]) / (e.logs[i] - e.logs[i-1])
	return e.ranks[i-1] + part*(e.ranks[i]-e.ranks[i-1])
}

// ended says whether the run had ended by a step.
func (e *earlier) ended(log float64) bool { return log > e.logs[len(e.logs)-1]+1e-9 }
