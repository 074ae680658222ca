package predictor

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/calm"
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/provision"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/share"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/words"
)

// shareHosts gives the room of the hosts to the stages. Stages without work keep one slot, while it fits, as long as
// idling says.
func (d *decider) shareHosts() {
	claims := make([]share.Claim, len(d.works))
	for i, w := range d.works {
		claim := share.Claim{
			Size: d.roomFor(w), Held: w.size, Tasks: w.demand(), Running: w.running[fact.Pool], On: w.held,
			GPUs:   w.gpus,
			Placed: w.stage.Placed, Unfit: d.unfitHosts(w.stage.ID),
			Wall: w.wall, Slack: w.slack,
		}
		st := w.stage
		held := share.Held{Slots: st.Slots, Eased: calm.Eased{Since: st.Eased, Most: st.Most}}
		kept, then := held.Keep(claim.Needed(), d.memory.Clock)
		st.Eased, st.Most = then.Since, then.Most
		w.idle = claim.Needed() == 0
		switch {
		case w.doubted > 0:
			kept = 0
		case w.idle:
			if w.idling = d.idles(w); !w.idling.kept {
				kept = 0
			} else if st.Slots > 0 {
				kept = max(kept, 1)
			}
		}
		claim.Kept = kept
		d.claimFor(w, &claim)
		claims[i] = claim
	}
	for i, given := range share.Teams(d.hosts, claims, d.sharing()) {
		w := d.works[i]
		w.slots, w.placed, w.limited, w.bound = given.Total, given.On, given.Limited, given.Bound
		d.took(w, claims[i])
	}
}

// unfitHosts are the hosts that cannot run a stage; nil where all can.
func (d *decider) unfitHosts(stage fact.StageID) (hosts map[string]bool) {
	if !d.lacking {
		return nil
	}
	for _, host := range d.hosts {
		if _, lacks := host.LackOf(stage); lacks {
			if hosts == nil {
				hosts = map[string]bool{}
			}
			hosts[host.ID] = true
		}
	}
	return hosts
}

// unfitEverywhere says why no host can run a stage; empty where one can.
func (d *decider) unfitEverywhere(stage fact.StageID) string {
	why := ""
	for _, host := range d.hosts {
		reason, lacks := host.LackOf(stage)
		if !lacks {
			return ""
		}
		why = host.ID + ": " + reason
	}
	return why
}

// roomFor is what each slot of the stage is given room for. Attempts whose need is a guess begin with less than one in
// four takes, and those of a stage take about the same: where one grows, all do. So there are no more of them than have
// room when each takes what nine in ten take at most. Else a host of 64 cores and 16 GiB would begin 64 that were
// thought to take 111 MiB, and run out of memory where they take 300 (TestFirstAttemptsHaveRoomToGrow).
func (d *decider) roomFor(w *work) quantity.Size {
	room := w.size
	if s := w.stage.Sizing; s.Grows() && s.Expected.Guess {
		high := s.Expected.At(largestNeed(w.stage, s).Values()).High
		most := d.largestFor(w.size).Memory
		room.Memory = max(room.Memory, min(quantity.Bytes(min(high, float64(fact.MaxPeakMemory))), most))
	}
	return room
}

const (
	// usualIdle is for how long a stage without work keeps its last slot where nobody knows what a start takes, or what
	// the room costs.
	usualIdle = 30 * time.Second
	// leastIdle is for how long it does at least, however soon a start is worth it: a decision costs attention, too, and a
	// stage that goes to zero between any two tasks would have thirty of them a minute.
	leastIdle = 10 * time.Second
)

// idling is whether a stage without work keeps its last slot, and why.
type idling struct {
	kept bool
	age  time.Duration // since it had work
	// terms say what a start and the slot cost, started how long a start takes; known is false where nobody knows.
	terms   provision.Idle
	started time.Duration
	known   bool
	stay    provision.Stay
}

// idles decides whether a stage without work keeps its last slot, and with it a child that needs no start when the next
// task comes. What a start costs is what the time is worth for which a task waits for it, and the room that it takes
// meanwhile; what keeping the slot costs is the price of its room, which is dear on a host that is dear or small.
func (d *decider) idles(w *work) idling {
	colds := w.stage.Model.Colds[fact.Pool]
	started, hour := colds.Quantile(0.5), d.slotPrice(w)
	age := d.age(w)
	if len(colds.Values) == 0 || !(started > 0) || hour <= 0 || d.policy.Static {
		return idling{kept: age < min(usualIdle, d.policy.IdleAfter)}
	}
	s := idling{known: true, age: age, started: time.Duration(started * float64(time.Second))}
	s.terms = provision.Idle{Start: d.policy.ValueOfTime.Plus(hour).Times(started / time.Hour.Seconds()), Hour: hour}
	s.stay = s.terms.Decide(age, d.coming(w))
	s.kept = (s.stay.Kept || age < leastIdle) && age < d.policy.IdleAfter
	return s
}

// slotPrice is what an hour of one slot costs on the host that has it, the cheapest of several whose price is known; 0
// where none is.
func (d *decider) slotPrice(w *work) (hour quantity.Money) {
	for _, host := range d.hosts {
		if len(w.stage.Placed) > 0 && w.stage.Placed[host.ID] == 0 {
			continue
		}
		price := pricing.Host{PerHour: host.PricePerHour, Capacity: host.Capacity}.For(w.size, time.Hour)
		if price > 0 && (hour == 0 || price < hour) {
			hour = price
		}
	}
	return hour
}

// coming is what is forecast of the next tasks of a stage, from now on; nil for nothing.
func (d *decider) coming(w *work) []provision.Step {
	chances := d.memory.Coming(w.stage.Model.Name)
	steps := make([]provision.Step, len(chances))
	for i, chance := range chances {
		steps[i] = provision.Step{Lasts: time.Minute, Chance: chance}
	}
	if len(steps) > 0 { // of the minute that goes on, a part is over
		rest := time.Minute - time.Duration(d.now%fact.Instant(time.Minute))
		steps[0] = provision.Step{Lasts: rest, Chance: 1 - math.Pow(1-chances[0], rest.Minutes())}
	}
	return steps
}

// age is how long the stage has been without any event.
func (d *decider) age(w *work) time.Duration {
	return time.Duration(d.now - w.stage.Active)
}

// poolFinish is how many seconds the pool alone needs for what is queued and running.
func (w *work) poolFinish() float64 {
	return share.Finish(w.demand(), w.slots, w.wall)
}

// poolEnds is the same with the wait until a host has room for one of the tasks that wait.
func (w *work) poolEnds() float64 { return w.wait + w.poolFinish() }

// serving is how many of the stage's slots have something to do.
func (w *work) serving() int { return share.Serving(w.demand(), w.slots) }

// explainSlots writes a decision for every stage whose pool slots changed.
func (d *decider) explainSlots() {
	for _, w := range d.works {
		if w.slots == w.stage.Slots {
			continue
		}
		decision := plan.Decision{
			Stage: w.stage.ID, Venue: fact.Pool, What: "slots",
			From: words.Count(w.stage.Slots, "slot"), To: words.Count(w.slots, "slot"),
			Reason: d.slotsReason(w), Inputs: w.inputs(),
		}
		if tasks := float64(w.demand()); w.taking.known && w.slots > 0 && tasks > 0 && w.wait < spill.NoPool {
			decision.Predicted, decision.PredictedUnit = spill.Spread(w.poolEnds(), w.taking.of(tasks), tasks), "seconds"
		}
		d.decide(decision)
	}
}

func (w *work) inputs() map[string]float64 {
	inputs := map[string]float64{
		"backlog_tasks": float64(w.queued[0]), "pool_only_tasks": float64(w.queued[1]),
		"running_tasks": float64(w.running[fact.Pool]), "slot_cores": w.size.CPU.Cores(),
		"slot_memory_bytes": float64(w.size.Memory),
	}
	if w.taking.known {
		inputs["wall_seconds"] = w.wall
	}
	if s := w.idling; s.known {
		inputs["idle_seconds"], inputs["start_seconds"] = s.age.Seconds(), s.started.Seconds()
		inputs["idle_break_even_seconds"] = s.terms.BreakEven().Seconds()
		if s.stay.Within > 0 {
			inputs["idle_chance_of_a_task"], inputs["idle_chance_within_seconds"] = s.stay.Chance, s.stay.Within.Seconds()
		}
	}
	return inputs
}

func (d *decider) slotsReason(w *work) string {
	work := fmt.Sprintf("%s and %s", words.Waiting(w.queued[0]+w.queued[1]), words.RunningNow(w.running[fact.Pool]))
	switch {
	case w.doubted > 0 && w.queued == [2]int{}:
		return w.doubtReason()
	case w.doubted > 0:
		return w.doubtReason() + ": one slot looks"
	case w.idle && w.slots > 0:
		return fmt.Sprintf("no task waits or runs; %s for %s", stays(w.slots), d.stayReason(w))
	case w.idle && !w.idling.kept:
		return fmt.Sprintf("no task for %s: an idle stage holds nothing%s", words.Seconds(d.age(w).Seconds()),
			d.goReason(w))
	case w.idle:
		return "no task waits or runs, and others need the room"
	case w.bound != share.Unbounded:
		return work + "; " + d.boundReason(w)
	case d.idled != "":
		return work + ", but " + d.idled
	case len(d.hosts) == 0:
		return work + ", but no host has a valid lease"
	case w.slots == 0 && d.unfitEverywhere(w.stage.ID) != "":
		return work + ", but no host can run it; " + d.unfitEverywhere(w.stage.ID)
	case w.slots == 0 && d.hosts.Lacking(w.size) != "":
		return work + ", but " + d.hosts.Lacking(w.size)
	case w.withheld && w.wait >= spill.NoPool:
		return work + "; no host has room for one, and functions end a task sooner"
	case w.withheld:
		return fmt.Sprintf("%s; the hosts have room for one in %s, and functions end a task sooner", work,
			words.Seconds(w.wait))
	case w.slots < w.stage.Slots && !w.limited:
		return work + ": no more slots are needed"
	}
	each := words.Seconds(w.wall) + " each"
	if w.taking.pace.Attempts > 0 {
		each = "about " + each + " by their progress"
	}
	switch {
	case w.taking.known && w.wait >= spill.NoPool:
		work += ", " + each
	case w.taking.known:
		work += fmt.Sprintf(", %s: done in %s at the pool", each, words.Seconds(w.poolEnds()))
	default:
		work += "; no attempt has ended yet to tell how long one takes"
	}
	switch {
	case w.wait >= spill.NoPool:
		work += "; no host has room for one more"
	case w.wait >= spill.WorthTelling:
		work += fmt.Sprintf("; the hosts have room for one more in %s", words.Seconds(w.wait))
	case w.limited:
		work += "; the hosts have no room for more slots"
	}
	return work
}

// stayReason says for how long an idle stage keeps what it has.
func (d *decider) stayReason(w *work) string {
	left := func(until time.Duration) string {
		return words.Seconds(max(min(max(until, leastIdle), d.policy.IdleAfter)-d.age(w), 0).Seconds())
	}
	s := w.idling
	if !s.known {
		return left(usualIdle) + " more"
	}
	least, most := left(s.terms.Least()), left(s.terms.Most())
	because := s.terms.Describe(provision.Stay{}, s.started)
	if least == most {
		return fmt.Sprintf("%s more: %s", most, because)
	}
	return fmt.Sprintf("%s to %s more, as tasks are expected: %s", least, most, because)
}

// goReason says why an idle stage keeps nothing any more; empty where that is the usual time.
func (d *decider) goReason(w *work) string {
	s := w.idling
	if !s.known {
		return ""
	}
	if s.stay.Kept || d.age(w) >= s.terms.Most() {
		return ", as " + s.terms.Describe(provision.Stay{}, s.started)
	}
	return ", as " + s.terms.Describe(s.stay, s.started)
}

// stays writes "one slot stays", "2 slots stay".
func stays(slots int) string {
	if slots == 1 {
		return "one slot stays"
	}
	return words.Count(slots, "slot") + " stay"
}

// awaitRoom finds out when a host will have room for one more attempt of each stage whose tasks wait.
func (d *decider) awaitRoom() {
	held := map[string][]share.Holding{} // by host
	for key, running := range d.memory.Attempts {
		st := d.memory.Stages[running.Stage()]
		if running.Venue != fact.Pool || !running.Runs() || st == nil {
			continue
		}
		size := d.memory.Grants[key].Size
		if size.IsZero() {
			size = st.Slot
		}
		age, times := d.memory.Age(running, d.now), st.Model.Times(fact.Pool, size.CPU.Cores())
		left := d.memory.Goes(running, d.now, age, times, memory.Remaining(times, age))
		held[running.Host] = append(held[running.Host], share.Holding{
			Size: size, Left: left, GPUs: d.gpusOf(key, running.Host),
		})
	}
	rooms := share.NewRooms(d.hosts, held)
	for _, w := range d.works {
		if len(d.hosts) == 0 || w.demand() <= w.running[fact.Pool] {
			continue
		}
		w.wait = min(spill.NoPool, rooms.Wait(d.roomFor(w)))
	}
}

// taken reports whether a host may have taken tasks of the run's part that it has no room for: no queue counts them
// any more, and nobody runs them yet.
func (w *work) taken(part *memory.Share) bool {
	return w.wait > 0 && w.unfinished && part.Owed() > 0
}

// Priorities are Temporal's keys, of which 1 is served first.
const (
	priorityLate   = 1
	priorityTight  = 2
	priorityUsual  = 3
	tightSlack     = 0.5 // the part of the time left that is spare, below which a deadline is tight
	easySlack      = 0.7 // and above which it is no longer
	tasksPerSlot   = 4   // a window this many times the slots keeps them busy between two ticks
	windowCapacity = 2   // windows grow by this factor, so that a growing stage changes its window a few times only
	tuningPerSlot  = 2   // the same for tasks of a tuning
	tuningStep     = 4   // whose window grows by one part in this at least, for the same reason
)

// turnWindows writes the windows of runs that were ever told another than the default, and tells those that changed.
// Such a row stays as long as there is work at its stage: a plan or a telling may be lost, and the next one says the
// same.
func (d *decider) turnWindows() {
	for _, w := range d.works {
		slots := w.slots + w.functions*w.stage.Batch.Most()
		for _, id := range slices.Sorted(maps.Keys(w.stage.Shares)) {
			part := w.stage.Shares[id]
			least := d.policy.Window
			if part.Tuning {
				least = min(plan.TuningWindow, least)
			}
			before, priority := cmp.Or(part.Window, least), cmp.Or(part.Priority, priorityUsual)
			part.Window = d.window(part, max(before, least), least, slots)
			part.Priority = d.priority(w, part, priority)
			changed := part.Window != before || part.Priority != priority
			part.Steered = part.Steered || changed || part.Window != least || part.Priority != priorityUsual
			if part.Steered {
				d.windowRow(w, id, part)
			}
			if changed {
				d.decide(plan.Decision{
					Stage: w.stage.ID, Run: id, What: "window",
					From: windowText(before, priority), To: windowText(part.Window, part.Priority),
					Reason: d.windowReason(w, part, before, priority),
					Inputs: map[string]float64{"slots": float64(slots), "backlog_tasks": float64(w.queued[0] + w.queued[1])},
				})
			}
		}
	}
	slices.SortFunc(d.plan.Windows, func(a, b plan.Window) int {
		return cmp.Or(cmp.Compare(a.Run, b.Run), fact.CompareStages(a.Stage, b.Stage))
	})
}

// window is how many tasks of a run's part may be in flight, given how many slots work on its stage. It grows while the
// run goes on and does not shrink, since a task that was scheduled cannot be taken back; but that of a tuning does,
// where most of what is in flight waits: what is decided ahead is decided with less known. Twice the slots leave each
// of them a task when its own ends; a tuning whose window is wider begins all its trials before it promotes the first
// (TestATuningDecidesAheadAsLittleAsItsWindowAllows).
func (d *decider) window(part *memory.Share, window, least, slots int) int {
	most := d.policy.MaxWindow
	window = min(window, most)
	if !part.Tuning {
		for window < most && slots*tasksPerSlot > window {
			window = min(window*windowCapacity, most)
		}
		return window
	}
	switch wanted := min(max(tuningPerSlot*slots, least), most); {
	case wanted >= window+max(1, window/tuningStep),
		slots > 0 && window > 2*wanted && part.Queued[0]+part.Queued[1] > wanted:
		return wanted
	}
	return window
}

func (d *decider) windowRow(w *work, run string, part *memory.Share) {
	d.plan.Windows = append(d.plan.Windows, plan.Window{
		Run: run, Stage: w.stage.ID, Tasks: part.Window,
		Priority: part.Priority,
	})
}

// priority is that of the run's tasks by the slack of its deadline: late, tight or usual. It eases later than it
// tightens, so that it does not swing with every attempt.
func (d *decider) priority(w *work, part *memory.Share, before int) int {
	left, limited := d.timeLeft(w.stage, part)
	if !limited {
		return priorityUsual
	}
	if part.Queued[0]+part.Queued[1]+part.Further == 0 {
		return before
	}
	need := w.finish
	switch {
	case need > left:
		return priorityLate
	case need > (1-tightSlack)*left:
		return min(before, priorityTight)
	case need < (1-easySlack)*left:
		return priorityUsual
	default:
		return before
	}
}

func (d *decider) windowReason(w *work, part *memory.Share, window, priority int) string {
	left, limited := d.timeLeft(w.stage, part)
	if limited && part.Priority != priority {
		leaves := "the deadline leaves it " + words.Seconds(max(left, 0)) // what follows the stage needs the rest
		if math.IsInf(w.finish, 1) {
			return "no slot works on the backlog, and " + leaves
		}
		return fmt.Sprintf("the backlog takes %s more, and %s", words.Seconds(w.finish), leaves)
	}
	slots, each := words.Count(w.slots+w.functions, "slot"), tasksPerSlot
	if part.Tuning {
		each = tuningPerSlot
	}
	if part.Window < window {
		return fmt.Sprintf("%s wait behind %s: the fewer tasks of a tuning do, the more it knows when it decides",
			words.Count(part.Queued[0]+part.Queued[1], "task"), slots)
	}
	said := fmt.Sprintf("%s need %d tasks in flight each to stay busy", slots, each)
	if tasks := w.stage.Batch.Most(); tasks > 1 {
		said += fmt.Sprintf(", for each of the %d tasks of an invoke", tasks)
	}
	return said
}

func windowText(tasks, priority int) string {
	return fmt.Sprintf("%s, priority %d", words.Count(tasks, "task"), priority)
}
