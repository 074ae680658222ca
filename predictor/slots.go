package predictor

import (
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/predictor/calm"
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/share"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/words"
)

// shareHosts gives the room of the hosts to the stages. Stages without work keep one slot, while it fits, until
// Policy.IdleAfter.
func (d *decider) shareHosts() {
	claims := make([]share.Claim, len(d.works))
	for i, w := range d.works {
		claim := share.Claim{
			Size: d.roomFor(w), Held: w.size, Tasks: w.demand(), Running: w.running[fact.Pool], On: w.held,
			GPUs:   w.gpus,
			Placed: w.stage.Placed,
			Wall:   w.wall, Slack: w.slack,
		}
		st := w.stage
		held := share.Held{Slots: st.Slots, Eased: calm.Eased{Since: st.Eased, Most: st.Most}}
		kept, then := held.Keep(claim.Needed(), d.memory.Clock)
		st.Eased, st.Most = then.Since, then.Most
		w.idle = claim.Needed() == 0
		switch {
		case w.doubted > 0, w.idle && d.age(w) >= d.policy.IdleAfter:
			kept = 0
		case w.idle && st.Slots > 0:
			kept = max(kept, 1)
		}
		claim.Kept = kept
		claims[i] = claim
	}
	for i, given := range share.Hosts(d.hosts, claims) {
		w := d.works[i]
		w.slots, w.placed, w.limited = given.Total, given.On, given.Limited
	}
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
		return fmt.Sprintf("no task waits or runs; %s for %s more", stays(w.slots),
			words.Seconds((d.policy.IdleAfter - d.age(w)).Seconds()))
	case w.idle && d.age(w) >= d.policy.IdleAfter:
		return fmt.Sprintf("no task for %s: an idle stage holds nothing", words.Seconds(d.age(w).Seconds()))
	case w.idle:
		return "no task waits or runs, and others need the room"
	case len(d.hosts) == 0:
		return work + ", but no host has a valid lease"
	case w.slots == 0 && d.lacking(w.size) != "":
		return work + ", but " + d.lacking(w.size)
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
		st := d.memory.Stages[running.Stage]
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
