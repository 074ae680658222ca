package outlook

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/curve"
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
)

// Learning is how the training of a task that runs goes by one of its metrics, and how it is expected to go on.
type Learning struct {
	Stage string `json:"stage"`
	Task  string `json:"task"`
	// Attempt is the attempt of the task that told the latest step, from 1.
	Attempt int `json:"attempt"`
	// Metric is the metric's name, and Better whether lower or higher values of it are better: "lower" or "higher".
	Metric string `json:"metric"`
	Better string `json:"better"`
	// Step is the latest step that is known, and Value the metric there: nil where that was NaN or infinite. Best is the
	// best so far, nil where there was none.
	Step  float64  `json:"step"`
	Value *float64 `json:"value"`
	Best  *float64 `json:"best"`
	// Phase is where the training is: "beginning", "learning", "plateaued" or "diverged"; see [curve.Phase].
	Phase string `json:"phase"`
	// Planned is at which step it ends, by its own word or as earlier tasks of the stage did; 0 where nothing tells.
	Planned float64 `json:"planned,omitempty"`
	// Final is the best value when it ends: at Planned, and where that is 0 whenever that may be. Nil where nothing tells,
	// and of one that has diverged.
	Final *fact.Interval `json:"final,omitempty"`
	// Earlier is on how many earlier tasks of the stage that rests, besides its own points.
	Earlier int `json:"earlier,omitempty"`
	// Ahead is the best value at steps from now to Planned, or to twice the steps so far where that is 0. Only the answer
	// for one run has it.
	Ahead []Ahead `json:"ahead,omitempty"`
}

// Ahead is how good a training is expected to be at a step.
type Ahead struct {
	Step  float64       `json:"step"`
	Value fact.Interval `json:"value"`
}

const (
	// mostLearning is of how many tasks of a run is told.
	mostLearning = 64
	// lookedAhead is at how many steps of a training is told how good it will be.
	lookedAhead = 12
)

// LearningOf is how the trainings of tasks of these runs go: those that have diverged first, then those that have
// plateaued, of each run at most 64. With ahead, it has how they are expected to go on step by step.
func LearningOf(m *memory.State, runs map[string]bool, ahead bool) map[string][]Learning {
	found := map[string][]Learning{}
	ranks := map[string]int{curve.Diverged.String(): -2, curve.Plateaued.String(): -1}
	for _, one := range m.Trails() {
		if runs[one.Run] {
			found[one.Run] = append(found[one.Run], learning(one))
		}
	}
	for run, of := range found {
		slices.SortStableFunc(of, func(a, b Learning) int {
			return cmp.Or(cmp.Compare(ranks[a.Phase], ranks[b.Phase]), cmp.Compare(a.Stage, b.Stage))
		})
		found[run] = of[:min(len(of), mostLearning)]
	}
	if !ahead {
		return found
	}
	fits := map[[2]string]*memory.Fit{}
	for _, one := range m.Trails() {
		fits[[2]string{one.Run, one.Task}] = one.Fit
	}
	for run, of := range found {
		for i := range of {
			of[i].Ahead = aheadOf(of[i], fits[[2]string{run, of[i].Task}])
		}
	}
	return found
}

// learning is how a training goes. That it has diverged by a value that is not finite needs no fit.
func learning(one memory.Trailing) Learning {
	step, value, best := one.Reached()
	direction, _ := curve.DirectionOf(one.Metric)
	told := Learning{
		Stage: one.Stage.Name, Task: one.Task, Attempt: one.Attempt, Metric: one.Metric, Better: "lower",
		Step: step, Value: finite(value), Best: finite(best), Phase: curve.Beginning.String(),
	}
	if direction == curve.Maximise {
		told.Better = "higher"
	}
	if fit := one.Fit; fit != nil {
		told.Phase, told.Planned, told.Earlier = fit.Prediction.Phase().String(), fit.Planned, fit.Earlier
	}
	if told.Value == nil {
		told.Phase = curve.Diverged.String()
	}
	if one.Fit != nil && told.Phase != curve.Diverged.String() && knows(one.Fit, told.Phase) {
		told.Final = within(one.Fit.Final, told)
	}
	return told
}

// knows says whether a fit tells how a training goes on: of one that begins only earlier ones do.
func knows(fit *memory.Fit, phase string) bool {
	return phase != curve.Beginning.String() || fit.Earlier > 0
}

// aheadOf is how a training goes on, at steps that are even.
func aheadOf(told Learning, fit *memory.Fit) []Ahead {
	if told.Final == nil || fit == nil {
		return nil
	}
	end := cmp.Or(told.Planned, 2*told.Step)
	if !(end > told.Step) {
		return nil
	}
	ahead := make([]Ahead, 0, lookedAhead)
	for i := 1; i <= lookedAhead; i++ {
		step := told.Step + (end-told.Step)*float64(i)/lookedAhead
		if value := within(fit.Prediction.At(step).Middle(), told); value != nil {
			ahead = append(ahead, Ahead{Step: step, Value: *value})
		}
	}
	return ahead
}

// within has nothing worse than the best so far, which may be newer than the fit.
func within(expected *fact.Interval, told Learning) *fact.Interval {
	if expected == nil || told.Best == nil {
		return expected
	}
	limit := func(value float64) float64 { return min(value, *told.Best) }
	if told.Better == "higher" {
		limit = func(value float64) float64 { return max(value, *told.Best) }
	}
	return &fact.Interval{Low: limit(expected.Low), Mid: limit(expected.Mid), High: limit(expected.High)}
}

// finite is nil for a value that JSON does not have.
func finite(value float64) *float64 {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return nil
	}
	return &value
}
