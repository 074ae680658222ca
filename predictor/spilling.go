package predictor

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Time and value kept in hand, so that a choice is not undone by the next attempt.
const (
	deadlineReserve = 0.9           // a deadline counts as met when the stage ends within this part of the time left
	deadlineRelief  = 0.5           // function slots go back once the pool alone ends within this part of it
	valueRelief     = 1.25          // and once they cost this many times what they save
	linger          = instant(3e9)  // an empty queue is believed after this long: a window refills it between two ticks
	withheldUntil   = 0.5           // slots are withheld until the wait for room is this part of what began it
	withholdAgain   = instant(12e9) // and not again for this long: two changes of slots in it are ten a minute
	worthTelling    = 1.0           // seconds of backlog below which it is not told that nothing spills
)

// choice is how many function slots a stage gets and why.
type choice struct {
	n    int
	why  string
	told string // the run whose goal decided; empty when none is known
}

// spill decides the function slots of every stage, those that would finish last first.
func (d *decider) spill() {
	first := len(d.plan.Decisions)
	slots, cores := d.functions.Concurrency, d.functions.Cores
	d.commit()
	order := slices.Clone(d.works)
	slices.SortStableFunc(order, func(a, b *work) int {
		return cmp.Or(
			cmp.Compare(min(0, a.slack-a.poolFinish()), min(0, b.slack-b.poolFinish())),
			cmp.Compare(b.poolFinish(), a.poolFinish()),
		)
	})
	for _, w := range order {
		w.finish = w.poolEnds()
		if w.queued[0] > 0 {
			w.stage.Backlog = d.now
		}
		if d.policy.Static || !d.functions.Enabled {
			d.setFunctions(w, offer{}, choice{why: "functions are switched off"})
			continue
		}
		o, why, known := d.offer(w)
		if !known || why != "" {
			d.setFunctions(w, o, d.refused(w, why))
			continue
		}
		limit := d.limit(o.class, slots, cores)
		picked := d.choose(w, o, limit)
		d.withhold(w, o, picked.n)
		d.setFunctions(w, o, picked)
		slots -= w.functions
		cores -= busy(o.class) * quantity.Milli(w.functions)
		d.reserve(w, o)
	}
	slices.SortStableFunc(d.plan.Decisions[first:], func(a, b Decision) int { return compareStages(a.Stage, b.Stage) })
}

// withhold takes the stage's spare pool slots back where functions end a task before the pool has room for one: a host
// that had taken it would keep it until it has. They come back once the pool has room before half of that time is over,
// and then stay for a while: large attempts that follow each other make room again and again.
func (d *decider) withhold(w *work, o offer, functions int) {
	st, clock := w.stage, max(1, d.memory.clock)
	least := o.cold + o.function
	if st.Withheld {
		least *= withheldUntil
	}
	rests := !st.Withheld && st.Released > 0 && clock-st.Released < withholdAgain
	withheld := functions > 0 && w.queued[1] == 0 && w.wait > least && !rests
	if st.Withheld && !withheld {
		st.Released = clock
	}
	st.Withheld = withheld
	if !withheld {
		return
	}
	w.withheld, w.slots = true, 0
	for _, host := range d.hosts {
		w.placed[host.index] = w.held[host.ID]
		w.slots += w.held[host.ID]
	}
}

// busy is how many cores of a local venue one environment of the class may keep busy.
func busy(class quantity.Bytes) quantity.Milli {
	return quantity.Milli(math.Ceil(classCores(class) * float64(quantity.Core)))
}

// limit is how many slots the venue has left for a class; a local venue of fewer cores than one class has still runs
// one.
func (d *decider) limit(class quantity.Bytes, slots int, cores quantity.Milli) int {
	slots = max(0, slots)
	if d.functions.Cores == 0 {
		return slots
	}
	fit := int(max(0, cores) / max(1, busy(class)))
	if fit == 0 && cores == d.functions.Cores {
		fit = 1
	}
	return min(slots, fit)
}

// commit adds up what functions that run now may still cost each run.
func (d *decider) commit() {
	for _, running := range d.memory.attempts {
		st := d.memory.stages[running.Stage]
		if running.Venue != Function || !running.runs() || st == nil || st.Class == 0 {
			continue
		}
		longest := max(st.model.Walls[Function].largest(), st.model.Walls[Pool].largest()*slowdown(st.Class, 0))
		d.committed[running.Run] = min(maxCost, d.committed[running.Run]+
			min(maxCost, d.functions.Price(st.Class, span(longest))))
	}
}

// reserve takes the upper price of what was chosen off the budgets of the stage's runs, so that their next stage does
// not spend it again.
func (d *decider) reserve(w *work, o offer) {
	if w.functions == 0 {
		return
	}
	for id, part := range w.parts() {
		d.committed[id] = min(maxCost, d.committed[id]+o.upperPrice(w.functions).Times(part))
	}
}

// parts is which part of the stage's backlog belongs to each run.
func (w *work) parts() map[string]float64 {
	sum := 0
	for _, part := range w.stage.Shares {
		sum += part.Queued[0] + part.Further
	}
	parts := map[string]float64{}
	for id, part := range w.stage.Shares {
		if mine := part.Queued[0] + part.Further; mine > 0 {
			parts[id] = float64(mine) / float64(sum)
		}
	}
	return parts
}

// refused gives no slots to a stage that functions cannot run, or of which nothing is known yet; the latter is not
// worth a word.
func (d *decider) refused(w *work, why refusal) choice {
	if why == "" {
		return choice{why: "how long a task takes is not known"}
	}
	refusal := choice{why: "functions cannot run this stage: " + string(why)}
	for _, id := range slices.Sorted(maps.Keys(w.parts())) {
		refusal.told = cmp.Or(refusal.told, id)
	}
	return refusal
}

// choose decides by the goals of the runs whose tasks wait. Their tasks share a queue, so the run that wants most
// function slots, of those that it can pay for, decides. Slots once given stay until the backlog is gone, the advantage
// reverses or the budget ends.
func (d *decider) choose(w *work, o offer, limit int) choice {
	held, queued := w.stage.Functions, w.queued[0]
	further := o.tasks > float64(queued)
	if queued == 0 {
		if held > 0 && (further || d.now-w.stage.Backlog < linger) {
			return choice{n: min(held, limit), why: "the venue has no room for more"}
		}
		return choice{why: "no task waits any more"}
	}
	if held == 0 && w.wait == 0 && queued <= w.slots-w.running[Pool] {
		return choice{why: "a pool slot is free for every task that waits"}
	}
	o.most = min(queued, limit)
	picked, keep := d.wish(w, o, held)
	if held > picked.n && keep {
		picked.n = min(held, limit)
	}
	if picked.n > held && held > 0 && picked.n < held+max(1, held/4) {
		picked.n = held // a slot more than a few is not worth a decision
	}
	return picked
}

// wish asks every run that waits how many slots it wants and can pay for; keep is whether any of them still gains by
// those held.
func (d *decider) wish(w *work, o offer, held int) (picked choice, keep bool) {
	parts := w.parts()
	for _, id := range slices.Sorted(maps.Keys(parts)) {
		part := w.stage.Shares[id]
		goal := part.run.Goal
		left, limited := d.timeLeft(w.stage, part)
		mine := d.bound(o, d.byGoal(o, goal, max(left, 0), limited), part.run, parts[id])
		mine.told = id
		if picked.told == "" || mine.n > picked.n {
			picked = mine
		}
		keep = keep || d.keeps(o, held, goal, max(left, 0), limited) &&
			d.bound(o, choice{n: held}, part.run, parts[id]).n == held
	}
	if picked.told == "" {
		return d.byGoal(o, Goal{}, 0, false), d.keeps(o, held, Goal{}, 0, false)
	}
	return picked, keep
}

// byGoal is how many slots one run wants: the least that meet its deadline; none beyond that to save cost, all that
// help to save time; without a deadline and an objective, as many as are worth their price.
func (d *decider) byGoal(o offer, goal Goal, left float64, limited bool) choice {
	wait := o.backlog()
	if limited && o.duration(0) > deadlineReserve*left {
		n := o.within(deadlineReserve * left)
		if n > 0 {
			return choice{n: n, why: fmt.Sprintf("%s, with %s left to the deadline; %s in %s for %s",
				wait, seconds(left), finishes(n), seconds(o.duration(n)), o.price(n))}
		}
		return choice{why: fmt.Sprintf("%s, with %s left to the deadline, but functions would finish no sooner", wait,
			seconds(left))}
	}
	switch {
	case goal.Minimise == Latency:
		if n := o.fastest(); n > 0 {
			return choice{n: n, why: fmt.Sprintf("%s; the run minimises latency: %s %s sooner for %s", wait, finishes(n),
				o.sooner(n), o.price(n))}
		}
		return choice{why: wait + "; functions would finish no sooner"}
	case limited:
		return choice{why: fmt.Sprintf("%s, well within the %s left to the deadline", wait, seconds(left))}
	case goal.Minimise == Cost:
		return choice{why: wait + "; the run minimises cost and has no deadline that needs functions"}
	}
	n := o.best(d.policy.ValueOfTime)
	if n > 0 {
		return choice{n: n, why: fmt.Sprintf("%s; %s %s sooner for %s, less than the %s that %s are worth",
			wait, finishes(n), o.sooner(n), o.price(n), money(o.value(n, d.policy.ValueOfTime)), o.sooner(n))}
	}
	return choice{why: d.notWorth(o, wait)}
}

func (d *decider) notWorth(o offer, wait string) string {
	switch {
	case o.most == 0:
		return wait + "; every function slot is taken"
	case o.duration(1) >= o.duration(0):
		return wait + "; functions would finish no sooner"
	}
	return fmt.Sprintf("%s; 1 function slot would finish %s sooner for %s, more than the %s that %s are worth",
		wait, o.sooner(1), o.price(1), money(o.value(1, d.policy.ValueOfTime)), o.sooner(1))
}

// keeps reports whether held slots still help the run. Environments that are held are warm, so no start is counted.
func (d *decider) keeps(o offer, held int, goal Goal, left float64, limited bool) bool {
	o.cold = 0
	if held == 0 || o.function >= o.duration(0) {
		return false
	}
	switch {
	case limited && goal.Minimise != Latency:
		return o.duration(0) > deadlineRelief*left
	case goal.Minimise == Latency:
		return true
	case goal.Minimise == Cost:
		return false
	}
	return o.value(held, d.policy.ValueOfTime)*valueRelief >= float64(o.price(held))
}

// bound cuts what a run wants to what its budget has left for its part of the tasks. It says nothing of other runs: a
// task of theirs that a slot takes which this one pays for is kept within their budget by their own account, which the
// venue asks before it runs the task.
func (d *decider) bound(o offer, wanted choice, r *run, part float64) choice {
	if r.Goal.Budget <= 0 || wanted.n == 0 {
		return wanted
	}
	left := max(0, r.Goal.Budget-r.Spent-d.committed[r.ID])
	if n := o.affordable(wanted.n, left, part); n < wanted.n {
		wanted.why += fmt.Sprintf("; %s of the budget of %s is left and that may cost %s, so it is %s",
			left, r.Goal.Budget, o.upperPrice(wanted.n).Times(part), count(n, "slot"))
		wanted.n = n
	}
	return wanted
}

// setFunctions settles the stage's function slots and tells what changed. That nothing spills is told once for each run
// and stage, and only when the backlog is worth it.
func (d *decider) setFunctions(w *work, o offer, picked choice) {
	st := w.stage
	w.functions = picked.n
	if picked.n > 0 {
		st.Class = o.class
		w.finish = o.duration(picked.n)
	}
	decision := Decision{
		Stage: st.ID, Venue: Function, What: "slots",
		From: count(st.Functions, "slot"), To: count(picked.n, "slot"), Reason: picked.why, Inputs: w.inputs(),
	}
	if picked.n == 0 && st.Functions > 0 {
		for _, part := range st.Shares {
			part.Declined = true // this decision tells it
		}
	}
	if picked.n == st.Functions {
		if picked.n > 0 || !d.firstTold(w, picked.told) {
			return
		}
		decision.Run = picked.told
	}
	if o.class > 0 {
		decision.Inputs["pool_wait_seconds"] = o.duration(0)
		decision.Inputs["function_wall_seconds"] = o.function
		decision.Inputs["cold_start_seconds"] = o.cold
		decision.Inputs["price_usd"] = o.price(max(1, picked.n)).USD()
		decision.Inputs["pool_marginal_price_usd"] = 0 // its hosts are held anyway
		decision.Inputs["value_of_time_usd_per_hour"] = d.policy.ValueOfTime.USD()
		decision.Inputs["class_bytes"] = float64(o.class)
		_, variation, _ := st.model.pool()
		decision.Predicted, decision.PredictedUnit = spread(o.duration(picked.n), variation, o.tasks), "seconds"
	}
	d.decide(decision)
}

// firstTold reports whether it is news to the run that nothing of this stage spills.
func (d *decider) firstTold(w *work, id string) bool {
	part := w.stage.Shares[id]
	if id == "" || part == nil || part.Declined || w.poolEnds() < worthTelling {
		return false
	}
	for _, other := range w.stage.Shares {
		other.Declined = true
	}
	return true
}

func (o offer) backlog() string {
	tasks, room := int(o.tasks), ""
	if o.wait >= worthTelling {
		room = fmt.Sprintf(", which has no room for %s", seconds(o.wait))
	}
	if tasks == 1 {
		return fmt.Sprintf("1 task waits %s at %s%s", seconds(o.duration(0)), count(o.slots, "pool slot"), room)
	}
	return fmt.Sprintf("%d tasks wait %s at %s%s", tasks, seconds(o.duration(0)), count(o.slots, "pool slot"), room)
}

func (o offer) sooner(n int) string { return seconds(o.duration(0) - o.duration(n)) }

func finishes(n int) string {
	if n == 1 {
		return "1 function slot finishes"
	}
	return fmt.Sprintf("%d function slots finish", n)
}

// money writes an amount that was computed as a ratio.
func money(pico float64) string { return quantity.Money(1).Times(pico).String() }
