package workflow

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/cmd/internal/series"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/usage"
)

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
func (r *ruled) Size(_ context.Context, task Known, failed []float64) (Answer, error) {
	return r.rule(*r.of(task), task, failed), nil
}

// RanOut implements Policy.
func (r *ruled) RanOut(context.Context, Known, float64) error { return nil }

// Ended implements Policy.
func (r *ruled) Ended(_ context.Context, task Known, took Took) error {
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

// WittPercentile gives the 95th percentile of the peaks of the process, and twice as much each time that it was not
// enough: the percentile predictor of Witt, van Santen and Leser, Feedback-based resource allocation for batch
// scheduling of scientific workflows, HPCS 2019, as the authors of Sizey run it.
func WittPercentile(past Past, task Known, failed []float64) Answer {
	if len(past.Peaks) < enough {
		return Requested(past, task, failed)
	}
	sorted := slices.Sorted(slices.Values(past.Peaks))
	rank := 0.95 * float64(len(sorted)-1)
	below := int(rank)
	above := min(below+1, len(sorted)-1)
	limit := sorted[below] + (rank-float64(below))*(sorted[above]-sorted[below])
	return Answer{Limit: doubled(limit, failed)}
}

// NewWittRegression is the linear regression of the same paper, its offset the standard deviation: the line through the
// peaks over the inputs by least squares, raised by the standard deviation of the relative errors that the lines before
// made, each about the next task that ended. What was not enough is doubled, what was below zero becomes the largest
// peak.
func NewWittRegression() Rule {
	type known struct {
		ended    int // tasks
		relative []float64
	}
	errors := map[string]*known{}
	return func(past Past, task Known, failed []float64) Answer {
		if len(past.Peaks) < enough {
			return Requested(past, task, failed)
		}
		of := errors[task.Process]
		if of == nil {
			of = &known{ended: enough}
			errors[task.Process] = of
		}
		for ; of.ended < len(past.Peaks); of.ended++ {
			said := leastSquares(past.Inputs[:of.ended], past.Peaks[:of.ended]).at(past.Inputs[of.ended])
			of.relative = append(of.relative, (past.Peaks[of.ended]-said)/past.Peaks[of.ended])
		}
		switch n := len(failed); {
		case n == 0:
			limit := leastSquares(past.Inputs, past.Peaks).at(task.Input)
			return Answer{Limit: max(1, limit*(1+deviation(of.relative)))}
		case failed[n-1] <= 1:
			return Answer{Limit: slices.Max(past.Peaks)}
		}
		return Answer{Limit: doubled(0, failed)}
	}
}

// NewWittLowWastage is the low-wastage regression of Witt, Wagner and Leser, Learning low-wastage memory allocations
// for scientific workflows at IceCube, HPCS 2019: the line that would have wasted the least on the tasks before, with
// every failure lasting its full time and doubling the limit. The authors search it with COBYLA from quantile
// regressions, once, on ten samples of a training set. Here it is found anew whenever a task has ended, on all of them,
// among slopes that are quantiles of those between tasks and levels that are quantiles of the rests.
func NewWittLowWastage() Rule {
	type known struct {
		ended int
		line  line
	}
	lines := map[string]known{}
	return func(past Past, task Known, failed []float64) Answer {
		if len(past.Peaks) < enough {
			return Requested(past, task, failed)
		}
		of := lines[task.Process]
		if of.ended != len(past.Peaks) {
			of = known{len(past.Peaks), leastWasteful(past)}
			lines[task.Process] = of
		}
		low, high := slices.Min(past.Peaks), slices.Max(past.Peaks)
		return Answer{Limit: doubled(max(of.line.at(task.Input), low+0.01*(high-low)), failed)}
	}
}

// leastWasteful is the line of NewWittLowWastage.
func leastWasteful(past Past) line {
	n := len(past.Peaks)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(past.Inputs[a], past.Inputs[b]) })
	var between []float64
	for i := range n - n/2 {
		from, to := order[i], order[i+n/2]
		if run := past.Inputs[to] - past.Inputs[from]; run > 0 {
			between = append(between, (past.Peaks[to]-past.Peaks[from])/run)
		}
	}
	slopes := []float64{0, leastSquares(past.Inputs, past.Peaks).slope}
	slices.Sort(between)
	for i := 0; i < 16 && len(between) > 0; i++ {
		slopes = append(slopes, between[i*(len(between)-1)/15])
	}
	best, least := line{}, math.Inf(1)
	rests := make([]float64, n)
	for _, slope := range slopes {
		for i := range rests {
			rests[i] = past.Peaks[i] - slope*past.Inputs[i]
		}
		levels := slices.Sorted(slices.Values(rests))
		for i := range 17 { // from the median to the largest
			candidate := line{level: levels[(n-1)*(16+i)/32], slope: slope}
			if wasted := candidate.waste(past); wasted < least {
				best, least = candidate, wasted
			}
		}
	}
	return best
}

// waste is what limits on the line would have wasted, doubled until they were enough, in bytes times seconds.
func (l line) waste(past Past) float64 {
	low, high := slices.Min(past.Peaks), slices.Max(past.Peaks)
	total := 0.0
	for i, peak := range past.Peaks {
		total += wasted(max(l.at(past.Inputs[i]), low+0.01*(high-low)), peak) * past.Walls[i]
	}
	return total
}

// wasted is what a limit above 0 wastes that is doubled until it is enough.
func wasted(limit, peak float64) float64 {
	total := 0.0
	for ; limit < peak; limit *= 2 {
		total += limit
	}
	return total + limit - peak
}

// tovarNode is the memory of the nodes for which the authors of Sizey compared.
const tovarNode = 128e9

// Tovar gives the peak, of those that were seen, at which the peak times the time of all tasks and the largest peak
// times the time of those above it are the least together; what was not enough gets the largest peak, then a whole node
// of 128 GB, then twice as much: the first allocation of least waste of Tovar et al., A job sizing strategy for
// high-throughput scientific workflows, IEEE TPDS 2018, equation 1.
func Tovar(past Past, task Known, failed []float64) Answer {
	if len(past.Peaks) < enough {
		if len(failed) > 0 {
			return Answer{Limit: max(tovarNode, doubled(0, failed))}
		}
		return Requested(past, task, failed)
	}
	largest := slices.Max(past.Peaks)
	if n := len(failed); n > 0 {
		if largest > failed[n-1] {
			return Answer{Limit: largest}
		}
		return Answer{Limit: max(tovarNode, doubled(0, failed))}
	}
	all := 0.0
	for _, wall := range past.Walls {
		all += wall
	}
	order := make([]int, len(past.Peaks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(past.Peaks[b], past.Peaks[a]) })
	best, least, above := largest, math.Inf(1), 0.0
	for i := 0; i < len(order); {
		candidate := past.Peaks[order[i]]
		if price := candidate*all + largest*above; price <= least {
			best, least = candidate, price
		}
		for ; i < len(order) && past.Peaks[order[i]] == candidate; i++ {
			above += past.Walls[order[i]]
		}
	}
	return Answer{Limit: best}
}

// NewHindsight gives each process the constant that wastes the least on these very tasks, doubled where it is not
// enough: no constant is better, and nobody knows it in time. With the constant, waste grows until a task needs one
// attempt less, so the best one is a peak, or one halved a few times.
func NewHindsight(tasks []series.Task) Rule {
	processes := map[string]Past{}
	for _, task := range tasks {
		of := processes[task.Process]
		of.Peaks, of.Walls = append(of.Peaks, float64(task.Peak)), append(of.Walls, task.Run.Seconds())
		processes[task.Process] = of
	}
	constants := map[string]float64{}
	for process, of := range processes {
		least, smallest := math.Inf(1), slices.Min(of.Peaks)
		for _, candidate := range of.Peaks {
			for ; candidate >= smallest/2; candidate /= 2 {
				total := 0.0
				for i, peak := range of.Peaks {
					total += wasted(candidate, peak) * of.Walls[i]
				}
				if total < least {
					constants[process], least = candidate, total
				}
			}
		}
	}
	return func(_ Past, task Known, failed []float64) Answer {
		return Answer{Limit: doubled(constants[task.Process], failed)}
	}
}

// last is how many of the latest tasks the plain expectations of time and memory rest on.
const last = 32

// Last32 expects the middle 80 percent of the latest 32 tasks, by nearest rank, and their median.
func Last32(past Past, task Known, failed []float64) Answer {
	answer := Requested(past, task, failed)
	answer.Peak, answer.Wall = middle(latest(past.Peaks)), middle(latest(past.Walls))
	return answer
}

// MeanWall expects the mean run time of the latest 32 tasks.
func MeanWall(past Past, task Known, failed []float64) Answer {
	return expecting(past, task, failed, mean(latest(past.Walls)))
}

// LinearWall expects the run time on the line over the inputs through all before, by least squares; 0 at least.
func LinearWall(past Past, task Known, failed []float64) Answer {
	return expecting(past, task, failed, max(0, leastSquares(past.Inputs, past.Walls).at(task.Input)))
}

// LogLogWall expects the run time on a power of the input: the line through the logarithms of all before. An input of
// nothing counts as a byte.
func LogLogWall(past Past, task Known, failed []float64) Answer {
	logarithms := func(values []float64, least float64) []float64 {
		logs := make([]float64, len(values))
		for i, value := range values {
			logs[i] = math.Log(max(value, least))
		}
		return logs
	}
	fitted := leastSquares(logarithms(past.Inputs, 1), logarithms(past.Walls, 0.001))
	return expecting(past, task, failed, math.Exp(min(fitted.at(math.Log(max(task.Input, 1))), 50)))
}

// expecting is the request with an expected run time.
func expecting(past Past, task Known, failed []float64, wall float64) Answer {
	answer := Requested(past, task, failed)
	answer.Wall = predictor.Interval{Low: wall, Mid: wall, High: wall}
	return answer
}

func latest(values []float64) []float64 { return values[max(0, len(values)-last):] }

func middle(values []float64) predictor.Interval {
	if len(values) == 0 {
		return predictor.Interval{}
	}
	all := usage.Series{Values: values}
	return predictor.Interval{Low: all.Quantile(0.1), Mid: median(values), High: all.Quantile(0.9)}
}

// line is level + slope x.
type line struct{ level, slope float64 }

func (l line) at(x float64) float64 { return l.level + l.slope*x }

// leastSquares is the line through points by least squares; flat where x does not vary.
func leastSquares(x, y []float64) line {
	meanX, meanY := mean(x), mean(y)
	xx, xy := 0.0, 0.0
	for i := range x {
		xx += (x[i] - meanX) * (x[i] - meanX)
		xy += (x[i] - meanX) * (y[i] - meanY)
	}
	if xx == 0 {
		return line{level: meanY}
	}
	return line{level: meanY - xy/xx*meanX, slope: xy / xx}
}

// mean is 0 without values.
func mean(values []float64) float64 {
	sum := 0.0
	for _, value := range values {
		sum += value / float64(len(values))
	}
	return sum
}

// deviation is the standard deviation of all values; 0 without any.
func deviation(values []float64) float64 {
	center, sum := mean(values), 0.0
	for _, value := range values {
		sum += (value - center) * (value - center) / float64(len(values))
	}
	return math.Sqrt(sum)
}
