package predictor

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/share"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/predictor/words"
)

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
		if w.doubted > 0 {
			d.setFunctions(w, spill.Offer{}, spill.Choice{Reason: w.doubtReason()})
			continue
		}
		if d.policy.Static || !d.functions.Enabled {
			d.setFunctions(w, spill.Offer{}, spill.Choice{Reason: "functions are switched off"})
			continue
		}
		if why := d.unfit(w); why != "" {
			d.setFunctions(w, spill.Offer{}, d.refused(w, why))
			continue
		}
		o, why, known := d.offer(w)
		if !known || why != "" {
			d.setFunctions(w, o, d.refused(w, why))
			continue
		}
		limit := d.limit(o.Class, slots, cores)
		if limit = d.payable(w, o, limit); limit == 0 && w.queued[0] > 0 {
			if why := d.unpaid(w, o); why != "" {
				d.setFunctions(w, o, spill.Choice{Reason: why})
				continue
			}
		}
		b := d.backlog(w, o, limit)
		if slices.ContainsFunc(b.Runs, func(run spill.Waiting) bool { return run.Limited }) {
			b.Scatter = d.scatter(w, o)
		}
		picked := b.Choose()
		d.withhold(w, o, picked.Slots)
		d.setFunctions(w, o, picked)
		d.setBatch(w, b)
		slots -= w.functions
		cores -= busy(o.Class) * quantity.Milli(w.functions)
		d.reserve(w, o)
		d.pays(w, o)
	}
	slices.SortStableFunc(d.plan.Decisions[first:], func(a, b plan.Decision) int {
		return fact.CompareStages(a.Stage, b.Stage)
	})
}

const (
	// withheldUntil is to what part of what began it the wait for room must fall before slots are withheld no longer.
	withheldUntil = 0.5
	// withholdAgain is for how long they are not withheld again: two changes of slots in it are ten a minute.
	withholdAgain = fact.Instant(12 * time.Second)
)

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
	return quantity.Milli(math.Ceil(size.ClassCores(class) * float64(quantity.Core)))
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
		st := d.memory.Stages[running.Stage()]
		if running.Venue != fact.Function || !running.Runs() || st == nil || st.Class == 0 {
			continue
		}
		d.committed[running.Run] = min(fact.MaxCost, d.committed[running.Run]+
			min(fact.MaxCost, d.functions.Price(st.Class, spill.Span(longestAtFunction(st)))))
	}
}

// longestAtFunction is how many seconds the longest attempt of a stage takes at a function, by those that ran there and
// those at the pool.
func longestAtFunction(st *memory.Stage) float64 {
	atPool, there := st.Model.Times(fact.Pool, 0), st.Model.Times(fact.Function, size.ClassCores(st.Class))
	return max(there.Largest(),
		atPool.Largest()*spill.Demand{Speed: st.Model.Speed(), Cores: atPool.Reference()}.Slowdown(st.Class))
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
func (d *decider) refused(w *work, why spill.Refusal) spill.Choice {
	if why == "" {
		return spill.Choice{Reason: "how long a task takes is not known"}
	}
	refusal := spill.Choice{Reason: "functions cannot run this stage: " + string(why)}
	if why == dearer {
		if refusal.Reason = w.training.reason(); w.wait == 0 && w.queued[0] <= w.slots-w.running[fact.Pool] {
			return refusal // a pool slot is free for it: nobody would have thought of functions
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.stage.Shares)) {
		if part := w.stage.Shares[id]; part.Queued[0]+part.Queued[1]+part.Further > 0 {
			refusal.Run = cmp.Or(refusal.Run, id)
		}
	}
	return refusal
}

// unfit is why functions run none of the tasks that wait at the stage, whatever they cost; empty when they may.
func (d *decider) unfit(w *work) spill.Refusal {
	st := w.stage
	command := st.Model.Program != "" && st.Model.Program != fact.GoProgram
	switch lacks := st.Unfit.Now(d.now); {
	case w.queued[0] == 0 && w.queued[1] > 0 && st.Unfit.Declared != "":
		return spill.Refusal(st.Unfit.Declared)
	case command && d.functions.NoCommands != "":
		return spill.Refusal(d.functions.NoCommands)
	case lacks != "":
		return spill.Refusal(lacks)
	}
	return ""
}

// unfitToCome is why functions run no tasks of the stage that are yet to come, or have ended: unfit, and what was said
// of the latest.
func (d *decider) unfitToCome(w *work) spill.Refusal {
	return cmp.Or(d.unfit(w), spill.Refusal(w.stage.Unfit.Declared))
}

// linger is how long after a task waited an empty queue is believed: a window refills it between two ticks.
const linger = fact.Instant(3 * time.Second)

// backlog is what waits at the stage, with the goals of its runs.
func (d *decider) backlog(w *work, o spill.Offer, limit int) spill.Backlog {
	b := spill.Backlog{
		Offer: o, Queued: w.queued[0], Refills: d.now-w.stage.Backlog < linger, Held: w.stage.Functions, Limit: limit,
		Free: w.slots - w.running[fact.Pool], ValueOfTime: d.policy.ValueOfTime, Eased: w.stage.Spared,
		Clock: d.memory.Clock,
	}
	if b.Queued == 0 {
		return b // nobody is asked
	}
	parts := w.parts()
	for _, id := range slices.Sorted(maps.Keys(parts)) {
		part := w.stage.Shares[id]
		left, limited := d.timeLeft(w.stage, part)
		mine, _ := d.partOf(part.Run, w.stage.ID.Name)
		budget := max(0, part.Run.Goal.Budget-part.Run.Spent-d.committed[id])
		reserved := min(mine.Reserved, budget)
		b.Runs = append(b.Runs, spill.Waiting{
			Run: id, Goal: part.Run.Goal, Left: max(left, 0), Limited: limited, Part: parts[id],
			Due:      (part.Run.Goal.Deadline - time.Duration(d.now-part.Run.Started)).Seconds(),
			After:    d.rests(part.Run, w.stage.ID.Name),
			Budget:   budget - reserved,
			Reserved: reserved, Divided: d.divided(part.Run, w.stage.ID.Name), Planned: mine.Functions,
			Hastened: mine.Hastened,
		})
	}
	return b
}

// scatter is how far the times of the tasks that wait at a stage lie apart, and how long what runs there goes on.
func (d *decider) scatter(w *work, o spill.Offer) spill.Scatter {
	st := w.stage
	times, by := st.Model.Times(fact.Pool, w.size.CPU.Cores()), usage.Duration{}
	if !st.Model.WallFallen {
		by = st.Model.Duration()
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(st.ID.Queue())) // never fails
	s := spill.Scatter{Logs: times.Residuals(by), PoolOnly: w.queued[1], Seed: hash.Sum64()}
	switch {
	case w.taking.pace.Attempts > 0:
		s.Doubt = w.taking.pace.Doubt
	case len(times.Values) == 0 && w.oldest > 0:
		s.Oldest = d.now.Since(w.oldest)
	}
	if by.Feature == usage.InputBytes {
		s.Inputs = st.Model.Elasticity(w.input()) * math.Sqrt(w.inputsLeft().Variance())
	}
	atVenue := st.Model.Times(fact.Function, size.ClassCores(st.Class))
	for _, attempt := range d.attemptsOf(st.ID) {
		age := d.memory.Age(attempt, d.now)
		known, takes, list := times, o.Wall, &s.AtPool
		if attempt.Venue == fact.Function {
			known, takes, list = atVenue, o.Function, &s.AtVenue
		}
		left := d.memory.Goes(attempt, d.now, age, known, known.Residual(age, takes))
		if left == 0 { // it has outlived all that are known
			left = age
		}
		*list = append(*list, left)
	}
	return s
}

// inputsLeft are the inputs of the tasks of all runs that are not done.
func (w *work) inputsLeft() memory.Inputs {
	var left memory.Inputs
	for _, id := range slices.Sorted(maps.Keys(w.stage.Shares)) { // sums of floats hang on their order
		load := w.stage.Shares[id].Load
		left = left.With(load.Inputs.Less(load.Fed))
	}
	return left
}

// setFunctions settles the stage's function slots and tells what changed. That nothing spills is told once for each run
// and stage, and only when the backlog is worth it.
func (d *decider) setFunctions(w *work, o spill.Offer, picked spill.Choice) {
	st := w.stage
	w.functions, st.Spared = picked.Slots, picked.Eased
	if picked.Slots == 0 {
		st.Batch = plan.Batch{}
	}
	if picked.Slots > 0 {
		st.Class = o.Class
		w.finish = o.Duration(picked.Slots)
	}
	decision := plan.Decision{
		Stage: st.ID, Venue: fact.Function, What: "slots",
		From: words.Count(st.Functions, "slot"), To: words.Count(picked.Slots, "slot"),
		Reason: picked.Reason, Inputs: w.inputs(),
	}
	if picked.Slots == 0 && st.Functions > 0 {
		for _, part := range st.Shares {
			part.Declined = true // this decision tells it
		}
	}
	if picked.Slots == st.Functions {
		if picked.Slots > 0 || !d.firstTold(w, picked.Run) {
			return
		}
		decision.Run = picked.Run
	}
	decision.Rejected = w.rejected(o, picked)
	if w.training != nil {
		if !w.training.nowhere {
			decision.Inputs["pool_price_usd"] = w.training.pool.Cost.USD()
		}
		decision.Inputs["exchanged_bytes"] = float64(w.training.work.Model)
		decision.Inputs["training_steps"] = float64(w.training.work.Rounds)
	}
	d.dividedInputs(decision.Inputs, picked.Run, st.ID.Name)
	if d.full {
		decision.Inputs["venue_slots"] = float64(d.functions.Concurrency) // as it lately refused more
	}
	if o.Class > 0 {
		if !o.Never(0) {
			decision.Inputs["pool_wait_seconds"] = o.Duration(0)
		}
		decision.Inputs["function_wall_seconds"] = o.Function
		decision.Inputs["cold_start_seconds"] = o.Cold
		decision.Inputs["price_usd"] = o.Price(max(1, picked.Slots)).USD()
		decision.Inputs["pool_marginal_price_usd"] = 0 // its hosts are held anyway
		decision.Inputs["value_of_time_usd_per_hour"] = d.policy.ValueOfTime.USD()
		decision.Inputs["class_bytes"] = float64(o.Class)
		if !o.Never(picked.Slots) {
			decision.PredictedUnit = "seconds"
			decision.Predicted = spill.Spread(o.Duration(picked.Slots), w.taking.of(o.Tasks), o.Tasks)
		}
	}
	d.decide(decision)
}

// setBatch settles how many tasks share an invoke, once it is known how many invokes go on at a time. While no task
// waits it stays as it is: there is nothing to choose it by.
func (d *decider) setBatch(w *work, b spill.Backlog) {
	st := w.stage
	if w.functions == 0 || b.Queued == 0 {
		return
	}
	batch, reason := plan.Batch{}, "functions of this build take one task an invoke"
	if st.Batches {
		batch, reason = d.parcel(w, b).Batch()
	}
	if batch == st.Batch {
		return
	}
	before := st.Batch
	st.Batch = batch
	if batch.Tasks == before.Tasks {
		return // what a task takes is known better
	}
	d.decide(plan.Decision{
		Stage: st.ID, Venue: fact.Function, What: "batch", From: batchText(before), To: batchText(batch), Reason: reason,
		Inputs: map[string]float64{
			"backlog_tasks": b.Tasks, "slots": float64(w.functions), "function_wall_seconds": b.Function,
			"class_bytes": float64(b.Class), "per_request_usd": d.functions.PerRequest.USD(),
			"largest_input_bytes": float64(st.Input),
		},
	})
}

// parcel is what the batch of a stage is chosen by. A run that may wait for another hour wants what one in a hurry does
// not; their tasks share a queue, so the most impatient one is asked.
func (d *decider) parcel(w *work, b spill.Backlog) spill.Parcel {
	p := spill.Parcel{
		Offer: b.Offer, Chosen: w.functions, Slack: math.Inf(1), Input: w.stage.Input, Held: w.stage.Batch,
		InFlight: d.policy.MaxWindow * max(1, len(b.Runs)),
	}
	if len(b.Runs) == 0 {
		p.Value = b.ValueOfTime
	}
	for _, run := range b.Runs {
		switch {
		case run.Goal.Minimise == fact.Latency:
			p.Hurry = true
		case run.Limited:
			p.Slack = min(p.Slack, run.Left-b.Duration(w.functions))
		case run.Goal.Minimise != fact.Cost:
			p.Value = b.ValueOfTime
		}
	}
	return p
}

func batchText(batch plan.Batch) string {
	if batch.Most() == 1 {
		return "1 task an invoke"
	}
	return fmt.Sprintf("%d tasks an invoke, waiting up to %s", batch.Tasks, words.Seconds(batch.Wait.Seconds()))
}

// rejected are the ways that were not chosen.
func (w *work) rejected(o spill.Offer, picked spill.Choice) (others []plan.Rejected) {
	if o.Class > 0 {
		for _, other := range picked.Alternatives(o) {
			others = append(others, plan.Rejected{
				What: words.Count(other.Slots, "slot"), Venue: fact.Function, Price: other.Price, Seconds: other.Seconds,
				Chance: other.Chance,
			})
		}
	}
	if w.training != nil {
		others = append(others, w.training.rejected(picked.Slots > 0)...)
	}
	return others[:min(len(others), plan.MostRejected)]
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

// firstPeaks is how many times the highest peak a function is given while too few attempts have ended to learn a size:
// the first size is a part of the host, for which a function would be paid though the first attempts took a hundredth
// of it.
const firstPeaks = 4

// functionMemory is the memory that a function needs for the stage.
func (d *decider) functionMemory(w *work) quantity.Bytes {
	known := w.stage.Model
	seen := max(known.Memory.LargestPeak(), known.Function.LargestPeak())
	if w.stage.Sizing.Learned {
		return max(w.size.Memory, quantity.Bytes(known.Function.LargestPeak()*(1+d.policy.Margin))) + spill.FunctionOverhead
	}
	first := w.size.Memory
	if w.stage.Sizing.Grows() { // at the pool; a function has what it has
		first = max(first, known.First.Base.Memory)
	}
	if seen == 0 {
		return first
	}
	return min(first, quantity.Bytes(firstPeaks*seen))
}

// tiedFor is what the speed of the pool, brought to a function's cores, counts beside the run times that functions
// have shown, in these. One attempt there is one draw: where run times vary by a half, an offer that rested on it alone
// would be half or twice of what functions take, and so would the slots that are bought.
const tiedFor = 2

// offer prices functions for the stage. known is false while nothing is known about how long a task takes; where a run
// has a deadline that the age of those that run brings nearer, that is something.
func (d *decider) offer(w *work) (o spill.Offer, why spill.Refusal, known bool) {
	mean, known := w.taking.mean, w.taking.known
	if !known && (w.oldest == 0 || math.IsInf(w.slack, 1)) {
		return spill.Offer{}, "", false
	}
	atPool := w.stage.Model.Times(fact.Pool, w.size.CPU.Cores())
	longest := max(atPool.Quantile(0.99), mean) * d.relative(w, fact.Pool)
	switch {
	case w.taking.pace.Attempts > 0:
		longest = w.taking.pace.High()
	case !known:
		longest = w.wall
	}
	demand := spill.Demand{
		Memory: d.functionMemory(w), Speed: w.stage.Model.Speed(), Cores: w.size.CPU.Cores(), Wall: w.wall,
		Longest: longest, Held: w.stage.Class, Device: w.size.GPU > 0 || w.size.DeviceClass != "",
	}
	class, why := demand.Class(d.functions)
	if why != "" {
		return spill.Offer{}, why, true
	}
	if w.training = d.trains(w); w.training != nil && w.training.dearer() {
		return spill.Offer{}, dearer, true
	}
	factor := demand.Slowdown(class)
	o = spill.Offer{
		Tasks: float64(w.queued[0]), Slots: w.serving(), Wall: w.wall, Wait: w.wait, Class: class, Venue: d.functions,
		Function: max(w.wall*factor, 0.001), Highest: longest * factor, Cold: d.functions.ColdStart.Seconds(),
	}
	walls := w.stage.Model.Times(fact.Function, size.ClassCores(class))
	if len(walls.Values) > 0 && (w.stage.Class == 0 || w.stage.Class == class || walls.Reference() > 0) {
		measured, _ := walls.Mean()
		by := d.relative(w, fact.Function)
		n := float64(len(walls.Values))
		part := n / (n + tiedFor)
		o.Function = max(math.Pow(measured*by, part)*math.Pow(o.Function, 1-part), 0.001)
		o.Highest = max(walls.Largest()*by, part*measured*by+(1-part)*o.Highest)
	}
	if colds := w.stage.Model.Colds[fact.Function]; len(colds.Values) > 0 {
		o.Cold, _ = colds.Mean()
	}
	for _, part := range w.stage.Shares {
		o.Tasks += float64(part.Further)
	}
	return o, "", true
}
