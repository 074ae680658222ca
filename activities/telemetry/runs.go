package telemetry

import (
	"encoding/hex"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// maxRunRunes is how much of a run's ID an exemplar shows: all labels of an exemplar together may have 128 runes.
const maxRunRunes = 64

// maxExemplarAge is how old a fact may be that leaves an exemplar.
const maxExemplarAge = time.Minute

// goingRun is a run that goes on.
type goingRun struct {
	pipeline string // as the label says it
	start    time.Time
	goal     predictor.Goal
	cost     quantity.Money
	exemplar prometheus.Labels

	traceparent string
}

// CountAlert counts one alert. An unknown kind counts as "other". Alerts that are sent again, with the same ID, are the
// caller's to leave out.
func (m *Metrics) CountAlert(alert alerting.Alert) {
	kind := alert.Kind
	if !slices.Contains(alertKinds(), kind) {
		kind = other
	}
	m.alerts.WithLabelValues(string(kind)).Inc()
}

func (m *Metrics) followRunStarted(event predictor.RunStarted) {
	if _, again := m.going[event.Run]; again || len(m.going) >= maxRuns {
		return
	}
	m.going[event.Run] = &goingRun{
		pipeline: m.knownPipeline(event.Pipeline), start: event.At, goal: event.Goal,
		exemplar: newExemplar(event.Run, event.Traceparent), traceparent: event.Traceparent,
	}
}

// countRunEnded counts a run that is over. Its cost is that of the Records that came before its end; what it had to do
// in time and within its budget is the goal in force at its end.
func (m *Metrics) countRunEnded(event predictor.RunEnded) {
	state := string(event.State)
	switch event.State {
	case predictor.RunSucceeded, predictor.RunFailed, predictor.RunCancelled:
	default:
		state = other
	}
	m.runs.WithLabelValues(state).Inc()
	run, known := m.going[event.Run]
	if !known {
		return
	}
	exemplar := m.exemplarOf(event.Run, event.At)
	took := event.At.Sub(run.start)
	observeRun(m.runSeconds.WithLabelValues(run.pipeline, state), took.Seconds(), exemplar)
	observeRun(m.runCost.WithLabelValues(run.pipeline, state), run.cost.USD(), exemplar)
	if deadline := run.goal.Deadline; deadline > 0 {
		m.deadlines.WithLabelValues(run.pipeline).Inc()
		if took > deadline {
			addFor(m.late.WithLabelValues(run.pipeline), 1, exemplar)
		}
	}
	if budget := run.goal.Budget; budget > 0 {
		m.budgets.WithLabelValues(run.pipeline).Inc()
		if run.cost > budget {
			addFor(m.over.WithLabelValues(run.pipeline), 1, exemplar)
		}
	}
}

// exemplarOf returns what points from a sample to its run, and nil for facts that are not new: an exemplar has the time
// at which it is left, so those that are read again when the engine starts would all seem to be of then. It also makes
// that reading several times faster.
func (m *Metrics) exemplarOf(run string, at time.Time) prometheus.Labels {
	if m.now().Sub(at) > maxExemplarAge {
		return nil
	}
	if going, known := m.going[run]; known {
		return going.exemplar
	}
	return newExemplar(run, "")
}

func newExemplar(run, traceparent string) prometheus.Labels {
	trace, _ := wire.RunTrace(run, traceparent)
	shown := []rune(label(run))
	return prometheus.Labels{"run": string(shown[:min(len(shown), maxRunRunes)]), "trace_id": hex.EncodeToString(trace[:])}
}

// knownPipeline returns the label of a pipeline. The first time it gives the pipeline its counters, at zero.
func (m *Metrics) knownPipeline(name string) string {
	name = label(name)
	if m.pipelines[name] {
		return name
	}
	if len(m.pipelines) >= maxPipelines {
		name = other
	}
	m.pipelines[name] = true
	for _, counter := range []*prometheus.CounterVec{m.deadlines, m.late, m.budgets, m.over} {
		counter.WithLabelValues(name)
	}
	return name
}

// observeRun adds a finite value that is not negative, with the run it is of unless that is nil. All histograms of the
// library take exemplars.
func observeRun(histogram prometheus.Observer, value float64, run prometheus.Labels) {
	if value < 0 || math.IsNaN(value) || math.IsInf(value, 1) {
		return
	}
	if withExemplar, can := histogram.(prometheus.ExemplarObserver); can {
		withExemplar.ObserveWithExemplar(value, run)
	}
}

// addFor adds to a counter on behalf of a run, nil for none.
func addFor(counter prometheus.Counter, value float64, run prometheus.Labels) {
	if withExemplar, can := counter.(prometheus.ExemplarAdder); can {
		withExemplar.AddWithExemplar(value, run)
	}
}
