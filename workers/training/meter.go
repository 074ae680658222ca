package training

import (
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
)

// recentSteps is of how many steps the medians are: enough to pass over a slow one, few enough to follow a change.
const recentSteps = 256

// Meter keeps how long the last steps took, for the report of a training. One goroutine uses it.
type Meter struct {
	steps []time.Duration
	busy  [][]time.Duration // by part
	count int
}

// NewMeter returns a meter of a training in so many parts.
func NewMeter(parts int) *Meter { return &Meter{busy: make([][]time.Duration, parts)} }

// Add takes a step; the oldest of 256 makes room.
func (m *Meter) Add(r exec.StepReport) {
	put := func(to []time.Duration, value time.Duration) []time.Duration {
		if len(to) < recentSteps {
			return append(to, value)
		}
		to[m.count%recentSteps] = value
		return to
	}
	m.steps = put(m.steps, r.Duration)
	for i := range m.busy {
		if i < len(r.Busy) {
			m.busy[i] = put(m.busy[i], r.Busy[i])
		}
	}
	m.count++
}

// Fill writes the medians into a report, whose parts it replaces. Without a step they are 0.
func (m *Meter) Fill(t *predictor.Training) {
	step := middle(m.steps)
	t.StepSeconds = step.Seconds()
	t.Parts = slices.Clone(t.Parts)
	busy := 0.0
	for i := range t.Parts {
		one := middle(m.busy[i]).Seconds()
		t.Parts[i].BusySeconds = one
		busy += one
	}
	t.Bubble = 0
	if whole := step.Seconds() * float64(len(t.Parts)); whole > 0 {
		t.Bubble = min(max(1-busy/whole, 0), 1)
	}
}

// middle is the median, the upper one of two; 0 of none.
func middle(values []time.Duration) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}
