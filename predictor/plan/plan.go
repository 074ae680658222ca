package plan

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/venue"
)

// MaxSlots bounds the slots of one stage at one venue, and with them the time that a tick takes, whatever room is
// claimed.
const MaxSlots = 4096

// Snapshot is everything Decide is told besides the State: the time, the room there is and the terms on which more can
// be had.
type Snapshot struct {
	// Now is the time of the tick.
	Now time.Time
	// Term is that of the deciding leader: whoever takes the lead takes the next one. The Plan carries it and counts its
	// Ticks within it.
	Term uint64
	// Hosts are the hosts whose lease is valid now.
	Hosts []Host
	// Functions says what the function venue offers.
	Functions venue.Functions
	// Policy is the configuration of the autoscaler.
	Policy Policy
	// Teams are those whose shares of the pool and whose bounds somebody has declared; without any, who a run belongs to
	// decides nothing.
	Teams []Team
}

// Host is one machine of the pool, as its agent describes it.
type Host struct {
	// ID is the host's name, unique in the stack.
	ID string `json:"id"`
	// Instance names the start of its agent that runs attempts there now; empty where that is of an earlier build.
	Instance string `json:"instance,omitempty"`
	// Capacity is what its children may hold together.
	Capacity quantity.Size `json:"capacity"`
	// Free is what is not granted to running attempts now.
	Free quantity.Size `json:"free"`
	// PricePerHour is what holding the whole Capacity costs, in money per hour.
	PricePerHour quantity.Money `json:"price_per_hour_picodollars"`
	// CPUs lists the CPU numbers that children are kept on; empty means all.
	CPUs []int `json:"cpus,omitempty"`
	// GPUs are those that attempts may have, in the order of the PCI bus; nil where the host has none.
	GPUs []GPU `json:"gpus,omitempty"`
	// GPUsUnknown says that the driver of the host's GPUs has not answered yet since its agent began: there may be some.
	GPUsUnknown bool `json:"gpus_unknown,omitempty"`
	// Drained says that it takes no new work: nothing is placed there, and what runs there ends by itself.
	Drained bool `json:"drained,omitempty"`
	// DiskFull says that its disk has no room for what attempts write: nothing is placed there until it has.
	DiskFull bool `json:"disk_full,omitempty"`
	// Lacks are the builds of which the host cannot run stages, by its own word, and the stages of which the engine gives
	// it no tasks; nil where it can run all.
	Lacks []Lack `json:"lacks,omitempty"`
	// TrainingAddress is the IP address at which processes of other hosts reach its own in a gang; empty where it takes no
	// part in any.
	TrainingAddress string `json:"training_address,omitempty"`
	// Enforcement names how sizes are enforced: "none", later "cgroup v2" or "cgroup v1".
	Enforcement string `json:"enforcement"`
	// At is when the agent wrote this, by its clock; of a host that loop.Leases has listed, when NATS took it.
	At time.Time `json:"at"`
}

// TakesWork says that new work may be placed there.
func (h Host) TakesWork() bool { return !h.Drained && !h.DiskFull }

// Lack is a build of which a host cannot run stages, and why: its program is for other machines, or it needs what only
// another has, or is told to no such host.
type Lack struct {
	App   string `json:"app"`
	Build string `json:"build"`
	// Stage is the only one of them that it cannot run; empty for all.
	Stage string `json:"stage,omitempty"`
	Why   string `json:"why"`
}

// LackOf says why the host cannot run a stage; lacks is false where it can.
func (h Host) LackOf(stage fact.StageID) (why string, lacks bool) {
	for _, lack := range h.Lacks {
		if lack.App == stage.App && lack.Build == stage.Build && (lack.Stage == "" || lack.Stage == stage.Name) {
			return lack.Why, true
		}
	}
	return "", false
}

// Part reports whether it is an instance of a GPU that was divided (MIG). A program sees one of these only, so an
// attempt of several GPUs has whole ones.
func (g GPU) Part() bool { return g.Profile != "" }

// GPU is one device of a host, or an instance of one, as its driver told it last.
type GPU struct {
	// UUID names it everywhere; Index is its number on its host, Instance that of a part of it (MIG), -1 for a whole one.
	UUID     string `json:"uuid"`
	Index    int    `json:"index"`
	Instance int    `json:"instance"`
	// Bus is its place on the PCI bus, "00000000:3B:00.0", empty where nobody tells. Of a part of a GPU, GPUInstance is
	// the number that nvidia-smi gives it, and Profile which part it is, "3g.20gb".
	Bus         string `json:"bus,omitempty"`
	GPUInstance int    `json:"gpu_instance,omitempty"`
	Profile     string `json:"profile,omitempty"`
	// Name is the product, Class how sizes call it, such as "h100".
	Name  string `json:"name"`
	Class string `json:"class"`
	// Memory is what programs can have of it, Used what they have.
	Memory quantity.Bytes `json:"memory_bytes"`
	Used   quantity.Bytes `json:"used_bytes"`
	// Busy is the share of the time in which it computed, 0 to 1, Watts what it draws; -1 where nobody tells.
	Busy  float64 `json:"busy"`
	Watts float64 `json:"watts"`
	// Uncorrected counts the errors of its memory that could not be corrected (ECC) since the driver was loaded; -1 where
	// nobody tells.
	Uncorrected int64 `json:"uncorrected_errors"`
	// Holder is the attempt that has it; nil when none does.
	Holder *GPUHolder `json:"holder,omitempty"`
	// Others are processes that compute on it and are not its holder's, those with most memory first, at most
	// MostOthers. OthersUnknown says that nobody can tell which those are: the driver does not tell, or by PIDs of
	// another namespace.
	Others        []GPUProcess `json:"others,omitempty"`
	OthersUnknown bool         `json:"others_unknown,omitempty"`
	// Wrong says why it cannot be used; empty when it can.
	Wrong string `json:"wrong,omitempty"`
}

// MostOthers bounds the processes that a host tells of one of its GPUs.
const MostOthers = 4

// GPUHolder is an attempt that has a GPU for itself.
type GPUHolder struct {
	Run     string `json:"run"`
	Stage   string `json:"stage"`
	Task    string `json:"task"`
	Attempt int    `json:"attempt"`
}

// GPUProcess is a process that computes on a GPU.
type GPUProcess struct {
	PID int `json:"pid"`
	// Memory is what it holds of the GPU; -1 where nobody tells.
	Memory quantity.Bytes `json:"memory_bytes"`
}

// Policy is the configuration of the autoscaler. The zero value is not useful; use DefaultPolicy.
type Policy struct {
	// Static keeps every stage at its declared or first size and never spills (--predictor=off).
	Static bool `json:"static"`
	// Shadow sizes as Static does, but predicts what would have been granted, so that the predictions can be watched
	// (--predictor=shadow).
	Shadow bool `json:"shadow,omitempty"`
	// Undivided leaves each stage of a run with a goal what earlier runs left it: the whole budget that is left, and the
	// time until what followed them would miss the deadline. It is what dividing the goal is measured beside.
	Undivided bool `json:"undivided,omitempty"`
	// ValueOfTime is what an hour of earlier finish is worth to a run whose goal does not say, per hour.
	ValueOfTime quantity.Money `json:"value_of_time_picodollars_per_hour"`
	// IdleAfter is how long a stage without work keeps its last slot at most. Within it that is for how long keeping it
	// costs as much as starting a child again, half of it or twice, as tasks are expected (provision.Idle); half a minute
	// where a start has not been measured or hosts have no price. 0 keeps none.
	IdleAfter time.Duration `json:"idle_after_ns"`
	// Window is the number of tasks of one run and stage in flight at first.
	Window int `json:"window"`
	// MaxWindow bounds every window.
	MaxWindow int `json:"max_window"`
	// Margin is the usual head-room of memory above the largest of the past peaks for the same input, as a ratio: 0.1
	// means 10 percent. It is given while little is known; a stage whose peaks are known to differ by less has less.
	Margin float64 `json:"margin"`
	// MinMemory is the smallest memory grant; what is learned has more above it, see size.Least.
	MinMemory quantity.Bytes `json:"min_memory_bytes"`
	// ErrorBound is the tracked error of the predictions of run times and of peaks, as a ratio, above which a stage falls
	// back to its static size and says so.
	ErrorBound float64 `json:"error_bound"`
}

// DefaultPolicy returns the defaults that `spillway dev --help` states.
func DefaultPolicy() Policy {
	return Policy{
		ValueOfTime: quantity.USD,
		IdleAfter:   10 * time.Minute,
		Window:      64,
		MaxWindow:   500,
		Margin:      0.10,
		MinMemory:   quantity.MiB,
		ErrorBound:  2,
	}
}

// Plan is what every venue holds from now on. It is one value: actuators obey their rows and reject plans of a lower
// term.
type Plan struct {
	// Term is that of the leader that decided; a higher term always wins.
	Term uint64 `json:"term"`
	// Tick counts plans within a term.
	Tick uint64 `json:"tick"`
	// At is when it was decided.
	At time.Time `json:"at"`
	// Grants are sorted by stage (app, name, build), then venue. A stage and venue without a row holds nothing.
	Grants []Grant `json:"grants,omitempty"`
	// Placements say which host carries how many of a grant's pool slots, sorted by stage, then host.
	Placements []Placement `json:"placements,omitempty"`
	// Windows are sorted by run, then stage; a run and stage without a row keeps what it has.
	Windows []Window `json:"windows,omitempty"`
	// Sizings say how attempts are sized at admission, sorted by stage.
	Sizings []size.Sizing `json:"sizings,omitempty"`
	// Trainings tell attempts how earlier split trainings of their stage went, sorted by stage. A stage without a row had
	// none, or there was no room for them.
	Trainings []PastTraining `json:"trainings,omitempty"`
	// TimesToLoss say how often attempts are lost, sorted by device class. A class without a row has UsualTimeToLoss.
	TimesToLoss []TimeToLoss `json:"times_to_loss,omitempty"`
	// Kinds are those of the hosts with a valid lease, so that who cannot have its GPUs or its memory on one host knows
	// whether another can give them; none where one host is alone.
	Kinds []HostKind `json:"kinds,omitempty"`
	// Teams are how those stand that were declared or have work, sorted by name; none where none was declared.
	Teams []TeamRow `json:"teams,omitempty"`
	// Decisions are the rows that changed in this plan, each with its reason.
	Decisions []Decision `json:"decisions,omitempty"`
}

// Supersedes reports whether p was decided after other: in a later term, or later in the same one.
func (p Plan) Supersedes(other Plan) bool {
	return p.Term > other.Term || p.Term == other.Term && p.Tick > other.Tick
}

// Grant is the room of one stage at one venue.
type Grant struct {
	Stage fact.StageID  `json:"stage"`
	Venue fact.Venue    `json:"venue"`
	Slots int           `json:"slots"`
	Size  quantity.Size `json:"size"` // the default size of one slot
	// PoolOnly says that the stage's second queue has work and is polled too.
	PoolOnly bool `json:"pool_only,omitempty"`
	// Batch is how many tasks each function slot's invoke may carry; the zero Batch is one. A worker that does not know
	// of it invokes a function for each task.
	Batch Batch `json:"batch,omitzero"`
}

// Batch says how tasks share an invoke of a function. They run one after another, and each is answered alone.
type Batch struct {
	// Tasks is how many an invoke carries at most; 0 and 1 are one task an invoke.
	Tasks int `json:"tasks"`
	// Wait is for how long the first of them waits for others at most.
	Wait time.Duration `json:"wait_ns,omitempty"`
}

// Most is how many tasks an invoke carries at most, at least 1.
func (b Batch) Most() int { return max(b.Tasks, 1) }

// Placement is the part of a pool grant that one host carries.
type Placement struct {
	Stage  fact.StageID `json:"stage"`
	Host   string       `json:"host"`
	Device string       `json:"device,omitempty"`
	Slots  int          `json:"slots"`
}

// The first and the last of Temporal's priority keys.
const (
	PriorityFirst = 1
	PriorityLast  = 5
)

// TuningWindow is how many tasks of a tuning are in flight at first: it is told more as slots come to work for it.
const TuningWindow = 4

// Window bounds how many tasks of one run and stage are in flight. A run and stage without a row keeps what it has: the
// default unless there was one.
type Window struct {
	Run   string       `json:"run"`
	Stage fact.StageID `json:"stage"`
	Tasks int          `json:"tasks"`
	// Priority is Temporal's priority key: 1 is first, 5 last, 3 the default.
	Priority int `json:"priority"`
}

// PastTraining is how earlier split trainings of a stage went: what came of their plans corrects the next one.
type PastTraining struct {
	Stage fact.StageID `json:"stage"`
	// Newest are up to PastTrainings of them, the newest first, each with a measured time of a step and without its
	// alternatives and reason.
	Newest []fact.Training `json:"newest"`
}

// TimeToLoss is how long an attempt on devices of a class goes on in the mean before it is lost with its host.
type TimeToLoss struct {
	// DeviceClass is that of the size which attempts hold; empty is the CPU's.
	DeviceClass string `json:"device_class,omitempty"`
	// Mean is more than 0. It is rounded to a power of the square root of two, so that it changes seldom.
	Mean time.Duration `json:"mean_ns"`
}

// UsualTimeToLoss is how long an attempt goes on in the mean before it is lost where nothing is known: a host that is
// started anew each day.
const UsualTimeToLoss = 24 * time.Hour

// Decision is one changed row of a plan and why it changed. Only changes are stored.
type Decision struct {
	// ID is unique within the stack: term, tick and row.
	ID    string       `json:"id"`
	At    time.Time    `json:"at"`
	Stage fact.StageID `json:"stage"`
	Venue fact.Venue   `json:"venue,omitempty"`
	Run   string       `json:"run,omitempty"` // for windows
	// What changed: "slots", "size", "live size", "time", "window" or "batch".
	What string `json:"what"`
	// From and To are the row before and after, as people read it: "1 slot", "0.9 cores, 96 MiB".
	From string `json:"from"`
	To   string `json:"to"`
	// Reason is one sentence with the numbers that led here.
	Reason string `json:"reason"`
	// Rejected are the ways that were not chosen, with their price and how likely each is in time, at most MostRejected.
	Rejected []Rejected `json:"rejected,omitempty"`
	// Inputs are the numbers that the decision used, by name with unit: "backlog_tasks", "pool_wait_seconds".
	Inputs map[string]float64 `json:"inputs,omitempty"`
	// Predicted is what the decision expects, in PredictedUnit; the actual is joined to it from later Records.
	Predicted     fact.Interval `json:"predicted"`
	PredictedUnit string        `json:"predicted_unit,omitempty"`
}

// MostRejected bounds what a decision tells of what was rejected: a plan must fit into one message of a mebibyte.
const MostRejected = 4

// Rejected is a way that a decision did not choose.
type Rejected struct {
	// What is the way, as people read it: "2 slots", "4 functions that exchange through a store".
	What  string     `json:"what"`
	Venue fact.Venue `json:"venue"`
	// Price is what it would cost: that of functions is what they would be billed; that of the pool is 0 where its hosts
	// are held anyway, or the price of its slot for the time where that is what is compared.
	Price quantity.Money `json:"price_picodollars"`
	// Seconds is how long until the work is expected to be done; 0 where it never is.
	Seconds float64 `json:"seconds,omitempty"`
	// Chance is the probability with which the deadline would be met, from 0 to 1; -1 where there is none, or where nobody
	// has drawn it.
	Chance float64 `json:"chance"`
}
