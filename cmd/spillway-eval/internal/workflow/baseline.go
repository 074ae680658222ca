package workflow

import "github.com/spillway-ml/spillway/predictor"

// Past is what has ended of one process, in the order in which it was complete.
type Past struct {
	// Inputs and Peaks are in bytes, Walls in seconds; one of each for every task.
	Inputs, Peaks, Walls []float64
}

// Rule answers for the next attempt of a task from what has ended of its process.
type Rule func(past Past, task Known, failed []float64) Answer

// Of makes a Policy of a rule.
func Of(rule Rule) Policy { return &ruled{rule: rule, past: map[string]*Past{}} }

type ruled struct {
	rule Rule
	past map[string]*Past
}

// Size implements Policy.
func (r *ruled) Size(task Known, failed []float64) (Answer, error) {
	return r.rule(*r.of(task), task, failed), nil
}

// RanOut implements Policy.
func (r *ruled) RanOut(Known, float64) error { return nil }

// Ended implements Policy.
func (r *ruled) Ended(task Known, took Took) error {
	past := r.of(task)
	past.Inputs = append(past.Inputs, task.Input)
	past.Peaks = append(past.Peaks, took.Peak)
	past.Walls = append(past.Walls, took.Wall.Seconds())
	return nil
}

func (r *ruled) of(task Known) *Past {
	if r.past[task.Process] == nil {
		r.past[task.Process] = &Past{}
	}
	return r.past[task.Process]
}

// Requested gives what the workflow asks for, and twice as much each time that it was not enough.
func Requested(_ Past, task Known, failed []float64) Answer {
	return Answer{Limit: doubled(task.Requested, failed)}
}

// doubled is the limit, or twice the last one that was not enough.
func doubled(limit float64, failed []float64) float64 {
	if len(failed) > 0 {
		return 2 * failed[len(failed)-1]
	}
	return limit
}

// last is how many of the latest tasks the plain expectations of time and memory rest on.
const last = 32

// Last32 expects the middle 80 percent of the latest 32 tasks, by nearest rank, and their median.
func Last32(past Past, task Known, failed []float64) Answer {
	answer := Requested(past, task, failed)
	answer.Peak, answer.Wall = middle(latest(past.Peaks)), middle(latest(past.Walls))
	return answer
}

func latest(values []float64) []float64 { return values[max(0, len(values)-last):] }

func middle(values []float64) predictor.Interval {
	if len(values) == 0 {
		return predictor.Interval{}
	}
	return predictor.Interval{Low: quantile(values, 0.1), Mid: quantile(values, 0.5), High: quantile(values, 0.9)}
}
