package telemetry

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Apply counts one message of the loop's stream, as Follow hands it out; the zero Message counts as unreadable. Numbers
// that make no sense (negative times, negative cost) are left out.
func (m *Metrics) Apply(message wire.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count(message) // first: it asks what was known before
	m.follow(message)
}

// Replay takes in one message that was in the stream before this process began: gauges and what is known of runs that
// go on follow it, and nothing is counted.
func (m *Metrics) Replay(message wire.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.follow(message)
}

// count adds a message to the counters and histograms. The caller holds m.mu.
func (m *Metrics) count(message wire.Message) {
	switch event := message.Event.(type) {
	case predictor.Record:
		m.countRecord(event)
	case predictor.RunStarted:
		if _, again := m.going[event.Run]; !again { // a start is told twice: at once, and durably with the end
			m.runs.WithLabelValues(string(predictor.RunRunning)).Inc()
		}
	case predictor.RunEnded:
		m.countRunEnded(event)
	case predictor.Reused:
		m.countReused(event)
	}
	if decision := message.Decision; decision != nil {
		labels := m.known(decision.Stage)
		m.decisions.WithLabelValues(labels.app, labels.stage, venueLabel(decision.Venue), whatLabel(decision.What)).Inc()
	}
	if message.Event == nil && message.Decision == nil {
		m.unreadMessages.Inc()
	}
}

// follow brings the gauges and what is known of runs up to a message. The caller holds m.mu.
func (m *Metrics) follow(message wire.Message) {
	switch event := message.Event.(type) {
	case predictor.Record:
		m.followRecord(event)
	case predictor.BacklogObserved:
		m.followBacklog(event)
	case predictor.RunStarted:
		m.followRunStarted(event)
	case predictor.GoalChanged:
		if run, known := m.going[event.Run]; known {
			run.goal = event.Goal
		}
	case predictor.RunEnded:
		delete(m.going, event.Run)
	case predictor.Reused:
		m.known(event.Stage)
	case predictor.HostHeld:
		m.followHostHeld(event)
	}
	if message.Event != nil {
		m.forgetHosts(message.Event.When())
	}
	if decision := message.Decision; decision != nil {
		m.known(decision.Stage)
	}
}

// ApplyPlan shows the plan in force; a plan that is older than the last one is ignored. A stage and venue that lost its
// row shows zero slots.
func (m *Metrics) ApplyPlan(plan predictor.Plan) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inForce.Supersedes(plan) {
		return
	}
	m.inForce = predictor.Plan{Term: plan.Term, Tick: plan.Tick}
	m.term.Set(float64(plan.Term))
	m.tick.Set(float64(plan.Tick))
	m.teams.apply(plan.Teams)
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

func (m *Metrics) followRecord(record predictor.Record) {
	labels := m.known(record.Stage)
	m.showPeak(labels, predictor.Venue(venueLabel(record.Venue)), float64(record.Usage.PeakMemory))
	if going, known := m.going[record.Run]; known && record.Cost > 0 {
		going.cost = going.cost.Plus(record.Cost)
	}
}

// showPeak shows the highest memory of an attempt, in bytes, where that is known.
func (m *Metrics) showPeak(labels stageLabels, venue predictor.Venue, peak float64) {
	if peak > 0 {
		m.peak.WithLabelValues(labels.app, labels.stage, string(venue)).Set(peak)
		m.peaks[grantLabels{labels, venue}] = peak
	}
}

func (m *Metrics) countRecord(record predictor.Record) {
	labels := m.known(record.Stage)
	values := []string{labels.app, labels.stage, venueLabel(record.Venue)}
	outcome := record.Outcome
	if !slices.Contains(outcomes(), outcome) {
		outcome = other
	}
	run := m.exemplarOf(record.Run, record.At)
	addFor(m.attempts.WithLabelValues(append(values, string(outcome))...), 1, run)
	observeRun(m.queue.WithLabelValues(values...), record.Queue.Seconds(), run)
	observeRun(m.start.WithLabelValues(values...), record.Start.Seconds(), run)
	observeRun(m.run.WithLabelValues(values...), record.Usage.Wall.Seconds(), run)
	if record.Usage.Wall > 0 {
		observeRun(m.fetch.WithLabelValues(values...), record.Usage.Fetch.Seconds(), run)
		observeRun(m.publish.WithLabelValues(values...), record.Usage.Publish.Seconds(), run)
	}
	if peak, grant := float64(record.Usage.PeakMemory), float64(record.Grant.Memory); peak > 0 && grant > 0 {
		observeRun(m.memoryGranted.WithLabelValues(values...), peak/grant, run)
	}
	if record.Cost > 0 {
		addFor(m.cost.WithLabelValues(values...), record.Cost.USD(), run)
	}
	if outcome != predictor.Succeeded {
		return // how long a failed attempt ran says nothing about the prediction
	}
	for what, pair := range map[string][2]float64{
		wall:   {record.Predicted.Wall.Mid, record.Usage.Wall.Seconds()},
		memory: {record.Predicted.Memory.Mid, float64(record.Usage.PeakMemory)},
	} {
		if predicted, actual := pair[0], pair[1]; predicted > 0 && actual > 0 {
			observeRun(m.relativeError.WithLabelValues(labels.app, labels.stage, what), math.Abs(predicted-actual)/actual, run)
		}
	}
}

func (m *Metrics) followBacklog(observed predictor.BacklogObserved) {
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

func (m *Metrics) countReused(event predictor.Reused) {
	labels := m.known(event.Stage)
	run := m.exemplarOf(event.Run, event.At)
	if event.Tasks > 0 {
		addFor(m.reused.WithLabelValues(labels.app, labels.stage), float64(event.Tasks), run)
	}
	if event.Saved > 0 {
		addFor(m.saved.WithLabelValues(labels.app, labels.stage), event.Saved.USD(), run)
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
	case "slots", "size", "window", "batch":
		return what
	default:
		return other
	}
}
