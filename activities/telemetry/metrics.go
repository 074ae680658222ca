package telemetry

import (
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/spillway-ml/spillway/predictor"
)

// EventResult is what became of an event that was to start a run.
type EventResult string

// The results of events.
const (
	EventStarted   EventResult = "started"
	EventDuplicate EventResult = "duplicate"
	EventDead      EventResult = "dead"
)

// maxStages bounds how many stages have series of their own. Those seen later share the stage "other", so that a stream of made-up
// names cannot exhaust memory: a stage in use at both venues has about 150 series, so all together at most about 150,000.
const maxStages = 1024

// other is the label of whatever is over a bound.
const other = "other"

// Metrics is every Prometheus series of Spillway, in a registry of its own. Its methods are safe for concurrent use.
//
// Labels: app and stage are names that users declare, venue is "pool" or "function", outcome is a predictor.Outcome, quantity is
// "wall" or "memory", what is a changed row of a plan, state is a predictor.RunState, result is an EventResult.
type Metrics struct {
	registry *prometheus.Registry

	attempts                        *prometheus.CounterVec   // app, stage, venue, outcome
	queue, start, run               *prometheus.HistogramVec // app, stage, venue
	peak                            *prometheus.GaugeVec     // app, stage, venue
	cost                            *prometheus.CounterVec   // app, stage, venue
	relativeError                   *prometheus.HistogramVec // app, stage, quantity
	backlog                         *prometheus.GaugeVec     // app, stage
	slots, grantCPU, grantMemory    *prometheus.GaugeVec     // app, stage, venue
	decisions                       *prometheus.CounterVec   // app, stage, venue, what
	runs                            *prometheus.CounterVec   // state
	events                          *prometheus.CounterVec   // result
	leader, term, tick              prometheus.Gauge
	droppedMessages, unreadMessages prometheus.Counter

	limit int // of stages

	mu      sync.Mutex
	stages  map[stageLabels]bool             // those with series of their own
	waiting map[predictor.StageID]queueSizes // only queues that are not empty
	totals  map[stageLabels]int              // waiting, over the builds of a stage
	granted map[grantLabels]bool             // rows of the last plan
	inForce predictor.Plan                   // term and tick of the last plan applied
}

// stageLabels and grantLabels are label values.
type (
	stageLabels struct{ app, stage string }
	grantLabels struct {
		stageLabels
		venue predictor.Venue
	}
)

// queueSizes is how many tasks wait in the shared queue and in the pool's own.
type queueSizes struct{ shared, pool int }

// NewMetrics returns the series, each known one at zero, and those of the Go runtime and of this process.
func NewMetrics() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), limit: maxStages,
		stages: map[stageLabels]bool{}, waiting: map[predictor.StageID]queueSizes{}, totals: map[stageLabels]int{}, granted: map[grantLabels]bool{},
	}
	m.declareAttempts()
	m.declareLoop()
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, state := range []predictor.RunState{predictor.RunRunning, predictor.RunSucceeded, predictor.RunFailed, predictor.RunCancelled} {
		m.runs.WithLabelValues(string(state))
	}
	for _, result := range []EventResult{EventStarted, EventDuplicate, EventDead} {
		m.events.WithLabelValues(string(result))
	}
	return m
}

// Handler serves the series in the formats of Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry, EnableOpenMetrics: true})
}

// Gatherer gives the series to callers that serve them together with others.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// CountEvent counts one event that was to start a run. An unknown result counts as "other".
func (m *Metrics) CountEvent(result EventResult) {
	switch result {
	case EventStarted, EventDuplicate, EventDead:
	default:
		result = other
	}
	m.events.WithLabelValues(string(result)).Inc()
}

// CountDropped counts one fact that was not sent; it is what RecorderOptions.Dropped wants.
func (m *Metrics) CountDropped() { m.droppedMessages.Inc() }

// SetLeader says whether this process leads the loop.
func (m *Metrics) SetLeader(leads bool) {
	value := 0.0
	if leads {
		value = 1
	}
	m.leader.Set(value)
}

// declareAttempts declares what Records say.
func (m *Metrics) declareAttempts() {
	stage := []string{"app", "stage"}
	venue := []string{"app", "stage", "venue"}
	m.attempts = m.counter("spillway_attempts_total", "Finished attempts.", "app", "stage", "venue", "outcome")
	// From 1 ms to 1 h in steps of about 3: an environment that is reused starts in about 1 ms, a function may run for 15 minutes.
	seconds := []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100, 300, 900, 3600}
	m.queue = m.histogram("spillway_attempt_queue_seconds", "Time an attempt waited for a slot and for admission.", seconds, venue...)
	m.start = m.histogram("spillway_attempt_start_seconds", "Time to start a process or an environment for an attempt.", seconds, venue...)
	m.run = m.histogram("spillway_attempt_run_seconds", "Time the user's code of an attempt ran.", seconds, venue...)
	m.peak = m.gauge("spillway_attempt_peak_memory_bytes", "Peak resident memory of the last attempt that was measured.", venue...)
	m.cost = m.counter("spillway_cost_dollars_total", "What finished attempts cost.", venue...)
	errors := []float64{.01, .03, .1, .2, .3, .5, 1, 2, 5, 10}
	m.relativeError = m.histogram("spillway_prediction_relative_error_ratio",
		"Distance between prediction and actual of successful attempts, as a ratio of the actual.", errors, append(stage, "quantity")...)
	m.backlog = m.gauge("spillway_backlog_tasks", "Tasks waiting in the queues of a stage, as last observed.", stage...)
}

// declareLoop declares what plans and the loop itself say.
func (m *Metrics) declareLoop() {
	venue := []string{"app", "stage", "venue"}
	m.slots = m.gauge("spillway_slots", "Slots that the plan in force grants.", venue...)
	m.grantCPU = m.gauge("spillway_grant_cpu_cores", "CPU of one slot in the plan in force.", venue...)
	m.grantMemory = m.gauge("spillway_grant_memory_bytes", "Memory of one slot in the plan in force.", venue...)
	m.decisions = m.counter("spillway_decisions_total", "Changed rows of plans.", append(venue, "what")...)
	m.runs = m.counter("spillway_runs_total", "Runs by the state they reached; running counts those that started.", "state")
	m.events = m.counter("spillway_events_total", "Events that were to start a run, by what became of them.", "result")
	m.leader = m.single(prometheus.GaugeOpts{Name: "spillway_leader", Help: "1 while this process leads the loop, else 0."})
	m.term = m.single(prometheus.GaugeOpts{Name: "spillway_plan_term", Help: "Term of the plan in force."})
	m.tick = m.single(prometheus.GaugeOpts{Name: "spillway_plan_tick", Help: "Tick of the plan in force within its term."})
	m.droppedMessages = m.total("spillway_dropped_messages_total", "Hints and samples that were not sent because the connection or the buffer did not take them.")
	m.unreadMessages = m.total("spillway_unreadable_messages_total", "Messages of the loop's stream that this build cannot read.")
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(vec)
	return vec
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(vec)
	return vec
}

func (m *Metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	m.registry.MustRegister(vec)
	return vec
}

func (m *Metrics) single(options prometheus.GaugeOpts) prometheus.Gauge {
	gauge := prometheus.NewGauge(options)
	m.registry.MustRegister(gauge)
	return gauge
}

func (m *Metrics) total(name, help string) prometheus.Counter {
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.registry.MustRegister(counter)
	return counter
}

// known returns the labels of a stage. The first time it gives the stage its counters and gauges, at zero, so that a rate over them starts at the
// first attempt and not at the second. The caller holds m.mu.
func (m *Metrics) known(id predictor.StageID) stageLabels {
	labels := stageLabels{id.App, id.Name}
	if m.stages[labels] {
		return labels
	}
	if len(m.stages) >= m.limit {
		labels = stageLabels{other, other}
		if m.stages[labels] {
			return labels
		}
	}
	m.stages[labels] = true
	for _, venue := range []predictor.Venue{predictor.Pool, predictor.Function} {
		values := []string{labels.app, labels.stage, string(venue)}
		for _, outcome := range outcomes() {
			m.attempts.WithLabelValues(append(values, string(outcome))...)
		}
		m.cost.WithLabelValues(values...)
		for _, gauge := range []*prometheus.GaugeVec{m.slots, m.grantCPU, m.grantMemory} {
			gauge.WithLabelValues(values...)
		}
	}
	m.backlog.WithLabelValues(labels.app, labels.stage)
	return labels
}

// Values of the label quantity.
const (
	wall   = "wall"
	memory = "memory"
)

// outcomes lists every outcome of an attempt.
func outcomes() []predictor.Outcome {
	return []predictor.Outcome{
		predictor.Succeeded, predictor.Failed, predictor.OutOfMemory, predictor.TimedOut, predictor.Cancelled, predictor.Lost, predictor.Refused,
	}
}
