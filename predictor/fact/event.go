package fact

import (
	"cmp"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// StageID names one stage of one build of an app. The zero value names nothing.
type StageID struct {
	// App is the name given to app.Main.
	App string `json:"app"`
	// Build is the digest of the binary, so that a task runs the code that its run was started with.
	Build string `json:"build"`
	// Name is the stage's own name.
	Name string `json:"name"`
	// Team is the team whose runs these tasks are of; empty is the default team. Each team has a queue of its own, since
	// who polls a queue cannot choose among its tasks: what is given to a team would else go to another.
	Team string `json:"team,omitempty"`
}

// Queue is the task queue that the pool and the spill worker both poll.
func (s StageID) Queue() string {
	queue := s.App + "@" + s.Build + "/" + s.Name
	if s.Team != "" {
		queue += teamMark + s.Team
	}
	return queue
}

// PoolQueue is the task queue for what functions must not run; only the pool polls it.
func (s StageID) PoolQueue() string { return s.Queue() + poolMark }

// poolMark is behind the name of a queue that only the pool polls.
const poolMark = ".pool"

// Has reports whether a task queue is one of the two of the stage.
func (s StageID) Has(queue string) bool { return queue == s.Queue() || queue == s.PoolQueue() }

// HasOfAnyTeam reports whether a task queue is one of those that any team has of the stage. Team does not matter.
func (s StageID) HasOfAnyTeam(queue string) bool {
	s.Team = ""
	rest, is := strings.CutPrefix(queue, s.Queue())
	return is && (rest == "" || rest == poolMark || strings.HasPrefix(rest, teamMark))
}

// Model is the name under which sizes are learned: it outlives builds.
func (s StageID) Model() string { return s.App + "/" + s.Name }

// Charged is the name under which costs are kept: that of the model, and of whose tasks it runs. Who is asked what a
// stage cost adds up those of all teams.
func (s StageID) Charged() string {
	if s.Team == "" {
		return s.Model()
	}
	return s.Model() + teamMark + s.Team
}

// TeamOf splits a name that Charged made.
func TeamOf(charged string) (model, team string) {
	at := strings.LastIndex(charged, teamMark)
	if at < 0 || strings.Contains(charged[at:], "/") { // the name of an app may be any
		return charged, ""
	}
	return charged[:at], charged[at+len(teamMark):]
}

// teamMark is before the name of a team where it follows that of a stage, which has none.
const teamMark = "~"

// String is the queue's name.
func (s StageID) String() string { return s.Queue() }

// Venue is where attempts execute.
type Venue string

// The venues.
const (
	// Pool is processes on hosts.
	Pool Venue = "pool"
	// Function is Lambda-style functions.
	Function Venue = "function"
)

// Objective is what a run without a deadline and without a budget minimises.
type Objective string

// The objectives. The empty Objective buys time as long as an hour of it costs less than the configured value of time.
const (
	// Cost never pays more to finish earlier.
	Cost Objective = "cost"
	// Latency pays whatever the budget allows to finish earlier.
	Latency Objective = "latency"
)

// Goal is what a run is to achieve. The zero value has neither deadline nor budget.
type Goal struct {
	// Deadline is how long after its start the run shall end; 0 means none.
	Deadline time.Duration `json:"deadline_ns,omitempty"`
	// Confidence is the probability with which the deadline is to be met, from LeastConfidence to MostConfidence; 0 means
	// UsualConfidence.
	Confidence float64 `json:"confidence,omitempty"`
	// Budget is the most that the run may cost; 0 means no limit.
	Budget quantity.Money `json:"budget_picodollars,omitempty"`
	// Minimise is the objective within deadline and budget.
	Minimise Objective `json:"minimise,omitempty"`
}

// The probabilities with which a deadline can be asked to be met: below the least nothing is asked, and of what is
// rarer than the most leaves out, the attempts that are remembered tell nothing.
const (
	LeastConfidence = 0.5
	UsualConfidence = 0.9
	MostConfidence  = 0.999
)

// Asked is the probability with which the deadline is to be met.
func (g Goal) Asked() float64 { return cmp.Or(g.Confidence, UsualConfidence) }

// Event is one fact that Fold remembers. Implementations are the structs of this file, always by value.
type Event interface {
	// When is the time at which the fact happened, by the clock of whoever saw it.
	When() time.Time
}

// RunStarted says that a run began.
type RunStarted struct {
	Run      string `json:"run"`
	Pipeline string `json:"pipeline"`
	App      string `json:"app"`
	Build    string `json:"build"`
	Goal     Goal   `json:"goal"`
	Input    []byte `json:"input,omitempty"` // the encoded input, cut to 1 KiB, for display
	// InputBytes is how large the encoded input is together with the artifacts that it names; 0 when it is not known.
	InputBytes quantity.Bytes `json:"input_bytes,omitempty"`
	// Features are the numbers of the encoded input, by name, and the values of its categories (usage.Category); nil where
	// it has none, or the engine did not tell.
	Features map[string]float64 `json:"features,omitempty"`
	// Stages are those that the run calls and no others, by name, where its code says so beforehand, as a chain's does;
	// nil where it does not. Some of them it may not call.
	Stages []string `json:"stages,omitempty"`
	Event  string   `json:"event,omitempty"` // ID of the event that triggered the run
	// EventAt is when that event was published; the zero time when none was.
	EventAt time.Time `json:"event_at,omitzero"`
	// RetryOf is the run that this one tries again; empty for none.
	RetryOf string `json:"retry_of,omitempty"`
	// Team is whose the run is; empty is the default team.
	Team string `json:"team,omitempty"`
	// Traceparent is the trace context that came with the event, as W3C Trace Context writes it; empty for none.
	Traceparent string    `json:"traceparent,omitempty"`
	At          time.Time `json:"at"`
}

// GoalChanged says that the goal of a run going on is another from now on.
type GoalChanged struct {
	Run  string    `json:"run"`
	Goal Goal      `json:"goal"`
	At   time.Time `json:"at"`
}

// RunState is how a run stands.
type RunState string

// The states of a run.
const (
	RunRunning   RunState = "running"
	RunSucceeded RunState = "succeeded"
	RunFailed    RunState = "failed"
	RunCancelled RunState = "cancelled"
)

// RunEnded says that a run is over.
type RunEnded struct {
	Run    string    `json:"run"`
	State  RunState  `json:"state"`
	Error  string    `json:"error,omitempty"`
	Result []byte    `json:"result,omitempty"` // the encoded result, cut to 4 KiB, for display
	At     time.Time `json:"at"`
}

// Scheduled is the hint that tasks were put on a stage's queue. A hint may be lost or doubled; BacklogObserved corrects
// it.
type Scheduled struct {
	Run      string         `json:"run"`
	Stage    StageID        `json:"stage"`
	Tasks    int            `json:"tasks"`               // how many; 0 only announces
	PoolOnly bool           `json:"pool_only,omitempty"` // on the queue that functions do not poll
	Input    quantity.Bytes `json:"input_bytes"`         // of one task: the encoded input and the artifacts it names
	Declared quantity.Size  `json:"declared"`            // the stage's hint; the zero Size when it has none
	// Program is what runs the task: GoProgram, a program or interpreter such as "python3", or the image of a container;
	// empty where that is not known.
	Program string `json:"program,omitempty"`
	// Imports are the modules of others that the program imports, by name; nil where nothing is known of them, empty where
	// it is known that there are none.
	Imports []string `json:"imports,omitzero"`
	// Kind is what kind of input the task reads: the endings of the names of its files, sorted, such as "csv" or
	// "jpg and json", or else whether its encoded input is a list, an object, a text or a number; empty where that is not
	// known.
	Kind string `json:"kind,omitempty"`
	// Fixed says that attempts are given no more memory while they run: those in containers, whose engine holds them to
	// what it was told at the start, and those of a stage that decides its own sizes.
	Fixed bool `json:"fixed,omitempty"`
	// Hosts is on how many hosts at once a task runs at most, each of which holds its size; 0 and 1 are one.
	Hosts int `json:"hosts,omitempty"`
	// Batches says that the build's functions take several tasks with one invoke; those of earlier builds take one.
	Batches bool `json:"batches,omitempty"`
	// Unfit is why the task is on the queue that functions do not poll, where that follows from what it is.
	Unfit string `json:"unfit,omitempty"`
	// further tasks of this stage that the run announces: each is hinted again, and then used up, when it is scheduled
	Expected int `json:"expected,omitempty"`
	// Withdrawn is how many of those that were announced will not come, where Tasks and Expected are 0: a tuning ends
	// before all its trials, or takes what an earlier run did.
	Withdrawn int `json:"withdrawn,omitempty"`
	// Tuning says that the tasks are those of a tuning, which decides what the next one does when another ends: the fewer
	// wait, the more it knows.
	Tuning bool      `json:"tuning,omitempty"`
	At     time.Time `json:"at"`
}

// Reused says that a run took results of earlier runs instead of running tasks.
type Reused struct {
	Run   string  `json:"run"`
	Stage StageID `json:"stage"`
	Tasks int     `json:"tasks"`
	// From is the run of which the latest of them came.
	From string `json:"from"`
	// Saved is what the tasks cost when they ran, Wall for how long.
	Saved quantity.Money `json:"saved_picodollars"`
	Wall  time.Duration  `json:"saved_ns"`
	At    time.Time      `json:"at"`
}

// GoProgram is the program of a stage that is a function of the user's build.
const GoProgram = "go"

// HostHeld says that a host of the pool was there, held or not, from From to At: what it costs is owed by somebody.
type HostHeld struct {
	Host         string         `json:"host"`
	Capacity     quantity.Size  `json:"capacity"`
	PricePerHour quantity.Money `json:"price_per_hour_picodollars"`
	From         time.Time      `json:"from"`
	At           time.Time      `json:"at"`
}

// BacklogObserved is what the queue itself said: the corrective of hints.
type BacklogObserved struct {
	Stage    StageID   `json:"stage"`
	PoolOnly bool      `json:"pool_only,omitempty"`
	Tasks    int       `json:"tasks"` // waiting in the queue, not running
	At       time.Time `json:"at"`
}

// AttemptStarted says that a venue took a task from the queue and that user code is about to run.
type AttemptStarted struct {
	Run     string  `json:"run"`
	Stage   StageID `json:"stage"`
	Task    string  `json:"task"`
	Attempt int     `json:"attempt"`
	Venue   Venue   `json:"venue"`
	Host    string  `json:"host"`
	// Supervisor is the host of the process that supervises the attempt; empty means Host. Instance is which start of
	// that process it is.
	Supervisor string        `json:"supervisor,omitempty"`
	Instance   string        `json:"instance,omitempty"`
	PoolOnly   bool          `json:"pool_only,omitempty"`
	Queue      time.Duration `json:"queue_ns"` // from scheduling to here
	Grant      quantity.Size `json:"grant"`
	// GPUs are those that the attempt has, by UUID.
	GPUs []string `json:"gpus,omitempty"`
	// Members are the other hosts of its gang, with what they cost per hour; nil where it runs on one host.
	Members []HostShare `json:"members,omitempty"`
	// Input and Features are what is known of the task before it runs, as its Record will have them, of Features those by
	// which its run time is expected; 0 and nil where an engine of an earlier build has started it.
	Input    quantity.Bytes     `json:"input_bytes,omitempty"`
	Features map[string]float64 `json:"features,omitempty"`
	At       time.Time          `json:"at"`
}

// HostShare is what another host than an attempt's own holds for it, where it runs on several. The attempt's own host
// tells it: the other one tells of itself only for how long it was there.
type HostShare struct {
	Host string `json:"host"`
	// PerHour is what it costs that the host holds its part for an hour, Cost what it came to. One of them is told: the
	// first while the attempt runs, the second once it has ended.
	PerHour quantity.Money `json:"per_hour_picodollars,omitempty"`
	Cost    quantity.Money `json:"cost_picodollars,omitempty"`
	// Held is for how long it held its part, from the beginning of the attempt on, once that has ended; 0 is to its end,
	// as of Records of an engine of an earlier build.
	Held time.Duration `json:"held_ns,omitempty"`
}

// HostStarted says that the process which supervises the attempts of a venue on a host has started anew: whatever an
// earlier instance of it ran there is lost. It is told, durably, before the new instance takes its first task.
type HostStarted struct {
	// Host is the host of the supervisor: for functions that of the spill worker.
	Host string `json:"host"`
	// Venue is where the attempts run that it supervises.
	Venue Venue `json:"venue"`
	// Instance names this start among all of the same host and venue; it is random.
	Instance string    `json:"instance"`
	At       time.Time `json:"at"`
}

// Sampled is one look at a running attempt.
type Sampled struct {
	Run     string         `json:"run"`
	Stage   StageID        `json:"stage"`
	Task    string         `json:"task"`
	Attempt int            `json:"attempt"`
	Venue   Venue          `json:"venue"`
	Host    string         `json:"host"`
	CPU     quantity.Milli `json:"cpu_milli"`    // mean share since the last sample
	Memory  quantity.Bytes `json:"memory_bytes"` // resident now
	// Throttled is the share of the time since the last sample in which the CPU limit held the attempt back, 0 to 1.
	Throttled float64 `json:"throttled,omitempty"`
	// GPU is how its GPUs stand; nil where it has none, or nobody has looked at them yet.
	GPU     *GPUSample         `json:"gpu,omitempty"`
	Grant   quantity.Size      `json:"grant"`             // held now
	Step    int                `json:"step,omitempty"`    // last Progress step; 0 when none
	Of      int                `json:"of,omitempty"`      // of how many, by its own word; 0 where it did not say
	Metrics map[string]float64 `json:"metrics,omitempty"` // last Progress metrics
	// NotFinite are those of its metrics, by name, that were NaN or infinite, as a loss that has diverged.
	NotFinite []string `json:"not_finite,omitempty"`
	// Training is how a split training goes; nil when it has told nothing new since the sample before. Its alternatives
	// and reason are left out while they are those of an earlier sample.
	Training *Training `json:"training,omitempty"`
	At       time.Time `json:"at"`
}

// GPUSample is one look at all GPUs of a running attempt.
type GPUSample struct {
	// Memory is what the attempt holds of their memory together.
	Memory quantity.Bytes `json:"memory_bytes"`
	// Busy is how many of them were computing, as a mean over the moments before; -1 where the driver does not tell, as
	// of parts of GPUs.
	Busy float64 `json:"busy"`
}

// Outcome is how an attempt ended.
type Outcome string

// The outcomes. Only OutOfMemory makes the next attempt larger; only Failed and TimedOut count against the stage's
// attempts.
const (
	Succeeded   Outcome = "succeeded"
	Failed      Outcome = "failed"        // the user's code returned an error, panicked or exited
	OutOfMemory Outcome = "out_of_memory" // killed at, or refused memory within, its grant
	TimedOut    Outcome = "timed_out"     // ran past the stage's timeout or the function's limit
	Cancelled   Outcome = "cancelled"     // the run was cancelled
	Lost        Outcome = "lost"          // the host or its supervisor went away
	Refused     Outcome = "refused"       // the venue cannot run this task; it goes to the pool
)

// CannotRun begins the Error of an attempt that a function refused.
const CannotRun = "a function cannot run this task: "

// Next is what becomes of a task after an attempt that came to nothing.
type Next string

// What becomes of it. The empty Next is another attempt, or that nobody told.
const (
	// NextNothing says that no further attempt is made: the task has failed, or was cancelled.
	NextNothing Next = "nothing"
	// NextPool says that the task is scheduled anew, and hinted anew, on the queue that only the pool polls.
	NextPool Next = "pool"
)

// Cause is what made an attempt end otherwise than well.
type Cause string

// The causes. The first four are OutOfMemory or, for CauseHostMemory on a host that enforces limits, Lost.
const (
	// CauseMemoryLimit says that the kernel killed the attempt at its own limit.
	CauseMemoryLimit Cause = "memory_limit"
	// CauseMemoryRefused says that the system gave it no more memory and it gave up.
	CauseMemoryRefused Cause = "memory_refused"
	// CauseHostMemory says that the kernel killed it because the host ran out of memory.
	CauseHostMemory Cause = "host_memory"
	// CauseDeviceMemory says that a GPU gave it no more memory.
	CauseDeviceMemory Cause = "device_memory"
	// CauseDisk says that it wrote more than it may.
	CauseDisk Cause = "disk"
	// CauseTimeout says that it ran past a time limit.
	CauseTimeout Cause = "timeout"
	// CauseError says that the user's code returned an error, CausePanic that it panicked.
	CauseError Cause = "error"
	CausePanic Cause = "panic"
	// CauseExit says that the process ended by itself with an exit code, CauseSignal that somebody else killed it.
	CauseExit   Cause = "exit"
	CauseSignal Cause = "signal"
	// CauseStart says that its process could not be started.
	CauseStart Cause = "start"
	// CauseImpossible says that no host has what it needs.
	CauseImpossible Cause = "impossible"
	// CauseNoGPU says that its host had no GPU for it: none that works or suits, or other programs use them.
	CauseNoGPU Cause = "no_gpu"
	// CauseNoMemory says that its host has less memory than it needs, and another has more.
	CauseNoMemory Cause = "no_memory"
	// CauseCancelled says that its run was cancelled.
	CauseCancelled Cause = "cancelled"
	// CauseHostLost says that its host or supervisor went away: a crash, a reclaimed spot instance, a drain.
	CauseHostLost Cause = "host_lost"
	// CauseBudget says that its run's budget had no more for it.
	CauseBudget Cause = "budget"
	// CauseVenue says that its venue could not run it, for reasons of the venue.
	CauseVenue Cause = "venue"
	// CauseThrottled says that its venue took no more at the time, CausePayload that what it was given, or what it
	// answered, is over what its venue passes on.
	CauseThrottled Cause = "throttled"
	CausePayload   Cause = "payload"
)

// Record is the durable line about one finished attempt.
type Record struct {
	Run      string  `json:"run"`
	Pipeline string  `json:"pipeline"`
	Stage    StageID `json:"stage"`
	Task     string  `json:"task"`
	Attempt  int     `json:"attempt"` // from 1
	Venue    Venue   `json:"venue"`
	Host     string  `json:"host"`
	PoolOnly bool    `json:"pool_only,omitempty"`
	Outcome  Outcome `json:"outcome"`
	Cause    Cause   `json:"cause,omitempty"` // empty on success
	Error    string  `json:"error,omitempty"` // empty on success
	Next     Next    `json:"next,omitempty"`

	ScheduledAt time.Time     `json:"scheduled_at"`
	Queue       time.Duration `json:"queue_ns"` // waiting for a slot and for admission
	Start       time.Duration `json:"start_ns"` // starting a child or an environment; near 0 when one was reused
	Cold        bool          `json:"cold"`     // a new child or environment was started
	// Init is the part of Start in which a function's new environment began, which is billed; 0 where none did, at the
	// pool, and in Records of engines that did not tell. Billed is for how long its invoke was billed, Init included; 0 at
	// the pool, and where the venue did not say. Where the invoke had several tasks, Billed is the attempt's part of that,
	// by its run time, and Init is with the first of them. Batch is how many tasks it had; 0 and 1 are one.
	Init   time.Duration `json:"init_ns,omitempty"`
	Billed time.Duration `json:"billed_ns,omitempty"`
	Batch  int           `json:"batch,omitempty"`
	// Settle is the time from the end of the user's code to At: its answer was delivered, its output closed.
	Settle time.Duration `json:"settle_ns,omitempty"`
	At     time.Time     `json:"at"` // the end

	Grant quantity.Size `json:"grant"`
	// GPUs are those that it had, by UUID.
	GPUs      []string       `json:"gpus,omitempty"`
	Predicted Prediction     `json:"predicted"`
	Usage     quantity.Usage `json:"usage"`
	// Features are the numbers that were known of the task before it ran, by name, besides the bytes of its input, and
	// the values of categories (usage.Category).
	Features map[string]float64 `json:"features,omitempty"`
	// Step is the last step that this attempt reported as done, Of how many it said that there are, and Metrics are those
	// that came with it: what came after the last sample is in no other event. 0 and nil when it reported none, or when it
	// was an attempt of an engine that did not tell.
	Step    int                `json:"step,omitempty"`
	Of      int                `json:"of,omitempty"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
	// NotFinite are those of its metrics, by name, that were NaN or infinite.
	NotFinite []string `json:"not_finite,omitempty"`
	// Curve is how the metric by which its training is followed went, over all of its reports; nil where it reported fewer
	// than two, or none that says which way is better.
	Curve *Curve `json:"curve,omitempty"`
	// Checkpoints is how many this attempt made from which a retry can go on; 0 where it did not tell.
	Checkpoints int `json:"checkpoints,omitempty"`
	// Training is how a split training went, as the attempt told it last; nil when it told nothing.
	Training *Training      `json:"training,omitempty"`
	Cost     quantity.Money `json:"cost_picodollars"`
	// Members are the other hosts of its gang, with the parts of Cost that are theirs, which come to no more than that;
	// nil where it ran on one host.
	Members []HostShare `json:"members,omitempty"`
}

// Ended is when the attempt ended, by the clock by which it was scheduled: that of the server, which is that of runs
// and of the calls of stages too. A host tells only for how long it took; its own clock may be an hour off.
func (e Record) Ended() time.Time {
	if e.ScheduledAt.IsZero() {
		return e.At
	}
	took := time.Duration(0)
	for _, part := range []time.Duration{e.Queue, e.Start, e.Usage.Wall, e.Settle} {
		took += min(max(part, 0), MaxWall)
	}
	return e.ScheduledAt.Add(took)
}

// Prediction is what was expected of an attempt when it was admitted.
type Prediction struct {
	// Memory is the expected peak, in bytes.
	Memory Interval `json:"memory_bytes"`
	// Wall is the expected run time, in seconds.
	Wall Interval `json:"wall_seconds"`
	// Source says what the prediction rests on: "declared", "host's free room", "23 attempts", "grown after out of
	// memory".
	Source string `json:"source"`
	// Guess says that the peak is what other stages took, or less: how far it is off says nothing of what is learned.
	Guess bool `json:"guess,omitempty"`
}

// When returns At.
func (e RunStarted) When() time.Time { return e.At }

// When returns At.
func (e GoalChanged) When() time.Time { return e.At }

// When returns At.
func (e RunEnded) When() time.Time { return e.At }

// When returns At.
func (e Scheduled) When() time.Time { return e.At }

// When returns At.
func (e Reused) When() time.Time { return e.At }

// When returns At.
func (e HostHeld) When() time.Time { return e.At }

// When returns At.
func (e BacklogObserved) When() time.Time { return e.At }

// When returns At.
func (e AttemptStarted) When() time.Time { return e.At }

// When returns At.
func (e HostStarted) When() time.Time { return e.At }

// When returns At.
func (e Sampled) When() time.Time { return e.At }

// When returns At.
func (e Record) When() time.Time { return e.At }

// CompareStages orders stages by app, name and build.
func CompareStages(a, b StageID) int {
	return cmp.Or(strings.Compare(a.App, b.App), strings.Compare(a.Name, b.Name), strings.Compare(a.Build, b.Build),
		strings.Compare(a.Team, b.Team))
}
