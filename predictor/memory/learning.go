package memory

import (
	"cmp"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/curve"
	"github.com/spillway-ml/spillway/predictor/fact"
)

// Fit is what is thought of how a task goes on.
type Fit struct {
	// Planned is at which step it ends, by its own word or as tasks of its stage did; 0 where nothing tells.
	Planned float64
	// Earlier is on how many earlier curves of the stage it rests.
	Earlier    int
	Prediction *curve.Prediction
	// Final is the best value when it ends, see [curve.Values.Middle]. It is asked for once: where Planned is 0 it takes
	// as long as the fit.
	Final *fact.Interval

	at fact.Instant
}

// How often a task's curve is fitted, and how many at a time: one takes .6 to 2.9 ms.
const (
	fitEvery = fact.Instant(time.Second)
	mostFits = 8
)

// Learn fits the curves of tasks that run and have told something new since the last fit, a second before or more: at
// most 8 of them, those that have waited longest.
func (m *State) Learn(now fact.Instant) {
	var due []*Trail
	for _, one := range m.Trails() {
		if one.changed && (one.fit == nil || now-one.fit.at >= fitEvery || now < one.fit.at) {
			due = append(due, one.Trail)
		}
	}
	slices.SortStableFunc(due, func(a, b *Trail) int { return cmp.Compare(a.turn, b.turn) })
	for _, t := range due[:min(len(due), mostFits)] {
		m.fitted(t, now)
	}
}

// fitted fits the curve of a task that runs.
func (m *State) fitted(t *Trail, now fact.Instant) {
	st := m.Stages[t.Stage]
	direction, _ := curve.DirectionOf(t.Metric)
	fit := &Fit{at: now}
	fit.Planned, _ = m.steps[attemptKey(t.Run, t.Task, t.Attempt)].toDo(st.Model)
	if last, _, _ := t.Reached(); fit.Planned < last {
		fit.Planned = 0
	}
	workload := st.Model.earlier(t.Metric)
	fit.Earlier = workload.Runs()
	t.changed = false
	prediction, err := curve.Fit(slices.Clone(t.Points), curve.Options{
		Direction: direction, Planned: fit.Planned, Earlier: workload,
	})
	if err != nil {
		return // no such points are remembered
	}
	fit.Prediction, fit.Final, t.fit = prediction, prediction.Final().Middle(), fit
}

// earlier is how a metric went in earlier tasks of the stage.
func (m *Model) earlier(metric string) *curve.Workload {
	if m.workload != nil && m.worked == metric {
		return m.workload
	}
	direction, _ := curve.DirectionOf(metric)
	var runs [][]curve.Point
	for _, one := range m.Curves {
		if one.Metric == metric {
			runs = append(runs, one.Points)
		}
	}
	workload, err := curve.NewWorkload(direction, runs...)
	if err != nil {
		return nil // no such points are remembered
	}
	m.workload, m.worked = workload, metric
	return workload
}

// Trailing is a task that runs, and how its training goes.
type Trailing struct {
	*Trail
	// Fit is what is thought of how it goes on; nil while nobody has fitted its curve.
	Fit *Fit
}

// Trails are all tasks that run and tell how their trainings go, by run and task.
func (m *State) Trails() []Trailing {
	var found []Trailing
	for _, t := range m.trails {
		running, known := m.Attempts[attemptKey(t.Run, t.Task, t.Attempt)]
		if known && running.Runs() && m.Stages[t.Stage] != nil {
			found = append(found, Trailing{t, t.fit})
		}
	}
	slices.SortFunc(found, func(a, b Trailing) int {
		return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.Task, b.Task))
	})
	return found
}
