package predictor

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/share"
	"github.com/spillway-ml/spillway/predictor/venue"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Decide says what every venue holds from now on. It takes s over as Fold does. The same state and snapshot give the
// same plan, in the same order; the returned State remembers the plan, so that Decisions of the next list only what
// changed.
//
// The Plan's Term is that of the snapshot, its Tick counts within the term. Only stages that have work, keep a slot
// without it, or had some within the last half minute and Policy.IdleAfter, have rows: a stage without a row holds
// nothing.
func Decide(s State, snap plan.Snapshot) (plan.Plan, State) {
	m := s.own()
	d := begin(m, snap)
	d.allocate()
	d.turnWindows()
	d.plan.Trainings = m.PastTrainings(d.plan.Sizings)
	d.plan.TimesToLoss = m.TimesToLoss()
	d.finish()
	return d.plan, State{m}
}

// allocate sizes the stages and gives them their slots at both venues.
func (d *decider) allocate() {
	for _, w := range d.works {
		d.resize(w)
	}
	d.awaitRoom()
	d.shareHosts()
	d.divide()
	sized := len(d.plan.Decisions)
	d.spill()
	spilled := slices.Clone(d.plan.Decisions[sized:])
	d.plan.Decisions = d.plan.Decisions[:sized]
	d.explainSlots() // once it is known which pool slots are of use
	for _, decision := range spilled {
		d.decide(decision)
	}
}

// decider is one tick.
type decider struct {
	memory    *memory.State
	now       fact.Instant
	policy    plan.Policy
	functions venue.Functions                  // with as many slots as it is taken to have
	full      bool                             // it lately refused functions, and is taken to have less than it offers
	hosts     plan.Hosts                       // by ID, without those that take no new work
	largest   map[quantity.Size]quantity.Size  // see largestFor
	perCore   map[quantity.Size]quantity.Money // see corePrice
	lacking   bool                             // a host cannot run some build
	idled     string                           // why no host takes new work, where some is there; else empty
	works     []*work                          // by stage
	committed map[string]quantity.Money
	holders   map[holder][]string // the GPUs of attempts, by UUID
	teams     []*teamWork         // by name; nil where none was declared
	capacity  quantity.Size       // of all hosts
	claimed   quantity.Milli      // by the tasks of all stages: see pool
	pooled    bool                // both are known
	plan      plan.Plan
	waits     *waits // nil until a stage asks
	// experienced are stages that tell what others may take; nil until one asks.
	experienced memory.Experienced
}

// work is one stage that holds or wants room.
type work struct {
	stage   *memory.Stage
	size    quantity.Size
	queued  [2]int
	running map[fact.Venue]int
	held    map[string]int      // running per host that is present
	gpus    map[string][]string // those that running attempts are known to have, by host
	oldest  fact.Instant        // start of the oldest running attempt at the pool
	begun   []fact.Instant      // starts of all of these, in no order
	wall    float64             // seconds a task takes at the pool; a guess when nothing is known
	taking  taking              // what is known of that
	wait    float64             // seconds until a host has room for one of the tasks that wait; 0 while one has
	// usualWall is what tasks take of stages that are alike, in seconds; 0 until somebody asks.
	usualWall float64
	slack     float64 // seconds until the stage must be done for the earliest deadline; +Inf without one

	slots      int
	placed     []int // per host
	withheld   bool  // functions end tasks before the pool has room for one
	idle       bool
	idling     idling      // of a stage without work
	limited    bool        // it could use more slots than there is room for
	bound      share.Bound // or than its team may have
	unfinished bool
	doubted    int // tasks that its queue counts and no run is known to have; queued has at most one that is looked for
	functions  int
	training   *training // what its training costs where; nil where it trains nothing, or nobody asked
	finish     float64   // predicted seconds until the backlog is done
}

// demand is how many slots the stage could use now: at least one while tasks that a run has scheduled are not done and
// nobody runs them.
func (w *work) demand() int {
	known := w.queued[0] + w.queued[1] + w.running[fact.Pool]
	if known == 0 && w.running[fact.Function] == 0 && w.unfinished {
		return 1
	}
	return known
}

func begin(m *memory.State, snap plan.Snapshot) *decider {
	d := &decider{
		memory: m, now: fact.At(snap.Now), policy: plan.SanePolicy(snap.Policy),
		functions: snap.Functions.Sane(plan.MaxSlots),
		committed: map[string]quantity.Money{}, holders: map[holder][]string{},
		largest: map[quantity.Size]quantity.Size{}, perCore: map[quantity.Size]quantity.Money{},
	}
	m.Begin(snap.Term, d.now)
	m.Pass(d.now)
	room := m.Full.Room(d.functions.Concurrency, d.now)
	d.full = room < d.functions.Concurrency
	d.functions.Concurrency = room
	d.plan = plan.Plan{Term: m.Term, Tick: m.Tick, At: snap.Now}
	d.openHosts(snap.Hosts)
	m.Forget(snap.Hosts, d.functions.MaxDuration) // also the drained: what runs there goes on
	d.gather()
	d.openTeams(snap)
	return d
}

func (d *decider) openHosts(hosts []plan.Host) {
	for _, host := range hosts {
		host.Capacity, host.Free = plan.SaneRoom(host.Capacity), plan.SaneRoom(host.Free)
		d.hosts = append(d.hosts, host)
	}
	slices.SortStableFunc(d.hosts, func(a, b plan.Host) int { return strings.Compare(a.ID, b.ID) })
	d.hosts = slices.CompactFunc(d.hosts, func(a, b plan.Host) bool { return a.ID == b.ID })
	for _, host := range d.hosts {
		d.lacking = d.lacking || len(host.Lacks) > 0
		for _, gpu := range host.GPUs {
			if who := gpu.Holder; who != nil {
				holder := holder{memory.AttemptKey(who.Run, who.Task, who.Attempt), host.ID}
				d.holders[holder] = append(d.holders[holder], gpu.UUID)
			}
		}
	}
	d.openFor(d.hosts)
}

// openFor keeps of all hosts those that take new work, and says why where none does.
func (d *decider) openFor(all plan.Hosts) {
	stay := slices.DeleteFunc(slices.Clone(all), func(h plan.Host) bool { return h.Drained })
	if len(stay) > 1 { // one alone knows what it has; a disk that is full will have room again
		d.plan.Kinds = plan.Kinds(stay)
	}
	d.hosts = slices.DeleteFunc(slices.Clone(stay), func(h plan.Host) bool { return !h.TakesWork() })
	switch {
	case len(d.hosts) > 0 || len(all) == 0:
	case len(stay) == 0:
		d.idled = "every host is drained"
	case len(stay) == len(all):
		d.idled = "the disk of every host is full"
	default:
		d.idled = "every host is drained or its disk is full"
	}
}

// largestFor is [plan.Hosts.LargestFor], which hangs on the GPUs of what is asked for alone: a thousand hosts are
// looked through once for each kind of GPU, and not five times for each stage.
func (d *decider) largestFor(asked quantity.Size) quantity.Size {
	devices := devicesOf(asked)
	largest, known := d.largest[devices]
	if !known {
		largest = d.hosts.LargestFor(devices)
		d.largest[devices] = largest
	}
	return largest
}

// devicesOf is the part of a size that says which hosts have what it asks for.
func devicesOf(asked quantity.Size) quantity.Size {
	return quantity.Size{GPU: asked.GPU, GPUMemory: asked.GPUMemory, DeviceClass: asked.DeviceClass}
}

// holder is an attempt that has GPUs of a host, as the host tells.
type holder struct {
	attempt uint64
	host    string
}

// gpusOf are the GPUs of a host that an attempt is known to have.
func (d *decider) gpusOf(attempt uint64, host string) []string {
	if len(d.holders) == 0 {
		return nil
	}
	return d.holders[holder{attempt, host}]
}

// gather lists the stages that hold or want room.
func (d *decider) gather() {
	m := d.memory
	found := map[fact.StageID]*work{}
	for id, st := range m.Stages {
		idle := time.Duration(d.now-st.Active) < min(usualIdle, d.policy.IdleAfter)
		if st.Queues[0].Tasks > 0 || st.Queues[1].Tasks > 0 || st.Slots > 0 || st.Functions > 0 ||
			(idle && !st.Slot.IsZero()) || st.Unfinished(d.now) {
			found[id] = d.newWork(st)
		}
	}
	for key, running := range m.Attempts {
		if !running.Runs() {
			continue
		}
		w := found[running.Stage()]
		if w == nil {
			w = d.newWork(m.Stages[running.Stage()])
			found[running.Stage()] = w
		}
		w.running[running.Venue]++
		if running.Venue == fact.Pool {
			w.held[running.Host]++
			if gpus := d.gpusOf(key, running.Host); len(gpus) > 0 {
				w.gpus[running.Host] = append(w.gpus[running.Host], gpus...)
			}
			w.oldest = cmp.Or(min(w.oldest, running.Started), running.Started)
			w.begun = append(w.begun, running.Started)
		}
	}
	d.works = slices.SortedFunc(maps.Values(found), func(a, b *work) int {
		return fact.CompareStages(a.stage.ID, b.stage.ID)
	})
	d.doubt()
	for _, w := range d.works {
		d.estimate(w)
	}
}

func (d *decider) newWork(st *memory.Stage) *work {
	return &work{
		stage: st, unfinished: st.Unfinished(d.now), queued: [2]int{st.Queues[0].Tasks, st.Queues[1].Tasks},
		running: map[fact.Venue]int{}, held: map[string]int{}, gpus: map[string][]string{},
	}
}

// estimate fills in what a task takes and until when the stage must be done. Before anything was measured, that is what
// tasks of stages take that are alike, and the age of the oldest running attempt is a lower bound.
func (d *decider) estimate(w *work) {
	d.time(w, w.stage.Slot.CPU)
	w.slack = math.Inf(1)
	for _, part := range w.stage.Shares {
		if left, limited := d.timeLeft(w.stage, part); limited {
			w.slack = min(w.slack, left)
		}
	}
}

// time fills in what a task takes with a share of cores.
func (d *decider) time(w *work, cpu quantity.Milli) {
	switch w.taking = d.takingOf(w, cpu); {
	case w.taking.pace.Attempts > 0:
		w.wall = w.taking.mean
	case w.taking.known:
		w.wall = w.taking.mean * d.relative(w, fact.Pool)
	default:
		if w.wall = d.usualWall(w); w.oldest > 0 {
			w.wall = max(w.wall, d.now.Since(w.oldest))
		}
	}
	w.wall = max(w.wall, 0.001)
}

// taking is how many seconds tasks of a stage take at the pool, as attempts tell that have ended, or else those that
// run.
type taking struct {
	mean      float64
	variation float64 // of one task
	known     bool
	pace      memory.Pace // the zero value where attempts have ended
}

func (d *decider) takingOf(w *work, cpu quantity.Milli) (t taking) {
	if t.mean, t.variation, t.known = w.stage.Model.Pool(cpu); t.known || w.oldest == 0 {
		return t
	}
	if t.pace, t.known = d.memory.PaceOf(w.stage.ID, cpu.Cores(), d.now); t.known {
		t.mean, t.variation = t.pace.Mean(), math.Sqrt(math.Expm1(t.pace.Spread*t.pace.Spread))
	}
	return t
}

// of is how far tasks lie from the mean that so many tasks let it be known by: what none of them knows, they share.
func (t taking) of(tasks float64) float64 {
	return math.Hypot(t.variation, math.Sqrt(math.Expm1(t.pace.Doubt*t.pace.Doubt)*max(tasks, 1)))
}

// relative is by what factor the tasks that wait take longer than those that ended there did, by their inputs.
func (d *decider) relative(w *work, there fact.Venue) float64 {
	input := w.input()
	if input == 0 || w.stage.Model.WallFallen {
		return 1
	}
	return w.stage.Model.Duration().RelativeOf(w.stage.Model.Walls[there], input, math.Sqrt(w.inputsLeft().Variance()))
}

// input is the mean input of the tasks that wait, in bytes; 0 where none is known.
func (w *work) input() float64 {
	tasks, bytes := 0.0, 0.0
	for i, queue := range w.stage.Queues {
		if queued := float64(w.queued[i]); queued > 0 && queue.Input > 0 {
			tasks, bytes = tasks+queued, bytes+queued*queue.Input
		}
	}
	return bytes / max(tasks, 1)
}

// timeLeft is how many seconds the stage has until the rest of the run, by its plan or as earlier runs of the pipeline
// took it, would miss the deadline. It is below zero when the deadline is lost already.
func (d *decider) timeLeft(st *memory.Stage, part *memory.Share) (seconds float64, limited bool) {
	r := part.Run
	if !r.Known || r.Goal.Deadline <= 0 {
		return 0, false
	}
	due := r.Goal.Deadline - time.Duration(d.now-r.Started)
	return due.Seconds() - d.follows(r, st.ID.Name), true
}

// decide adds a decision, numbered by its row.
func (d *decider) decide(decision plan.Decision) {
	decision.ID = d.row(len(d.plan.Decisions))
	decision.At = d.plan.At
	d.plan.Decisions = append(d.plan.Decisions, decision)
}

// row is the ID of the i-th decision of this plan.
func (d *decider) row(i int) string { return fmt.Sprintf("%d.%d.%d", d.plan.Term, d.plan.Tick, i) }

// finish writes the rows of grants and placements, and remembers them.
func (d *decider) finish() {
	d.plan.Teams = d.teamRows()
	for _, w := range d.works {
		st := w.stage
		st.Slots, st.Functions = w.slots, w.functions
		clear(st.Placed)
		if w.functions > 0 {
			size := w.size
			size.Memory = st.Class
			d.plan.Grants = append(d.plan.Grants, plan.Grant{
				Stage: st.ID, Venue: fact.Function, Slots: w.functions, Size: size, Batch: st.Batch,
			})
		}
		if w.slots == 0 {
			continue
		}
		d.plan.Grants = append(d.plan.Grants, plan.Grant{
			Stage: st.ID, Venue: fact.Pool, Slots: w.slots, Size: w.size, PoolOnly: w.queued[1] > 0,
		})
		for i, host := range d.hosts {
			if slots := w.placed[i]; slots > 0 {
				st.Placed[host.ID] = slots
				d.plan.Placements = append(d.plan.Placements, plan.Placement{
					Stage: st.ID, Host: host.ID, Device: host.Capacity.DeviceClass, Slots: slots,
				})
			}
		}
	}
}

// lookFor is how long one stage is looked at before the next: a server counts anew every five seconds.
const lookFor = fact.Instant(10 * time.Second)

// doubt counts what waits at a stage as nothing where no run is known to have a task there and none runs. A server that
// was killed goes on counting tasks that were done before, until somebody polls their queue: slots for all of these
// would take the pool from what really waits. But hints may be lost, so one such stage at a time has a slot: what the
// queue really holds starts there, and is believed from then on.
func (d *decider) doubt() {
	var doubted []*work
	for _, w := range d.works {
		if w.queued != [2]int{} && len(w.running) == 0 && !w.stage.Owes() {
			doubted = append(doubted, w)
		}
	}
	if len(doubted) == 0 {
		return
	}
	looked := d.lookedAt(doubted)
	for _, w := range doubted {
		w.doubted = w.queued[0] + w.queued[1]
		for queue, tasks := range w.queued {
			w.queued[queue] = min(tasks, 1)
			if w != looked {
				w.queued[queue] = 0
			}
		}
	}
}

// lookedAt is the stage that is looked at: the one of the last tick for lookFor, then the one that waits the longest.
func (d *decider) lookedAt(doubted []*work) *work {
	clock := max(1, d.memory.Clock)
	latest, oldest := doubted[0], doubted[0]
	for _, w := range doubted {
		if w.stage.Looked > latest.stage.Looked {
			latest = w
		}
		if w.stage.Looked < oldest.stage.Looked {
			oldest = w
		}
	}
	if began := latest.stage.Looked; began > 0 && clock-began < lookFor {
		return latest
	}
	oldest.stage.Looked = clock
	return oldest
}

// doubtReason says why a stage whose queue is doubted has no slot, at the pool but for the one that looks.
func (w *work) doubtReason() string {
	return "no run is known to have a task left here, the queue still counts " + words.Count(w.doubted, "task")
}
