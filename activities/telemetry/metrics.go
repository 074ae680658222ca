package telemetry

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
)

// EventResult is what became of an event that was to start a run.
type EventResult string

// The results of events.
const (
	EventStarted   EventResult = "started"
	EventDuplicate EventResult = "duplicate"
	EventDead      EventResult = "dead"
)

// Bounds of what has series of its own; what is seen later shares the label "other", so that a stream of made-up names
// cannot exhaust memory.
const (
	// maxStages: a stage in use at both venues has about 300 series, so all together at most about 300,000.
	maxStages    = 1024
	maxPipelines = 256
	maxHosts     = 1024
	// maxRuns is how many runs that go on are followed to their end. Those that start beyond it are counted, and their
	// time and cost are not.
	maxRuns = 65_536
)

// other is the label of whatever is over a bound.
const other = "other"

// Metrics is every Prometheus series of Spillway, in a registry of its own. Its methods are safe for concurrent use.
//
// Labels: app, stage and pipeline are names that users declare, venue is "pool" or "function", outcome is a
// predictor.Outcome, quantity is "wall" or "memory", what is a changed row of a plan, state is a predictor.RunState,
// result is an EventResult, kind is a alerting.Kind, host is a host of the pool.
//
// Attempts and runs leave exemplars, which scrapers that ask for OpenMetrics or for native histograms get: the run, and
// the ID of its trace.
type Metrics struct {
	registry *prometheus.Registry

	attempts                          *prometheus.CounterVec   // app, stage, venue, outcome
	queue, start, run, fetch, publish *prometheus.HistogramVec // app, stage, venue
	memoryGranted                     *prometheus.HistogramVec // app, stage, venue
	peak                              *prometheus.GaugeVec     // app, stage, venue
	cost                              *prometheus.CounterVec   // app, stage, venue
	relativeError                     *prometheus.HistogramVec // app, stage, quantity
	reused, saved                     *prometheus.CounterVec   // app, stage
	backlog                           *prometheus.GaugeVec     // app, stage
	slots, grantCPU, grantMemory      *prometheus.GaugeVec     // app, stage, venue
	teams                             teamGauges
	decisions                         *prometheus.CounterVec   // app, stage, venue, what
	runs                              *prometheus.CounterVec   // state
	runSeconds, runCost               *prometheus.HistogramVec // pipeline, state
	deadlines, late, budgets, over    *prometheus.CounterVec   // pipeline
	alerts                            *prometheus.CounterVec   // kind
	events                            *prometheus.CounterVec   // result
	price, hostCPU, hostMemory, gpus  *prometheus.GaugeVec     // host
	utilisation, used, free, graphics *prometheus.GaugeVec     // see hostSeries
	watts, uncorrected                *prometheus.GaugeVec     // the same
	leader, term, tick                prometheus.Gauge
	ticks                             *prometheus.HistogramVec // part
	eventsWaiting, startLimit         prometheus.Gauge
	droppedMessages, unreadMessages   prometheus.Counter
	leaderFailures                    prometheus.Counter

	limit int              // of stages
	now   func() time.Time // by which exemplars are left

	mu        sync.Mutex
	stages    map[stageLabels]bool             // those with series of their own
	pipelines map[string]bool                  // those with series of their own
	going     map[string]*goingRun             // runs that go on, by ID
	hosts     map[string]predictor.HostHeld    // by label, what was told of each last
	swept     time.Time                        // when hosts were last looked through
	shown     map[string]bool                  // the GPUs of this host that have series, by UUID
	waiting   map[predictor.StageID]queueSizes // only queues that are not empty
	totals    map[stageLabels]int              // waiting, over the builds of a stage
	granted   map[grantLabels]bool             // rows of the last plan
	peaks     map[grantLabels]float64          // of the latest attempts, in bytes
	inForce   predictor.Plan                   // term and tick of the last plan applied
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
		registry: prometheus.NewRegistry(), limit: maxStages, now: time.Now,
		stages: map[stageLabels]bool{}, pipelines: map[string]bool{}, going: map[string]*goingRun{},
		hosts:   map[string]predictor.HostHeld{},
		waiting: map[predictor.StageID]queueSizes{}, totals: map[stageLabels]int{}, granted: map[grantLabels]bool{},
		peaks: map[grantLabels]float64{},
	}
	all := register(m.registry, Series())
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.keepCounters(all)
	m.keepGauges(all)
	m.keepHistograms(all)
	for _, state := range []predictor.RunState{
		predictor.RunRunning, predictor.RunSucceeded, predictor.RunFailed,
		predictor.RunCancelled,
	} {
		m.runs.WithLabelValues(string(state))
	}
	for _, result := range []EventResult{EventStarted, EventDuplicate, EventDead} {
		m.events.WithLabelValues(string(result))
	}
	for _, kind := range alertKinds() {
		m.alerts.WithLabelValues(string(kind))
	}
	return m
}

func (m *Metrics) keepCounters(all declared) {
	m.attempts, m.cost = all.counters[attemptsTotal], all.counters[costTotal]
	m.reused, m.saved = all.counters[reusedTotal], all.counters[savedTotal]
	m.decisions, m.events, m.alerts = all.counters[decisionsTotal], all.counters[eventsTotal], all.counters[alertsTotal]
	m.runs = all.counters[runsTotal]
	m.deadlines, m.late = all.counters[runDeadlinesTotal], all.counters[runDeadlineMisses]
	m.budgets, m.over = all.counters[runBudgetsTotal], all.counters[runBudgetMisses]
	m.droppedMessages, m.unreadMessages = all.counters[droppedMessages].WithLabelValues(),
		all.counters[unreadableMessages].WithLabelValues()
	m.leaderFailures = all.counters[leaderFailures].WithLabelValues()
}

func (m *Metrics) keepGauges(all declared) {
	m.peak, m.backlog = all.gauges[attemptPeak], all.gauges[backlogTasks]
	m.teams = teamGauges{
		all.gauges[teamSlots], all.gauges[teamMostSlots], all.gauges[teamWaiting], all.gauges[teamSpent],
		all.gauges[teamMostSpent],
	}
	m.slots, m.grantCPU, m.grantMemory = all.gauges[grantedSlots], all.gauges[grantCPU], all.gauges[grantMemory]
	m.price, m.hostCPU, m.hostMemory, m.gpus = all.gauges[hostPrice], all.gauges[hostCPU], all.gauges[hostMemory],
		all.gauges[hostGPUs]
	m.utilisation, m.used = all.gauges[deviceUtilisation], all.gauges[deviceMemoryUsed]
	m.free, m.graphics = all.gauges[deviceMemoryFree], all.gauges[deviceEngineActive]
	m.watts, m.uncorrected = all.gauges[devicePower], all.gauges[deviceErrors]
	m.eventsWaiting, m.startLimit = all.gauges[eventsWaiting].WithLabelValues(), all.gauges[startLimit].WithLabelValues()
	m.leader, m.term, m.tick = all.gauges[leaderGauge].WithLabelValues(), all.gauges[planTerm].WithLabelValues(),
		all.gauges[planTick].WithLabelValues()
}

func (m *Metrics) keepHistograms(all declared) {
	m.queue, m.start, m.run = all.histograms[attemptQueue], all.histograms[attemptStart], all.histograms[attemptRun]
	m.fetch, m.publish = all.histograms[attemptFetch], all.histograms[attemptPublish]
	m.memoryGranted, m.relativeError = all.histograms[memoryGranted], all.histograms[relativeError]
	m.runSeconds, m.runCost = all.histograms[runSeconds], all.histograms[runCost]
	m.ticks = all.histograms[tickSeconds]
	for _, part := range []string{"hosts", "decide", "post", "all"} {
		m.ticks.WithLabelValues(part)
	}
}

// Handler serves the series in the formats of Prometheus: text, OpenMetrics, or protocol buffers, which carry native
// histograms.
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

// SetEventsWaiting says how many events wait for their run, and how many runs may be started at a time.
func (m *Metrics) SetEventsWaiting(events uint64, limit int) {
	m.eventsWaiting.Set(float64(events))
	m.startLimit.Set(float64(limit))
}

// CountDropped counts one fact that was not sent; it is what RecorderOptions.Dropped wants.
func (m *Metrics) CountDropped() { m.droppedMessages.Inc() }

// CountLeaderFailure counts one term or campaign that this process had to end.
func (m *Metrics) CountLeaderFailure() { m.leaderFailures.Inc() }

// Ticked counts one tick of the leader, by what its parts took; one that it did not have is 0 and is not counted.
func (m *Metrics) Ticked(hosts, decide, post, whole time.Duration) {
	for part, took := range map[string]time.Duration{"hosts": hosts, "decide": decide, "post": post, "all": whole} {
		if took > 0 {
			m.ticks.WithLabelValues(part).Observe(took.Seconds())
		}
	}
}

// SetLeader says whether this process leads the loop.
func (m *Metrics) SetLeader(leads bool) {
	value := 0.0
	if leads {
		value = 1
	}
	m.leader.Set(value)
}

// known returns the labels of a stage. The first time it gives the stage its counters and gauges, at zero, so that a
// rate over them starts at the first attempt and not at the second. The caller holds m.mu.
func (m *Metrics) known(id predictor.StageID) stageLabels {
	labels := stageLabels{label(id.App), label(id.Name)}
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
	m.reused.WithLabelValues(labels.app, labels.stage)
	m.saved.WithLabelValues(labels.app, labels.stage)
	m.backlog.WithLabelValues(labels.app, labels.stage)
	return labels
}

// label is a name as the value of a label, which must be UTF-8.
func label(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// Values of the label quantity.
const (
	wall   = "wall"
	memory = "memory"
)

// outcomes lists every outcome of an attempt.
func outcomes() []predictor.Outcome {
	return []predictor.Outcome{
		predictor.Succeeded, predictor.Failed, predictor.OutOfMemory, predictor.TimedOut, predictor.Cancelled, predictor.Lost,
		predictor.Refused,
	}
}

// alertKinds lists every kind of alert.
func alertKinds() []alerting.Kind {
	return []alerting.Kind{
		alerting.KindDeadlineAtRisk, alerting.KindBudgetAtRisk, alerting.KindGoalImpossible, alerting.KindRecovered,
		alerting.KindStreamsLost, alerting.KindLedgerFailing, alerting.KindDiskScarce,
	}
}
