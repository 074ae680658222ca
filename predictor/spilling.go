package predictor

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/share"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Time and value kept in hand, so that a choice is not undone by the next attempt.
const (
	deadlineReserve = 0.9                  // a deadline counts as met when the stage ends within this part of what is left
	deadlineRelief  = 0.5                  // function slots go back once the pool alone ends within this part of it
	valueRelief     = 1.25                 // and once they cost this many times what they save
	linger          = memory.Instant(3e9)  // an empty queue is believed after this long: a window refills it meanwhile
	withheldUntil   = 0.5                  // slots are withheld until the wait for room is this part of what began it
	withholdAgain   = memory.Instant(12e9) // and not again for this long: two changes of slots in it are ten a minute
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
		return share.Neediest(a.slack, a.poolFinish(), b.slack, b.poolFinish())
	})
	for _, w := range order {
		w.finish = w.poolEnds()
		if w.queued[0] > 0 {
			w.stage.Backlog = d.now
		}
		if d.policy.Static || !d.functions.Enabled {
			d.setFunctions(w, spill.Offer{}, choice{why: "functions are switched off"})
			continue
		}
		o, why, known := d.offer(w)
		if !known || why != "" {
			d.setFunctions(w, o, d.refused(w, why))
			continue
		}
		limit := d.limit(o.Class, slots, cores)
		picked := d.choose(w, o, limit)
		d.withhold(w, o, picked.n)
		d.setFunctions(w, o, picked)
		slots -= w.functions
		cores -= busy(o.Class) * quantity.Milli(w.functions)
		d.reserve(w, o)
	}
	slices.SortStableFunc(d.plan.Decisions[first:], func(a, b plan.Decision) int {
		return fact.CompareStages(a.Stage, b.Stage)
	})
}

// withhold takes the stage's spare pool slots back where functions end a task before the pool has room for one: a host
// that had taken it would keep it until it has. They come back once the pool has room before half of that time is over,
// and then stay for a while: large attempts that follow each other make room again and again.
func (d *decider) withhold(w *work, o spill.Offer, functions int) {
	st, clock := w.stage, max(1, d.memory.Clock)
	least := o.Cold + o.Function
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
	for i, host := range d.hosts {
		w.placed[i] = w.held[host.ID]
		w.slots += w.held[host.ID]
	}
}

// busy is how many cores of a local venue one environment of the class may keep busy.
func busy(class quantity.Bytes) quantity.Milli {
	return quantity.Milli(math.Ceil(spill.ClassCores(class) * float64(quantity.Core)))
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
	for _, running := range d.memory.Attempts {
		st := d.memory.Stages[running.Stage]
		if running.Venue != fact.Function || !running.Runs() || st == nil || st.Class == 0 {
			continue
		}
		walls := st.Model.Walls
		longest := max(walls[fact.Function].Largest(), walls[fact.Pool].Largest()*spill.Slowdown(st.Class, 0))
		d.committed[running.Run] = min(fact.MaxCost, d.committed[running.Run]+
			min(fact.MaxCost, d.functions.Price(st.Class, spill.Span(longest))))
	}
}

// reserve takes the upper price of what was chosen off the budgets of the stage's runs, so that their next stage does
// not spend it again.
func (d *decider) reserve(w *work, o spill.Offer) {
	if w.functions == 0 {
		return
	}
	for id, part := range w.parts() {
		d.committed[id] = min(fact.MaxCost, d.committed[id]+o.UpperPrice(w.functions).Times(part))
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
func (d *decider) choose(w *work, o spill.Offer, limit int) choice {
	held, queued := w.stage.Functions, w.queued[0]
	further := o.Tasks > float64(queued)
	if queued == 0 {
		if held > 0 && (further || d.now-w.stage.Backlog < linger) {
			return choice{n: min(held, limit), why: "the venue has no room for more"}
		}
		return choice{why: "no task waits any more"}
	}
	if held == 0 && w.wait == 0 && queued <= w.slots-w.running[fact.Pool] {
		return choice{why: "a pool slot is free for every task that waits"}
	}
	o.Most = min(queued, limit)
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
func (d *decider) wish(w *work, o spill.Offer, held int) (picked choice, keep bool) {
	parts := w.parts()
	for _, id := range slices.Sorted(maps.Keys(parts)) {
		part := w.stage.Shares[id]
		goal := part.Run.Goal
		left, limited := d.timeLeft(w.stage, part)
		mine := d.bound(o, d.byGoal(o, goal, max(left, 0), limited), part.Run, parts[id])
		mine.told = id
		if picked.told == "" || mine.n > picked.n {
			picked = mine
		}
		keep = keep || d.keeps(o, held, goal, max(left, 0), limited) &&
			d.bound(o, choice{n: held}, part.Run, parts[id]).n == held
	}
	if picked.told == "" {
		return d.byGoal(o, fact.Goal{}, 0, false), d.keeps(o, held, fact.Goal{}, 0, false)
	}
	return picked, keep
}

// byGoal is how many slots one run wants: the least that meet its deadline; none beyond that to save cost, all that
// help to save time; without a deadline and an objective, as many as are worth their price.
func (d *decider) byGoal(o spill.Offer, goal fact.Goal, left float64, limited bool) choice {
	wait := o.Backlog()
	if limited && o.Duration(0) > deadlineReserve*left {
		n := o.Within(deadlineReserve * left)
		if n > 0 {
			return choice{n: n, why: fmt.Sprintf("%s, with %s left to the deadline; %s in %s for %s",
				wait, words.Seconds(left), finishes(n), words.Seconds(o.Duration(n)), o.Price(n))}
		}
		return choice{why: fmt.Sprintf("%s, with %s left to the deadline, but functions would finish no sooner", wait,
			words.Seconds(left))}
	}
	switch {
	case goal.Minimise == fact.Latency:
		if n := o.Fastest(); n > 0 {
			return choice{n: n, why: fmt.Sprintf("%s; the run minimises latency: %s %s sooner for %s", wait, finishes(n),
				o.Sooner(n), o.Price(n))}
		}
		return choice{why: wait + "; functions would finish no sooner"}
	case limited:
		return choice{why: fmt.Sprintf("%s, well within the %s left to the deadline", wait, words.Seconds(left))}
	case goal.Minimise == fact.Cost:
		return choice{why: wait + "; the run minimises cost and has no deadline that needs functions"}
	}
	n := o.Best(d.policy.ValueOfTime)
	if n > 0 {
		return choice{n: n, why: fmt.Sprintf("%s; %s %s sooner for %s, less than the %s that %s are worth",
			wait, finishes(n), o.Sooner(n), o.Price(n), money(o.Value(n, d.policy.ValueOfTime)), o.Sooner(n))}
	}
	return choice{why: d.notWorth(o, wait)}
}

func (d *decider) notWorth(o spill.Offer, wait string) string {
	switch {
	case o.Most == 0:
		return wait + "; every function slot is taken"
	case o.Duration(1) >= o.Duration(0):
		return wait + "; functions would finish no sooner"
	}
	return fmt.Sprintf("%s; 1 function slot would finish %s sooner for %s, more than the %s that %s are worth",
		wait, o.Sooner(1), o.Price(1), money(o.Value(1, d.policy.ValueOfTime)), o.Sooner(1))
}

// keeps reports whether held slots still help the run. Environments that are held are warm, so no start is counted.
func (d *decider) keeps(o spill.Offer, held int, goal fact.Goal, left float64, limited bool) bool {
	o.Cold = 0
	if held == 0 || o.Function >= o.Duration(0) {
		return false
	}
	switch {
	case limited && goal.Minimise != fact.Latency:
		return o.Duration(0) > deadlineRelief*left
	case goal.Minimise == fact.Latency:
		return true
	case goal.Minimise == fact.Cost:
		return false
	}
	return o.Value(held, d.policy.ValueOfTime)*valueRelief >= float64(o.Price(held))
}

// bound cuts what a run wants to what its budget has left for its part of the tasks. It says nothing of other runs: a
// task of theirs that a slot takes which this one pays for is kept within their budget by their own account, which the
// venue asks before it runs the task.
func (d *decider) bound(o spill.Offer, wanted choice, r *memory.Run, part float64) choice {
	if r.Goal.Budget <= 0 || wanted.n == 0 {
		return wanted
	}
	left := max(0, r.Goal.Budget-r.Spent-d.committed[r.ID])
	if n := o.Affordable(wanted.n, left, part); n < wanted.n {
		wanted.why += fmt.Sprintf("; %s of the budget of %s is left and that may cost %s, so it is %s",
			left, r.Goal.Budget, o.UpperPrice(wanted.n).Times(part), words.Count(n, "slot"))
		wanted.n = n
	}
	return wanted
}

// setFunctions settles the stage's function slots and tells what changed. That nothing spills is told once for each run
// and stage, and only when the backlog is worth it.
func (d *decider) setFunctions(w *work, o spill.Offer, picked choice) {
	st := w.stage
	w.functions = picked.n
	if picked.n > 0 {
		st.Class = o.Class
		w.finish = o.Duration(picked.n)
	}
	decision := plan.Decision{
		Stage: st.ID, Venue: fact.Function, What: "slots",
		From: words.Count(st.Functions, "slot"), To: words.Count(picked.n, "slot"), Reason: picked.why, Inputs: w.inputs(),
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
	if o.Class > 0 {
		decision.Inputs["pool_wait_seconds"] = o.Duration(0)
		decision.Inputs["function_wall_seconds"] = o.Function
		decision.Inputs["cold_start_seconds"] = o.Cold
		decision.Inputs["price_usd"] = o.Price(max(1, picked.n)).USD()
		decision.Inputs["pool_marginal_price_usd"] = 0 // its hosts are held anyway
		decision.Inputs["value_of_time_usd_per_hour"] = d.policy.ValueOfTime.USD()
		decision.Inputs["class_bytes"] = float64(o.Class)
		_, variation, _ := st.Model.Pool()
		decision.Predicted, decision.PredictedUnit = spill.Spread(o.Duration(picked.n), variation, o.Tasks), "seconds"
	}
	d.decide(decision)
}

// firstTold reports whether it is news to the run that nothing of this stage spills.
func (d *decider) firstTold(w *work, id string) bool {
	part := w.stage.Shares[id]
	if id == "" || part == nil || part.Declined || w.poolEnds() < spill.WorthTelling {
		return false
	}
	for _, other := range w.stage.Shares {
		other.Declined = true
	}
	return true
}

func finishes(n int) string {
	if n == 1 {
		return "1 function slot finishes"
	}
	return fmt.Sprintf("%d function slots finish", n)
}

// money writes an amount that was computed as a ratio.
func money(pico float64) string { return quantity.Money(1).Times(pico).String() }

// refusal is why functions cannot run a stage at all.
type refusal string

// Almost equal prices: between one core and less, halving the class doubles the time at the same price, so the larger
// finishes earlier for nothing. Five percent covers the rounding of the bill to milliseconds.
const sameprice = 1.05

// class picks the memory class: among those that hold the stage and finish within the function's limit, the cheapest
// per task; among almost equal prices the fastest, then the smallest. A class once chosen stays while it still holds
// the stage, because another one is another function that starts cold. firstPeaks is how many times the highest peak a
// function is given while too few attempts have ended to learn a size: the first size is a part of the host, for which
// a function would be paid though the first attempts took a hundredth of it.
const firstPeaks = 4

// FunctionOverhead is what the runtime of a function takes besides what an attempt takes at the pool: the connection to
// the venue, and pages of the program that processes of one host share.
const FunctionOverhead = 32 * quantity.MiB

// functionMemory is the memory that a function needs for the stage.
func (d *decider) functionMemory(w *work) quantity.Bytes {
	known := w.stage.Model
	seen := max(known.Memory.LargestPeak(), known.Function.LargestPeak())
	if w.stage.Sizing.Learned {
		return max(w.size.Memory, quantity.Bytes(known.Function.LargestPeak()*(1+d.policy.Margin))) + FunctionOverhead
	}
	if seen == 0 {
		return w.size.Memory
	}
	return min(w.size.Memory, quantity.Bytes(firstPeaks*seen))
}

func (d *decider) class(w *work, wall, longest float64) (quantity.Bytes, refusal) {
	rate := quantity.Milli(w.stage.Model.Rates.Quantile(0.9))
	needed := d.functionMemory(w)
	var fits []quantity.Bytes
	tooLong := false
	for _, class := range d.functions.Classes {
		if class < needed || w.size.GPU > 0 || w.size.DeviceClass != "" {
			continue
		}
		limit := d.functions.MaxDuration
		if limit > 0 && longest*spill.Slowdown(class, rate) >= durationShare*limit.Seconds() {
			tooLong = true
			continue
		}
		fits = append(fits, class)
	}
	switch {
	case w.size.GPU > 0 || w.size.DeviceClass != "":
		return 0, "it needs a GPU, which functions do not have"
	case len(fits) == 0 && tooLong:
		return 0, refusal("a task may take " + words.Seconds(longest) + ", too close to the limit of " +
			words.Seconds(d.functions.MaxDuration.Seconds()))
	case len(fits) == 0:
		return 0, refusal("it needs " + needed.String() + ", more than the largest function has")
	case slices.Contains(fits, w.stage.Class):
		return w.stage.Class, ""
	}
	price := func(class quantity.Bytes) quantity.Money {
		return d.functions.Price(class, spill.Span(wall*spill.Slowdown(class, rate)))
	}
	cheapest := price(slices.MinFunc(fits, func(a, b quantity.Bytes) int {
		return int(min(1, max(-1, price(a)-price(b))))
	}))
	chosen := quantity.Bytes(0)
	for _, class := range fits {
		if float64(price(class)) <= sameprice*float64(cheapest) &&
			(chosen == 0 || spill.Slowdown(class, rate) < spill.Slowdown(chosen, rate)) {
			chosen = class
		}
	}
	return chosen, ""
}

// durationShare is the part of the function's limit that the longest task may take: an invoke that runs into the limit
// is billed in full and done again at the pool.
const durationShare = 0.8

// offer prices functions for the stage. known is false while nothing is known about how long a task takes.
func (d *decider) offer(w *work) (o spill.Offer, why refusal, known bool) {
	mean, _, known := w.stage.Model.Pool()
	if !known {
		return spill.Offer{}, "", false
	}
	longest := max(w.stage.Model.Walls[fact.Pool].Quantile(0.99), mean)
	class, why := d.class(w, mean, longest)
	if why != "" {
		return spill.Offer{}, why, true
	}
	rate := quantity.Milli(w.stage.Model.Rates.Quantile(0.9))
	factor := spill.Slowdown(class, rate)
	o = spill.Offer{
		Tasks: float64(w.queued[0]), Slots: w.serving(), Wall: w.wall, Wait: w.wait, Class: class, Venue: d.functions,
		Function: max(w.wall*factor, 0.001), Highest: longest * factor, Cold: d.functions.ColdStart.Seconds(),
	}
	walls := w.stage.Model.Walls[fact.Function]
	if len(walls.Values) > 0 && (w.stage.Class == 0 || w.stage.Class == class) {
		measured, _ := walls.Mean()
		o.Function, o.Highest = max(measured, 0.001), max(walls.Largest(), measured)
	}
	if colds := w.stage.Model.Colds[fact.Function]; len(colds.Values) > 0 {
		o.Cold, _ = colds.Mean()
	}
	for _, part := range w.stage.Shares {
		o.Tasks += float64(part.Further)
	}
	return o, "", true
}
