package telemetry

import (
	"math"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Apply counts one message of the loop's stream, as Follow hands it out; the zero Message counts as unreadable. Numbers that make no
// sense (negative times, negative cost) are left out.
func (m *Metrics) Apply(message wire.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch event := message.Event.(type) {
	case predictor.Record:
		m.applyRecord(event)
	case predictor.BacklogObserved:
		m.applyBacklog(event)
	case predictor.RunStarted:
		m.runs.WithLabelValues(string(predictor.RunRunning)).Inc()
	case predictor.RunEnded:
		m.applyRunEnded(event)
	}
	if decision := message.Decision; decision != nil {
		labels := m.known(decision.Stage)
		m.decisions.WithLabelValues(labels.app, labels.stage, venueLabel(decision.Venue), whatLabel(decision.What)).Inc()
	}
	if message.Event == nil && message.Decision == nil {
		m.unreadMessages.Inc()
	}
}

// ApplyPlan shows the plan in force; a plan that is older than the last one is ignored. A stage and venue that lost its row shows zero slots.
func (m *Metrics) ApplyPlan(plan predictor.Plan) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inForce.Supersedes(plan) {
		return
	}
	m.inForce = predictor.Plan{Term: plan.Term, Tick: plan.Tick}
	m.term.Set(float64(plan.Term))
	m.tick.Set(float64(plan.Tick))
	slots, sizes := map[grantLabels]int{}, map[grantLabels]quantity.Size{}
	for _, grant := range plan.Grants {
		row := grantLabels{m.known(grant.Stage), predictor.Venue(venueLabel(grant.Venue))}
		slots[row] += grant.Slots // several builds of a stage
		sizes[row] = grant.Size
	}
	for row := range m.granted {
		if _, still := slots[row]; !still {
			slots[row] = 0
		}
	}
	clear(m.granted)
	for row, count := range slots {
		values := []string{row.app, row.stage, string(row.venue)}
		m.slots.WithLabelValues(values...).Set(float64(count))
		m.grantCPU.WithLabelValues(values...).Set(sizes[row].CPU.Cores())
		m.grantMemory.WithLabelValues(values...).Set(float64(sizes[row].Memory))
		if count > 0 {
			m.granted[row] = true
		}
	}
}

func (m *Metrics) applyRecord(record predictor.Record) {
	labels := m.known(record.Stage)
	values := []string{labels.app, labels.stage, venueLabel(record.Venue)}
	outcome := record.Outcome
	if !slices.Contains(outcomes(), outcome) {
		outcome = other
	}
	m.attempts.WithLabelValues(append(values, string(outcome))...).Inc()
	observe(m.queue.WithLabelValues(values...), record.Queue.Seconds())
	observe(m.start.WithLabelValues(values...), record.Start.Seconds())
	observe(m.run.WithLabelValues(values...), record.Usage.Wall.Seconds())
	if record.Usage.PeakMemory > 0 {
		m.peak.WithLabelValues(values...).Set(float64(record.Usage.PeakMemory))
	}
	if record.Cost > 0 {
		m.cost.WithLabelValues(values...).Add(record.Cost.USD())
	}
	if outcome != predictor.Succeeded {
		return // how long a failed attempt ran says nothing about the prediction
	}
	for what, pair := range map[string][2]float64{
		wall:   {record.Predicted.Wall.Mid, record.Usage.Wall.Seconds()},
		memory: {record.Predicted.Memory.Mid, float64(record.Usage.PeakMemory)},
	} {
		if predicted, actual := pair[0], pair[1]; predicted > 0 && actual > 0 {
			observe(m.relativeError.WithLabelValues(labels.app, labels.stage, what), math.Abs(predicted-actual)/actual)
		}
	}
}

func (m *Metrics) applyBacklog(observed predictor.BacklogObserved) {
	labels := m.known(observed.Stage)
	before := m.waiting[observed.Stage]
	after := before
	if observed.PoolOnly {
		after.pool = max(observed.Tasks, 0)
	} else {
		after.shared = max(observed.Tasks, 0)
	}
	if after == (queueSizes{}) {
		delete(m.waiting, observed.Stage)
	} else {
		m.waiting[observed.Stage] = after
	}
	total := m.totals[labels] + after.shared + after.pool - before.shared - before.pool
	if total == 0 {
		delete(m.totals, labels)
	} else {
		m.totals[labels] = total
	}
	m.backlog.WithLabelValues(labels.app, labels.stage).Set(float64(total))
}

func (m *Metrics) applyRunEnded(event predictor.RunEnded) {
	state := string(event.State)
	switch event.State {
	case predictor.RunSucceeded, predictor.RunFailed, predictor.RunCancelled:
	default:
		state = other
	}
	m.runs.WithLabelValues(state).Inc()
}

// observe adds a finite value that is not negative.
func observe(histogram prometheus.Observer, value float64) {
	if value >= 0 && !math.IsInf(value, 1) {
		histogram.Observe(value)
	}
}

// venueLabel keeps the label bounded. Decisions about windows have no venue.
func venueLabel(venue predictor.Venue) string {
	switch venue {
	case predictor.Pool, predictor.Function, "":
		return string(venue)
	default:
		return other
	}
}

// whatLabel keeps the label bounded.
func whatLabel(what string) string {
	switch what {
	case "slots", "size", "window":
		return what
	default:
		return other
	}
}
