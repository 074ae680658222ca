package predictor

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Decide says what every venue holds from now on. It takes s over as Fold does. The same state and snapshot give the
// same plan, in the same order; the returned State remembers the plan, so that Decisions of the next list only what
// changed.
//
// The Plan's Term is that of the snapshot, its Tick counts within the term. Only stages that have work, or had some
// within Policy.IdleAfter, have rows: a stage without a row holds nothing.
func Decide(s State, snap Snapshot) (Plan, State) {
	m := s.own()
	d := begin(m, snap)
	d.settle()
	d.turnWindows()
	d.past()
	d.timesToLoss()
	d.finish()
	return d.plan, State{m}
}

// settle sizes the stages and gives them their slots at both venues.
func (d *decider) settle() {
	for _, w := range d.works {
		d.resize(w)
	}
	d.awaitRoom()
	d.shareHosts()
	sized := len(d.plan.Decisions)
	d.spill()
	spilled := slices.Clone(d.plan.Decisions[sized:])
	d.plan.Decisions = d.plan.Decisions[:sized]
	d.explainSlots() // once it is settled which pool slots are of use
	for _, decision := range spilled {
		d.decide(decision)
	}
}

// forgotten is how long a stage of a build is kept without work; its model is kept on.
const forgotten = instant(time.Hour)

// decider is one tick.
type decider struct {
	memory    *memory
	now       instant
	policy    Policy
	functions FunctionVenue
	hosts     []*hostRoom // by ID
	works     []*work     // by stage
	committed map[string]quantity.Money
	plan      Plan
}

// hostRoom is a host with what this plan has left of it; Room may fall below zero when more runs than fits.
type hostRoom struct {
	Host
	index int
	room  quantity.Size
}

// work is one stage that holds or wants room.
type work struct {
	stage   *stage
	size    quantity.Size
	queued  [2]int
	running map[Venue]int
	held    map[string]int // running per host that is present
	oldest  instant        // start of the oldest running attempt at the pool
	wall    float64        // seconds a task takes at the pool; a guess when nothing is known
	wait    float64        // seconds until a host has room for one of the tasks that wait; 0 while one has
	slack   float64        // seconds until the stage must be done for the earliest deadline; +Inf without one

	wanted, slots int
	withheld      bool  // functions end tasks before the pool has room for one
	kept          int   // slots that the stage keeps while there is room, though fewer may be needed now
	placed        []int // per host
	idle, limited bool
	unfinished    bool
	functions     int
	finish        float64 // predicted seconds until the backlog is done
}

// demand is how many slots the stage could use now: at least one while tasks that a run has scheduled are not done and
// nobody runs them.
func (w *work) demand() int {
	known := w.queued[0] + w.queued[1] + w.running[Pool]
	if known == 0 && w.running[Function] == 0 && w.unfinished {
		return 1
	}
	return known
}

// probeFor is how long after the last word of a run's tasks its stage is polled although its queue is said to be empty.
const probeFor = instant(10 * time.Minute)

// unfinished reports whether a run has scheduled tasks that are not done. A server that was killed may count a queue as
// empty until somebody polls it: nobody would poll it then, and the count would stay right for ever.
func (st *stage) unfinished(now instant) bool {
	for _, part := range st.Shares {
		if part.Scheduled > part.Done && now-part.Last <= probeFor {
			return true
		}
	}
	return false
}

func begin(m *memory, snap Snapshot) *decider {
	d := &decider{
		memory: m, now: at(snap.Now), policy: sanePolicy(snap.Policy), functions: saneVenue(snap.Functions),
		committed: map[string]quantity.Money{},
	}
	if m.term != snap.Term {
		m.term, m.tick = snap.Term, 0
	}
	m.tick++
	m.advance(d.now)
	d.plan = Plan{Term: m.term, Tick: m.tick, At: snap.Now}
	d.openHosts(snap.Hosts)
	d.forget()
	d.gather()
	return d
}

func (d *decider) openHosts(hosts []Host) {
	for _, host := range hosts {
		host.Capacity, host.Free = saneRoom(host.Capacity), saneRoom(host.Free)
		d.hosts = append(d.hosts, &hostRoom{Host: host, room: host.Capacity})
	}
	slices.SortStableFunc(d.hosts, func(a, b *hostRoom) int { return strings.Compare(a.ID, b.ID) })
	d.hosts = slices.CompactFunc(d.hosts, func(a, b *hostRoom) bool { return a.ID == b.ID })
	for i, host := range d.hosts {
		host.index = i
	}
}

// forget drops attempts that went silent and stages that have had nothing to do for long.
func (d *decider) forget() {
	m := d.memory
	used := d.forgetAttempts()
	for id, st := range m.stages {
		st.Active = min(st.Active, d.now) // a clock that ran ahead must not keep a stage warm for ever
		if !used[id] {
			m.unfollow(st)
		}
		if !used[id] && d.now-st.Active > forgotten && len(st.Shares) == 0 && st.Slots == 0 && st.Functions == 0 {
			delete(m.stages, id)
		}
	}
}

// gather lists the stages that hold or want room.
func (d *decider) gather() {
	m := d.memory
	found := map[StageID]*work{}
	for id, st := range m.stages {
		idle := time.Duration(d.now-st.Active) < d.policy.IdleAfter
		if st.Queues[0].Tasks > 0 || st.Queues[1].Tasks > 0 || st.Slots > 0 || st.Functions > 0 ||
			(idle && !st.Slot.IsZero()) || st.unfinished(d.now) {
			found[id] = d.newWork(st)
		}
	}
	for _, running := range m.attempts {
		if !running.runs() {
			continue
		}
		w := found[running.Stage]
		if w == nil {
			w = d.newWork(m.stages[running.Stage])
			found[running.Stage] = w
		}
		w.running[running.Venue]++
		if running.Venue == Pool {
			w.held[running.Host]++
			w.oldest = cmp.Or(min(w.oldest, running.Started), running.Started)
		}
	}
	d.works = slices.SortedFunc(maps.Values(found), func(a, b *work) int { return compareStages(a.stage.ID, b.stage.ID) })
	for _, w := range d.works {
		d.estimate(w)
	}
}

func (d *decider) newWork(st *stage) *work {
	return &work{
		stage: st, unfinished: st.unfinished(d.now), queued: [2]int{st.Queues[0].Tasks, st.Queues[1].Tasks},
		running: map[Venue]int{}, held: map[string]int{}, placed: make([]int, len(d.hosts)),
	}
}

// estimate fills in what a task takes and until when the stage must be done. Before anything was measured, the age of
// the oldest running attempt is a lower bound of what a task takes.
func (d *decider) estimate(w *work) {
	w.wall = 1
	if mean, _, known := w.stage.model.pool(); known {
		w.wall = mean
	} else if w.oldest > 0 {
		w.wall = max(1, d.now.since(w.oldest))
	}
	w.wall = max(w.wall, 0.001)
	w.slack = math.Inf(1)
	for _, part := range w.stage.Shares {
		if left, limited := d.timeLeft(w.stage, part); limited {
			w.slack = min(w.slack, left)
		}
	}
}

// timeLeft is how many seconds the stage has until the rest of the run, as earlier runs of the pipeline took it, would
// miss the deadline. It is below zero when the deadline is lost already.
func (d *decider) timeLeft(st *stage, part *share) (seconds float64, limited bool) {
	r := part.run
	if !r.Known || r.Goal.Deadline <= 0 {
		return 0, false
	}
	due := r.Goal.Deadline - time.Duration(d.now-r.Started)
	return due.Seconds() - d.memory.after(r, st.ID.Name), true
}

// decide adds a decision, numbered by its row.
func (d *decider) decide(decision Decision) {
	decision.ID = d.row(len(d.plan.Decisions))
	decision.At = d.plan.At
	d.plan.Decisions = append(d.plan.Decisions, decision)
}

// row is the ID of the i-th decision of this plan.
func (d *decider) row(i int) string { return fmt.Sprintf("%d.%d.%d", d.plan.Term, d.plan.Tick, i) }

// finish writes the rows of grants and placements, and remembers them.
func (d *decider) finish() {
	for _, w := range d.works {
		st := w.stage
		st.Slots, st.Functions = w.slots, w.functions
		clear(st.Placed)
		if w.functions > 0 {
			size := w.size
			size.Memory = st.Class
			d.plan.Grants = append(d.plan.Grants, Grant{Stage: st.ID, Venue: Function, Slots: w.functions, Size: size})
		}
		if w.slots == 0 {
			continue
		}
		d.plan.Grants = append(d.plan.Grants, Grant{
			Stage: st.ID, Venue: Pool, Slots: w.slots, Size: w.size, PoolOnly: w.queued[1] > 0,
		})
		for _, host := range d.hosts {
			if slots := w.placed[host.index]; slots > 0 {
				st.Placed[host.ID] = slots
				d.plan.Placements = append(d.plan.Placements, Placement{
					Stage: st.ID, Host: host.ID, Device: host.Capacity.DeviceClass, Slots: slots,
				})
			}
		}
	}
}

func sanePolicy(p Policy) Policy {
	usual := DefaultPolicy()
	p.ValueOfTime = max(0, p.ValueOfTime)
	p.IdleAfter = max(0, p.IdleAfter)
	if p.Window <= 0 {
		p.Window = usual.Window
	}
	p.MaxWindow = max(p.MaxWindow, p.Window)
	if !(p.Margin >= 0) || p.Margin > 10 {
		p.Margin = usual.Margin
	}
	p.MinMemory = max(p.MinMemory, quantity.MiB)
	if !(p.ErrorBound > 0) {
		p.ErrorBound = usual.ErrorBound
	}
	return p
}

func saneVenue(f FunctionVenue) FunctionVenue {
	f.Concurrency = min(max(0, f.Concurrency), maxSlots)
	f.PerGiBSecond, f.PerRequest = max(0, f.PerGiBSecond), max(0, f.PerRequest)
	f.ColdStart, f.MaxDuration, f.Cores = min(max(0, f.ColdStart), maxWall), min(max(0, f.MaxDuration), maxWall),
		max(0, f.Cores)
	f.Classes = slices.DeleteFunc(slices.Sorted(slices.Values(f.Classes)), func(class quantity.Bytes) bool {
		return class <= 0 || (f.MaxMemory > 0 && class > f.MaxMemory)
	})
	return f
}

// saneRoom cuts room to what it can be, and keeps sums of it from overflowing.
func saneRoom(room quantity.Size) quantity.Size {
	const most = quantity.Milli(1) << 40
	room.CPU = min(max(0, room.CPU), most)
	room.Memory = min(max(0, room.Memory), maxPeakMemory)
	room.GPU = min(max(0, room.GPU), most)
	room.GPUMemory = min(max(0, room.GPUMemory), maxPeakMemory)
	return room
}
