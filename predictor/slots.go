package predictor

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/words"
)

// shareHosts gives the room of the hosts to the stages.
//
// What runs keeps its slot. Every stage with work has at least one slot, even one that does not fit: admission makes
// its attempts wait, so nothing starves. Then, as long as one fits, the next slot goes to the stage that would miss its
// deadline by most, else to the stage that would finish last:
//
//	finish = (queued + running) x wall / slots
//
// Giving one slot at a time to the largest finish minimises the latest finish over the stages when slots are alike:
// moving a slot from any stage to another could only make the giver the later one. What fits beside is kept for a while
// by stages that needed it lately (calm). Stages without work keep one slot, while it fits, until Policy.IdleAfter.
func (d *decider) shareHosts() {
	for _, w := range d.works {
		w.wanted = max(min(w.demand(), plan.MaxSlots), w.running[fact.Pool])
		w.kept = d.calm(w.stage, w.wanted)
		if w.wanted == 0 {
			w.idle = true
			continue
		}
		d.keepRunning(w)
		if w.slots == 0 {
			d.place(w, d.roomiest(w, true))
		}
	}
	d.shareNeeded()
	for _, w := range d.works {
		switch {
		case w.idle && d.age(w) >= d.policy.IdleAfter:
			w.kept = 0
		case w.idle && w.stage.Slots > 0:
			w.kept = max(w.kept, 1)
		}
		for host := d.roomiest(w, false); w.slots < w.kept && host != nil; host = d.roomiest(w, false) {
			d.place(w, host)
		}
	}
}

// Slots are polls that are open, and those that come and go with every task tell nobody anything: a steady flow of
// tasks of a millisecond needs now one and now five. So more slots are given at once, and a quarter more than were
// held, and fewer only when no more were needed for calmFor, and then only when that is a quarter fewer.
const (
	calmFor  = memory.Instant(20 * time.Second)
	calmStep = 4 // the part of the slots that a change takes or gives at least
)

// calm is how many slots a stage that needs so many now keeps while there is room.
func (d *decider) calm(st *memory.Stage, needed int) int {
	held := st.Slots
	if needed > held {
		st.Eased, st.Most = 0, 0
		if held == 0 || needed >= plan.MaxSlots {
			return needed
		}
		return max(needed, held+held/calmStep)
	}
	if needed+max(1, held/calmStep) > held {
		st.Eased, st.Most = 0, 0
		return held
	}
	clock := max(1, d.memory.Clock)
	if st.Eased == 0 {
		st.Eased, st.Most = clock, 0
	}
	st.Most = max(st.Most, needed)
	if clock-st.Eased < calmFor {
		return held
	}
	most := st.Most
	st.Eased, st.Most = clock, needed
	return most
}

// shareNeeded gives the slots that are needed now, one at a time to whoever needs it most.
func (d *decider) shareNeeded() {
	waiting := make(needs, 0, len(d.works))
	for _, w := range d.works {
		if !w.idle && w.slots < w.wanted {
			waiting = append(waiting, w)
		}
	}
	heap.Init(&waiting)
	for len(waiting) > 0 {
		w := waiting[0]
		host := d.roomiest(w, false)
		if host == nil {
			w.limited = true
			heap.Pop(&waiting)
			continue
		}
		d.place(w, host)
		if w.slots >= w.wanted {
			heap.Pop(&waiting)
			continue
		}
		heap.Fix(&waiting, 0)
	}
}

// age is how long the stage has been without any event.
func (d *decider) age(w *work) time.Duration {
	return time.Duration(d.now - w.stage.Active)
}

// keepRunning holds a slot for every attempt that runs, where it runs. Attempts on hosts that are gone hold nothing:
// their tasks come back.
func (d *decider) keepRunning(w *work) {
	for _, host := range d.hosts {
		for range w.held[host.ID] {
			d.place(w, host)
		}
	}
}

// place gives the stage one slot on the host. Without any host the slot is granted nowhere: it is placed when one
// joins.
func (d *decider) place(w *work, host *hostRoom) {
	if host == nil {
		return
	}
	w.slots++
	w.placed[host.index]++
	host.room = host.room.Minus(w.size)
}

// roomiest returns the host for the stage's next slot: one where it had more slots than it has got so far, so that
// placements do not wander, else the one with the most cores free, then memory. When none has room it is nil, or with
// force the one with the most.
func (d *decider) roomiest(w *work, force bool) *hostRoom {
	var best *hostRoom
	rank := func(h *hostRoom) (fits, had bool) {
		return w.size.Fits(h.room), w.stage.Placed[h.ID] > w.placed[h.index]
	}
	for _, host := range d.hosts {
		fits, had := rank(host)
		if !fits && !force {
			continue
		}
		if best == nil {
			best = host
			continue
		}
		bestFits, bestHad := rank(best)
		order := cmp.Or(
			trueFirst(fits, bestFits),
			trueFirst(w.size.Fits(host.Capacity), w.size.Fits(best.Capacity)),
			trueFirst(had, bestHad),
			cmp.Compare(best.room.CPU, host.room.CPU),
			cmp.Compare(best.room.Memory, host.room.Memory),
		)
		if order < 0 {
			best = host
		}
	}
	return best
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// needs is a heap of stages that want another slot, the neediest first.
type needs []*work

// Len is the number of stages.
func (n needs) Len() int { return len(n) }

// Swap exchanges two stages.
func (n needs) Swap(i, j int) { n[i], n[j] = n[j], n[i] }

// Push adds a stage.
func (n *needs) Push(w any) { *n = append(*n, w.(*work)) }

// Pop removes the last stage.
func (n *needs) Pop() any {
	last := (*n)[len(*n)-1]
	*n = (*n)[:len(*n)-1]
	return last
}

// Less orders by the time by which a deadline would be missed, then by the predicted finish, the latest first.
func (n needs) Less(i, j int) bool {
	a, b := n[i], n[j]
	spareA, spareB := min(0, a.slack-a.poolFinish()), min(0, b.slack-b.poolFinish())
	return cmp.Or(
		cmp.Compare(spareA, spareB),
		cmp.Compare(b.poolFinish(), a.poolFinish()),
		fact.CompareStages(a.stage.ID, b.stage.ID),
	) < 0
}

// poolFinish is how many seconds the pool alone needs for what is queued and running.
func (w *work) poolFinish() float64 {
	if w.slots == 0 {
		return math.Inf(1)
	}
	return float64(w.demand()) * w.wall / float64(w.serving())
}

// poolEnds is the same with the wait until a host has room for one of the tasks that wait.
func (w *work) poolEnds() float64 { return w.wait + w.poolFinish() }

// serving is how many of the stage's slots have something to do.
func (w *work) serving() int { return min(w.slots, max(w.demand(), 1)) }

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
		if _, variation, known := w.stage.Model.Pool(); known && w.slots > 0 && w.demand() > 0 {
			decision.Predicted, decision.PredictedUnit = spill.Spread(w.poolEnds(), variation, float64(w.demand())), "seconds"
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
	if mean, _, known := w.stage.Model.Pool(); known {
		inputs["wall_seconds"] = mean
	}
	return inputs
}

func (d *decider) slotsReason(w *work) string {
	work := fmt.Sprintf("%s and %s", words.Waiting(w.queued[0]+w.queued[1]), words.RunningNow(w.running[fact.Pool]))
	switch {
	case w.idle && w.slots > 0:
		return fmt.Sprintf("no task waits or runs; %s for %s more", stays(w.slots),
			words.Seconds((d.policy.IdleAfter - d.age(w)).Seconds()))
	case w.idle && d.age(w) >= d.policy.IdleAfter:
		return fmt.Sprintf("no task for %s: an idle stage holds nothing", words.Seconds(d.age(w).Seconds()))
	case w.idle:
		return "no task waits or runs, and others need the room"
	case len(d.hosts) == 0:
		return work + ", but no host has a valid lease"
	case w.withheld:
		return fmt.Sprintf("%s; the hosts have room for one in %s, and functions end a task sooner", work,
			words.Seconds(w.wait))
	case w.slots < w.stage.Slots && !w.limited:
		return work + ": no more slots are needed"
	}
	if _, _, known := w.stage.Model.Pool(); known {
		work += fmt.Sprintf(", %s each: done in %s at the pool", words.Seconds(w.wall), words.Seconds(w.poolEnds()))
	} else {
		work += "; no attempt has ended yet to tell how long one takes"
	}
	switch {
	case w.wait >= spill.WorthTelling:
		work += fmt.Sprintf("; the hosts have room for one more in %s", words.Seconds(w.wait))
	case w.limited:
		work += "; the hosts have no room for more slots"
	}
	return work
}

// stays writes "one slot stays", "2 slots stay".
func stays(slots int) string {
	if slots == 1 {
		return "one slot stays"
	}
	return words.Count(slots, "slot") + " stay"
}

// holding is what a running attempt keeps of its host, and for how many seconds more, as far as is predicted.
type holding struct {
	size quantity.Size
	left float64
}

// roomAfter is in how many seconds size fits beside what is held, of which free is left now: 0 when it fits now, +Inf
// when it does not even fit alone. Held is sorted by the time at which it is given back. It is the earliest moment:
// whoever asked before may take the room first.
func roomAfter(size, free quantity.Size, held []holding) float64 {
	if size.Fits(free) {
		return 0
	}
	for _, h := range held {
		free = free.Plus(h.size)
		if size.Fits(free) {
			return h.left
		}
	}
	return math.Inf(1)
}

// awaitRoom finds out when a host will have room for one more attempt of each stage whose tasks wait. What attempts
// hold counts, not what slots are planned: a large attempt keeps the others out until it ends.
func (d *decider) awaitRoom() {
	held := map[string][]holding{} // by host
	for key, running := range d.memory.Attempts {
		st := d.memory.Stages[running.Stage]
		if running.Venue != fact.Pool || !running.Runs() || st == nil {
			continue
		}
		size := d.memory.Grants[key]
		if size.IsZero() {
			size = st.Slot
		}
		left := st.Model.Remaining(d.now.Since(running.Started))
		held[running.Host] = append(held[running.Host], holding{size, left})
	}
	free := make([]quantity.Size, len(d.hosts))
	for i, host := range d.hosts {
		free[i] = host.Capacity
		for _, h := range held[host.ID] {
			free[i] = free[i].Minus(h.size)
		}
		slices.SortFunc(held[host.ID], func(a, b holding) int { return cmp.Compare(a.left, b.left) })
	}
	for _, w := range d.works {
		if len(d.hosts) == 0 || w.demand() <= w.running[fact.Pool] {
			continue
		}
		w.wait = spill.NoPool
		for i, host := range d.hosts {
			w.wait = min(w.wait, roomAfter(w.size, free[i], held[host.ID]))
		}
	}
}

// taken reports whether a host may have taken tasks of the run's part that it has no room for: no queue counts them
// any more, and nobody runs them yet.
func (w *work) taken(part *memory.Share) bool {
	return w.wait > 0 && w.unfinished && part.Scheduled > part.Done
}
