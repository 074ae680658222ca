package telemetry

import "slices"

// Kind is the type of a series, as Prometheus names it.
type Kind string

// The kinds of series.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Declaration says what a series is.
type Declaration struct {
	// Name is what queries ask for; those of a histogram add _bucket, _sum and _count where it is queried by its classic
	// buckets.
	Name string
	Kind Kind
	// Unit is what a value counts: "seconds", "bytes", "dollars", "cores", "ratio" (1 is all of it), "percent",
	// "mebibytes", or a plural noun.
	Unit string
	// Help is one sentence for people.
	Help string
	// Labels are the names of its labels, in the order in which the code gives their values.
	Labels []string
	// Buckets are the upper bounds of the classic buckets of a histogram, in Unit; nil for other kinds. A scraper that
	// asks for native histograms gets those as well.
	Buckets []float64
}

// The names of all series.
const (
	attemptsTotal      = "spillway_attempts_total"
	attemptQueue       = "spillway_attempt_queue_seconds"
	attemptStart       = "spillway_attempt_start_seconds"
	attemptRun         = "spillway_attempt_run_seconds"
	attemptFetch       = "spillway_attempt_fetch_seconds"
	attemptPublish     = "spillway_attempt_publish_seconds"
	attemptPeak        = "spillway_attempt_peak_memory_bytes"
	memoryGranted      = "spillway_memory_granted_ratio"
	costTotal          = "spillway_cost_dollars_total"
	relativeError      = "spillway_prediction_relative_error_ratio"
	reusedTotal        = "spillway_reused_tasks_total"
	savedTotal         = "spillway_saved_dollars_total"
	backlogTasks       = "spillway_backlog_tasks"
	grantedSlots       = "spillway_slots"
	grantCPU           = "spillway_grant_cpu_cores"
	grantMemory        = "spillway_grant_memory_bytes"
	teamSlots          = "spillway_team_slots"
	teamMostSlots      = "spillway_team_most_slots"
	teamWaiting        = "spillway_team_waiting_tasks"
	teamSpent          = "spillway_team_spent_today_dollars"
	teamMostSpent      = "spillway_team_most_per_day_dollars"
	decisionsTotal     = "spillway_decisions_total"
	runsTotal          = "spillway_runs_total"
	runSeconds         = "spillway_run_seconds"
	runCost            = "spillway_run_cost_dollars"
	runDeadlinesTotal  = "spillway_run_deadlines_total"
	runDeadlineMisses  = "spillway_run_deadline_missed_total"
	runBudgetsTotal    = "spillway_run_budgets_total"
	runBudgetMisses    = "spillway_run_budget_missed_total"
	alertsTotal        = "spillway_alerts_total"
	eventsTotal        = "spillway_events_total"
	eventsWaiting      = "spillway_events_waiting"
	startLimit         = "spillway_start_limit"
	hostPrice          = "spillway_host_price_dollars_per_hour"
	hostCPU            = "spillway_host_capacity_cpu_cores"
	hostMemory         = "spillway_host_capacity_memory_bytes"
	hostGPUs           = "spillway_host_capacity_gpus"
	leaderGauge        = "spillway_leader"
	leaderFailures     = "spillway_leader_failures_total"
	planTerm           = "spillway_plan_term"
	planTick           = "spillway_plan_tick"
	tickSeconds        = "spillway_tick_seconds"
	droppedMessages    = "spillway_dropped_messages_total"
	unreadableMessages = "spillway_unreadable_messages_total"
	deviceUtilisation  = "DCGM_FI_DEV_GPU_UTIL"
	deviceMemoryUsed   = "DCGM_FI_DEV_FB_USED"
	deviceMemoryFree   = "DCGM_FI_DEV_FB_FREE"
	deviceEngineActive = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
	devicePower        = "DCGM_FI_DEV_POWER_USAGE"
	deviceErrors       = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
)

// Units that several series share.
const (
	secondsUnit  = "seconds"
	bytesUnit    = "bytes"
	dollarsUnit  = "dollars"
	coresUnit    = "cores"
	ratioUnit    = "ratio"
	tasksUnit    = "tasks"
	runsUnit     = "runs"
	messagesUnit = "messages"
	oneUnit      = "1"
)

// Series lists every series that Metrics declares, besides those of the Go runtime and of the process; the slices are
// the caller's.
//
// Those that begin with DCGM have the names, units and labels of NVIDIA's exporter
// (https://docs.nvidia.com/datacenter/dcgm/latest/ reference/dcgm-exporter-metrics.html), so that dashboards made for
// it show our devices too. See SetGPUs.
func Series() []Declaration {
	return slices.Concat(attemptSeries(), planSeries(), runSeries(), hostSeries(), loopSeries())
}

// attemptSeries is what Records say.
func attemptSeries() []Declaration {
	stage := []string{"app", "stage"}
	venue := []string{"app", "stage", "venue"}
	return []Declaration{
		{
			Name: attemptsTotal, Kind: Counter, Unit: "attempts", Help: "Finished attempts.",
			Labels: []string{"app", "stage", "venue", "outcome"},
		},
		{
			Name: attemptQueue, Kind: Histogram, Unit: secondsUnit, Help: "Time an attempt waited for a slot and for admission.",
			Labels: venue, Buckets: seconds(),
		},
		{
			Name: attemptStart, Kind: Histogram, Unit: secondsUnit,
			Help: "Time to start a process or an environment for an attempt.", Labels: venue, Buckets: seconds(),
		},
		{
			Name: attemptRun, Kind: Histogram, Unit: secondsUnit, Help: "Time the user's code of an attempt ran.", Labels: venue,
			Buckets: seconds(),
		},
		{
			Name: attemptFetch, Kind: Histogram, Unit: secondsUnit,
			Help: "Time the user's code of an attempt waited for artifacts to be read.", Labels: venue, Buckets: seconds(),
		},
		{
			Name: attemptPublish, Kind: Histogram, Unit: secondsUnit,
			Help: "Time the user's code of an attempt waited for artifacts to be written.", Labels: venue, Buckets: seconds(),
		},
		{
			Name: attemptPeak, Kind: Gauge, Unit: bytesUnit, Help: "Peak resident memory of the last attempt that was measured.",
			Labels: venue,
		},
		{
			Name: memoryGranted, Kind: Histogram, Unit: ratioUnit,
			Help: "Peak resident memory of an attempt, as a ratio of the memory granted to it.", Labels: venue,
			Buckets: []float64{.1, .2, .3, .4, .5, .6, .7, .8, .9, 1, 1.2},
		},
		{Name: costTotal, Kind: Counter, Unit: dollarsUnit, Help: "What finished attempts cost.", Labels: venue},
		{
			Name: relativeError, Kind: Histogram, Unit: ratioUnit,
			Help:   "Distance between prediction and actual of successful attempts, as a ratio of the actual.",
			Labels: []string{"app", "stage", "quantity"}, Buckets: []float64{.01, .03, .1, .2, .3, .5, 1, 2, 5, 10},
		},
		{
			Name: reusedTotal, Kind: Counter, Unit: tasksUnit, Help: "Tasks whose result was taken from an earlier run.",
			Labels: stage,
		},
		{
			Name: savedTotal, Kind: Counter, Unit: dollarsUnit, Help: "What reused tasks had cost when they ran.",
			Labels: stage,
		},
		{
			Name: backlogTasks, Kind: Gauge, Unit: tasksUnit, Help: "Tasks waiting in the queues of a stage, as last observed.",
			Labels: stage,
		},
	}
}

// planSeries is what the plan in force says.
func planSeries() []Declaration {
	venue, team := []string{"app", "stage", "venue"}, []string{"team"}
	return []Declaration{
		{Name: grantedSlots, Kind: Gauge, Unit: "slots", Help: "Slots that the plan in force grants.", Labels: venue},
		{Name: grantCPU, Kind: Gauge, Unit: coresUnit, Help: "CPU of one slot in the plan in force.", Labels: venue},
		{Name: grantMemory, Kind: Gauge, Unit: bytesUnit, Help: "Memory of one slot in the plan in force.", Labels: venue},
		{
			Name: teamSlots, Kind: Gauge, Unit: "slots", Help: "Slots of the pool that a team has in the plan in force.",
			Labels: team,
		},
		{
			Name: teamMostSlots, Kind: Gauge, Unit: "slots", Help: "Slots of the pool that a team may have; 0 is no bound.",
			Labels: team,
		},
		{Name: teamWaiting, Kind: Gauge, Unit: tasksUnit, Help: "Tasks of a team that wait in queues.", Labels: team},
		{
			Name: teamSpent, Kind: Gauge, Unit: dollarsUnit,
			Help: "What the attempts of a team cost that ended on this day in UTC.", Labels: team,
		},
		{
			Name: teamMostSpent, Kind: Gauge, Unit: dollarsUnit,
			Help: "What the attempts of a team may cost on one day in UTC; 0 is no bound.", Labels: team,
		},
		{
			Name: decisionsTotal, Kind: Counter, Unit: "decisions", Help: "Changed rows of plans.",
			Labels: []string{"app", "stage", "venue", "what"},
		},
	}
}

// runSeries is what becomes of runs and of their goals.
func runSeries() []Declaration {
	pipeline := []string{"pipeline"}
	return []Declaration{
		{
			Name: runsTotal, Kind: Counter, Unit: runsUnit,
			Help: "Runs by the state they reached; running counts those that started.", Labels: []string{"state"},
		},
		{
			Name: runSeconds, Kind: Histogram, Unit: secondsUnit, Help: "Time from the start of a run to its end.",
			Labels:  []string{"pipeline", "state"},
			Buckets: []float64{.1, .3, 1, 3, 10, 30, 100, 300, 900, 3600, 3 * 3600, 10 * 3600, 30 * 3600, 100 * 3600},
		},
		{
			Name: runCost, Kind: Histogram, Unit: dollarsUnit, Help: "What the attempts of a run cost altogether.",
			Labels:  []string{"pipeline", "state"},
			Buckets: []float64{1e-5, 1e-4, .001, .01, .03, .1, .3, 1, 3, 10, 30, 100, 1000},
		},
		{
			Name: runDeadlinesTotal, Kind: Counter, Unit: runsUnit, Help: "Runs that ended and had a deadline.",
			Labels: pipeline,
		},
		{
			Name: runDeadlineMisses, Kind: Counter, Unit: runsUnit, Help: "Runs that ended after their deadline.",
			Labels: pipeline,
		},
		{Name: runBudgetsTotal, Kind: Counter, Unit: runsUnit, Help: "Runs that ended and had a budget.", Labels: pipeline},
		{
			Name: runBudgetMisses, Kind: Counter, Unit: runsUnit, Help: "Runs that cost more than their budget.",
			Labels: pipeline,
		},
		{
			Name: alertsTotal, Kind: Counter, Unit: "alerts", Help: "Alerts about goals at risk and lost streams, by kind.",
			Labels: []string{"kind"},
		},
		{
			Name: eventsTotal, Kind: Counter, Unit: "events", Help: "Events that were to start a run, by what became of them.",
			Labels: []string{"result"},
		},
		{
			Name: eventsWaiting, Kind: Gauge, Unit: "events",
			Help: "Events that wait for their run: for a cap, or until starts are quick enough for theirs.",
		},
		{Name: startLimit, Kind: Gauge, Unit: runsUnit, Help: "Runs that may be started at a time, by how long starts take."},
	}
}

// hostSeries is what hosts have and what their devices do.
func hostSeries() []Declaration {
	host := []string{"host"}
	device := []string{"gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "Hostname"}
	return []Declaration{
		{Name: hostPrice, Kind: Gauge, Unit: "dollars per hour", Help: "Price of a host of the pool.", Labels: host},
		{Name: hostCPU, Kind: Gauge, Unit: coresUnit, Help: "CPU that a host of the pool can grant.", Labels: host},
		{Name: hostMemory, Kind: Gauge, Unit: bytesUnit, Help: "Memory that a host of the pool can grant.", Labels: host},
		{Name: hostGPUs, Kind: Gauge, Unit: "devices", Help: "GPUs that a host of the pool can grant.", Labels: host},
		{Name: deviceUtilisation, Kind: Gauge, Unit: "percent", Help: "GPU utilization (in %).", Labels: device},
		{Name: deviceMemoryUsed, Kind: Gauge, Unit: "mebibytes", Help: "Framebuffer memory used (in MiB).", Labels: device},
		{Name: deviceMemoryFree, Kind: Gauge, Unit: "mebibytes", Help: "Framebuffer memory free (in MiB).", Labels: device},
		{
			Name: deviceEngineActive, Kind: Gauge, Unit: ratioUnit, Help: "Ratio of time the graphics engine is active.",
			Labels: device,
		},
		{Name: devicePower, Kind: Gauge, Unit: "watts", Help: "Power draw (in W).", Labels: device},
		{
			Name: deviceErrors, Kind: Gauge, Unit: "errors", Help: "Total number of double-bit volatile ECC errors.",
			Labels: device,
		},
	}
}

// loopSeries is what the loop says of itself.
func loopSeries() []Declaration {
	return []Declaration{
		{Name: leaderGauge, Kind: Gauge, Unit: oneUnit, Help: "1 while this process leads the loop, else 0."},
		{
			Name: leaderFailures, Kind: Counter, Unit: oneUnit,
			Help: "Terms and campaigns that this process had to end; it then tries again.",
		},
		{Name: planTerm, Kind: Gauge, Unit: oneUnit, Help: "Term of the plan in force."},
		{Name: planTick, Kind: Gauge, Unit: oneUnit, Help: "Tick of the plan in force within its term."},
		{
			Name: tickSeconds, Kind: Histogram, Unit: secondsUnit,
			Help: "Time of one tick of the leader, by part: until the hosts are known, the decision, until the plan is in " +
				"force, and all of it.",
			Labels: []string{"part"}, Buckets: tickBuckets(),
		},
		{
			Name: droppedMessages, Kind: Counter, Unit: messagesUnit,
			Help: "Hints and samples that were not sent because the connection or the buffer did not take them.",
		},
		{
			Name: unreadableMessages, Kind: Counter, Unit: messagesUnit,
			Help: "Messages of the loop's stream that this build cannot read.",
		},
	}
}

// tickBuckets goes from 100 µs, of a laptop at rest, to 50 s, at which a lease is long over.
func tickBuckets() []float64 {
	return []float64{
		.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 50,
	}
}

// seconds goes from 1 ms to 1 h in steps of about 3: an environment that is reused starts in about 1 ms, a function may
// run for 15 minutes.
func seconds() []float64 {
	return []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100, 300, 900, 3600}
}
