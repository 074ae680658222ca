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
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/venue"
	"github.com/spillway-ml/spillway/predictor/words"
)

// cpu is the share of cores that attempts get by the speed that is known. In a steady state it changes once a minute at
// most: how many tasks wait, and so how much a core is worth, may be another at every tick. What holds attempts back
// is mended at once.
func (d *decider) cpu(w *work, otherwise quantity.Milli) quantity.Milli {
	known := d.cores(w)
	share := known.Share(otherwise)
	if st := w.stage; known.Held > 0 && st.CPUAt > 0 && d.memory.Clock-st.CPUAt < keepCPU &&
		(share <= known.Held || known.HeldBack < known.Held) {
		return min(known.Held, max(known.Most, size.LeastCPU))
	}
	return share
}

// keepCPU is for how long a share of cores is kept.
const keepCPU = fact.Instant(time.Minute)

// cores is what the share of cores of a stage is chosen by.
func (d *decider) cores(w *work) size.CPU {
	st := w.stage
	c := size.CPU{
		Speed: st.Model.Speed(), HeldBack: st.Model.HeldBack(), Most: d.largestFor(st.Sizing.Base).CPU,
		Tasks: float64(w.demand()), Threaded: st.Model.Program != "" && st.Model.Program != fact.GoProgram,
	}
	if len(st.Model.Rates.Values) >= size.EnoughRates {
		c.Rate = quantity.Milli(math.Ceil(st.Model.Rates.Quantile(0.9)))
	}
	if mean, _, known := st.Model.Pool(st.Slot.CPU); known {
		c.Wall, c.At = mean, st.Slot.CPU
	}
	if st.Sizing.Learned {
		c.Held = st.Slot.CPU
	}
	all, claimed := d.pool()
	mine := claim(w)
	c.Room = max(all.CPU-max(claimed-mine, 0), quantity.Milli(float64(all.CPU)*float64(mine)/float64(max(claimed, 1))))
	if st.Slot.Memory > 0 {
		c.Slots = float64(all.Memory) / float64(st.Slot.Memory)
	}
	d.withGPUs(&c, st.Sizing.Base)
	var due []float64
	c.Worth, due = d.haste(st)
	if len(due) == 0 {
		return c
	}
	larger := 1.0
	if by := d.relative(w, fact.Pool); by > 0 {
		larger = by // the tasks that wait take so many times as long as Wall
	}
	ahead := d.ahead(w, c.Wall)
	c.Left = -1
	for _, left := range due { // the first that can be met
		if left /= larger; !c.Late(left, ahead) {
			c.Left = left
			break
		}
	}
	return c
}

// ahead is the work that is left at a stage whose attempts take so many seconds at the pool: of those that run, what
// they have left.
func (d *decider) ahead(w *work, wall float64) (ahead size.Ahead) {
	if waiting := w.queued[0] + w.queued[1]; waiting > 0 {
		ahead = size.Ahead{Tasks: float64(waiting), Longest: 1}
	}
	if !(wall > 0) {
		return ahead
	}
	times := w.stage.Model.Times(fact.Pool, w.stage.Slot.CPU.Cores())
	for _, began := range slices.Sorted(slices.Values(w.begun)) {
		left, age := wall, max(0, d.now.Since(began))
		if len(times.Values) > 0 {
			left = memory.Remaining(times, age)
		}
		part := min(left/wall, 1)
		ahead.Tasks, ahead.Longest = ahead.Tasks+part, max(ahead.Longest, part)
	}
	return ahead
}

// withGPUs bounds what the share of cores of a stage is chosen by to the hosts that have its GPUs. As many cores as go
// with those are there for it: nobody else who asks for a GPU can have them, and others have other hosts.
func (d *decider) withGPUs(c *size.CPU, base quantity.Size) {
	count := base.WholeGPUs()
	if count == 0 || d.hosts.Lacking(base) != "" {
		return
	}
	var all quantity.Size
	slots := 0.0
	for _, host := range d.hosts.Having(base) {
		room := host.For(base)
		all, slots = all.Plus(room), slots+float64(host.Has(base))
		if part := room.CPU / max(room.GPU/quantity.Core, 1) * quantity.Milli(count); c.Bundled == 0 ||
			part < c.Bundled {
			c.Bundled = part
		}
	}
	if c.Slots == 0 || slots < c.Slots {
		c.Slots = max(slots, 1)
	}
	c.Room = min(max(c.Room, c.Bundled*quantity.Milli(slots)), all.CPU)
}

// deadlineReserve is within which part of the time left an attempt must end for its cores to be enough.
const deadlineReserve = 0.9

// haste is what a second of an attempt is worth to those runs of a stage that pay most for it (see [size.Worth]), and
// how many seconds the runs have that have a deadline, the next one first.
func (d *decider) haste(st *memory.Stage) (worth float64, due []float64) {
	price, runs := d.corePrice(st.Slot), 0
	for _, part := range st.Shares {
		if !part.Run.Known || !part.Works() {
			continue
		}
		goal := part.Run.Goal
		worth, runs = max(worth, size.Worth(d.policy.ValueOfTime, price, goal.Minimise)), runs+1
		if left, limited := d.timeLeft(st, part); limited {
			due = append(due, deadlineReserve*left)
		}
	}
	slices.Sort(due)
	if runs == 0 {
		worth = size.Worth(d.policy.ValueOfTime, price, "")
	}
	return worth, due
}

// corePrice is what an hour of a core costs on the dearest host that has the GPUs of a slot.
func (d *decider) corePrice(slot quantity.Size) quantity.Money {
	devices := devicesOf(slot)
	price, known := d.perCore[devices]
	if known {
		return price
	}
	for _, host := range d.hosts.Having(devices) {
		if host.Capacity.GPU > 0 && slot.GPU == 0 {
			continue // its price is that of its GPUs
		}
		price = max(price, host.PricePerHour/max(1, quantity.Money(host.Capacity.CPU/quantity.Core)))
	}
	d.perCore[devices] = price
	return price
}

// claim is how many cores the tasks of a stage would hold together.
func claim(w *work) quantity.Milli {
	return quantity.Milli(min(w.demand(), plan.MaxSlots)) * min(cmp.Or(w.stage.Slot.CPU, quantity.Core), fact.MaxRate)
}

// pool is what all hosts have together, and how many cores the tasks of all stages would hold.
func (d *decider) pool() (all quantity.Size, claimed quantity.Milli) {
	if !d.pooled {
		d.pooled = true
		for _, host := range d.hosts {
			d.capacity = d.capacity.Plus(host.Capacity)
		}
		for _, w := range d.works {
			d.claimed += claim(w)
		}
	}
	return d.capacity, d.claimed
}

// excess is what it costs that an attempt of the stage runs out of memory.
func (d *decider) excess(w *work) size.Excess {
	known := w.stage.Model
	others, wanted := d.waiting()
	e := size.Excess{
		Wall: w.wall, Lost: w.wall, Restart: known.Colds[fact.Pool].Quantile(0.5), Retry: size.GrowAfterOutOfMemory,
		Own: d.ownHour(w), Others: others, Wanted: wanted,
	}
	if made := known.Checkpoints.Quantile(0.5); made > 0 { // as many parts, and that after the last
		e.Lost = w.wall / (1 + made)
	}
	if need := known.Need.Memory; known.Need.MemoryKnown && need.Above > need.Limit {
		e.Retry = need.Above / need.Limit
	}
	return e
}

// ownHour is what an hour of an attempt is worth in US dollars: to the run that it is worth the most to, and what its
// part of the largest host costs.
func (d *decider) ownHour(w *work) float64 {
	worth := 0.0
	for _, part := range w.stage.Shares {
		if part.Run.Known && part.Works() {
			worth = max(worth, d.hour(part))
		}
	}
	capacity, slot := d.largestFor(quantity.Size{}), w.stage.Slot
	at := slices.IndexFunc(d.hosts, func(h plan.Host) bool { return h.Capacity == capacity })
	if at < 0 || capacity.Memory <= 0 || capacity.CPU <= 0 {
		return worth
	}
	part := max(float64(slot.Memory)/float64(capacity.Memory), float64(slot.CPU)/float64(capacity.CPU))
	return worth + min(part, 1)*max(0, d.hosts[at].PricePerHour.USD())
}

// hour is what an hour of earlier finish is worth to a run that uses a stage.
func (d *decider) hour(part *memory.Share) float64 {
	return size.Hour(d.policy.ValueOfTime, part.Run.Goal.Minimise)
}

// waiting is what an hour is worth to the tasks that wait for the pool's memory, and how much they want of it; see
// [size.Others] and [size.Wanted]. It is that of the whole pool: what waits takes room wherever it becomes free.
func (d *decider) waiting() (others, wanted float64) {
	if d.waits != nil {
		return d.waits.others, d.waits.wanted
	}
	var bytes, cores, held, taken float64 // that there are, and that are held or asked for
	for _, host := range d.hosts {
		bytes, cores = bytes+float64(host.Capacity.Memory), cores+float64(host.Capacity.CPU)
		held, taken = held+float64(host.Capacity.Memory-host.Free.Memory), taken+float64(host.Capacity.CPU-host.Free.CPU)
	}
	var all []size.Waiting
	for _, w := range d.works {
		tasks, each := float64(w.queued[0]+w.queued[1]), float64(w.stage.Slot.Memory)
		held, taken = held+tasks*each, taken+tasks*float64(w.stage.Slot.CPU)
		for _, id := range slices.Sorted(maps.Keys(w.stage.Shares)) { // sums of floats hang on their order
			part := w.stage.Shares[id] // of tasks that no run is known to have, nobody knows what they are worth
			if queued := float64(part.Queued[0] + part.Queued[1]); part.Run.Known && queued > 0 && tasks > 0 {
				all = append(all, size.Waiting{Memory: queued * each, Hour: d.hour(part)})
			}
		}
	}
	d.waits = &waits{others: d.policy.ValueOfTime.USD()}
	if len(all) > 0 {
		d.waits.others = size.Others(all)
	}
	if bytes > 0 && cores > 0 {
		d.waits.wanted = size.Wanted(held/bytes, taken/cores)
	}
	return d.waits.others, d.waits.wanted
}

// waits is what [decider.waiting] says.
type waits struct{ others, wanted float64 }

// dearer is why functions are not asked for a training that they could run.
const dearer spill.Refusal = "they cost more than the pool"

// training is what one task of a stage that trains a model costs at the pool, and in functions.
type training struct {
	work    venue.Work
	parts   int
	workers int // tasks that train together, and that are priced together; 0 where each trains alone
	pool    venue.Estimate
	// cheaper says that functions cost less than the pool, and nowhere that the pool has no slot for it, and no price.
	cheaper, nowhere bool
	// ways are the ways of functions that can be had, the cheapest first.
	ways []trainedBy
	// front are the ways of any number of workers, in functions and at the pool, that no other beats in time and cost.
	front []venue.Option
}

// trainedBy is a way to train in functions.
type trainedBy struct {
	venue.Estimate
	functions int
}

// trains weighs the newest training that a stage told of; nil where it trains nothing. A training is steady work that
// communicates: all that it takes is known beforehand but its speed, and its parts exchange after each step. So it goes
// where it costs less by the model of [venue.Choose], whatever an hour is worth: the pool's slot at the price of its
// host, against one function that does all of it and exchanges within itself. As many as it has parts, which exchange
// through a store because functions do not reach each other, are priced to be told. Where several tasks train together,
// as many slots stand against as many functions, and there is no other number of them to choose.
func (d *decider) trains(w *work) *training {
	told, trains := w.stage.Model.Training()
	if !trains || !d.functions.Enabled {
		return nil
	}
	threads, cores := 0, max(w.size.CPU.Cores(), 0.001)
	for _, part := range told.Parts {
		threads += max(1, part.Threads)
	}
	used := min(cores, float64(threads))
	step := cmp.Or(told.StepSeconds, told.PredictedStepSeconds)
	if step <= 0 {
		return nil // it would cost nothing anywhere
	}
	nowhere := len(d.hosts) == 0 || w.wait >= spill.NoPool
	if told.Workers > 1 {
		t := d.trainsTogether(w, told, cores, float64(threads))
		if t != nil {
			t.nowhere = nowhere
		}
		return t
	}
	t := &training{parts: len(told.Parts), nowhere: nowhere, work: venue.Work{
		Model: told.ModelBytes, Rounds: int(min(max(told.TotalSteps, told.Steps, 1), math.MaxInt32)),
		Compute: time.Duration(min(step*used, fact.MaxWall.Seconds()) * float64(time.Second)), MostCores: float64(threads),
	}}
	slot := venue.Hosts{Name: "the pool's slot", Cores: cores, Hour: d.slotPrice(w)}
	within := venue.Channel{BytesPerSecond: math.Inf(1)}
	cold := d.functions.ColdStart
	ways := venue.Ways{
		Store: venue.ObjectStore(), Channels: []venue.Channel{within},
		Starts: []venue.Start{{Workers: 1, Takes: cold}, {Workers: plan.MaxSlots, Takes: cold}},
	}
	if !t.weigh(1, d.holding(d.functionMemory(w)), ways, slot) {
		return nil
	}
	if t.parts > 1 {
		ways.Channels = []venue.Channel{venue.ObjectStore()}
		t.divided(d.holding(d.functionMemory(w)/quantity.Bytes(t.parts)), ways)
	}
	slices.SortStableFunc(t.ways, func(a, b trainedBy) int { return int(min(1, max(-1, a.Cost-b.Cost))) })
	return t
}

// trainsTogether weighs a training by several tasks, each of which is a worker. What they exchange takes as long among
// slots as it was told to, and so among functions of this machine; others exchange through a store of objects.
func (d *decider) trainsTogether(w *work, told fact.Training, cores, threads float64) *training {
	step := cmp.Or(told.StepSeconds, told.PredictedStepSeconds)
	exchange := min(told.ExchangeSeconds, step)
	n := float64(told.Workers)
	threads = max(threads, 1)
	compute := min((step-exchange)*min(cores, threads)*n, fact.MaxWall.Seconds())
	t := &training{workers: told.Workers, work: venue.Work{
		Model: told.ModelBytes, Rounds: int(min(max(told.TotalSteps, told.Steps, 1), math.MaxInt32)),
		Compute: time.Duration(compute * float64(time.Second)), MostCores: threads,
	}}
	each := func(transfers float64) venue.Channel {
		return venue.Channel{
			Name: "the engine's store", BytesPerSecond: math.Inf(1),
			Latency: time.Duration(exchange / transfers * float64(time.Second)), Pattern: venue.AllGather,
		}
	}
	slot := venue.Hosts{
		Name: "slots of the pool", Cores: cores, Hour: d.slotPrice(w), Network: each(2*n - 2),
		Store: venue.Channel{BytesPerSecond: math.Inf(1)},
	}
	cold := d.functions.ColdStart
	ways := venue.Ways{
		Store: venue.ObjectStore(), Channels: []venue.Channel{each(n)},
		Starts: []venue.Start{{Workers: 1, Takes: cold}, {Workers: plan.MaxSlots, Takes: cold}},
	}
	if d.functions.Cores == 0 { // they are elsewhere
		scatter, gather := venue.ObjectStore(), venue.ObjectStore()
		gather.Pattern = venue.AllGather
		ways.Channels = []venue.Channel{scatter, gather}
	}
	offered := d.holding(d.functionMemory(w))
	if !t.weigh(told.Workers, offered, ways, slot) {
		return nil
	}
	// What others cost is told; how many there are is the pipeline's choice.
	front, err := venue.Options(t.work, min(2*told.Workers, mostWeighed), offered, ways, []venue.Hosts{slot})
	if err == nil { // a training without a step costs nothing anywhere
		t.front = front
	}
	return t
}

// mostWeighed is up to how many workers a training is weighed.
const mostWeighed = 64

// holding are the functions that hold so much.
func (d *decider) holding(needed quantity.Bytes) venue.Functions {
	functions := d.functions
	functions.Classes = slices.DeleteFunc(slices.Clone(functions.Classes), func(class quantity.Bytes) bool {
		return class < needed
	})
	return functions
}

// weigh decides between the pool's slots and what spills, a function for each worker; false where nothing can be said.
func (t *training) weigh(workers int, offered venue.Functions, ways venue.Ways, slot venue.Hosts) bool {
	choice, err := venue.Choose(t.work, workers, offered, ways, []venue.Hosts{slot})
	if err != nil {
		return false
	}
	t.pool, t.cheaper = choice.Pool, choice.Spill
	if choice.Possible {
		t.ways = append(t.ways, trainedBy{choice.Functions, workers})
	}
	return true
}

// divided notes what the training costs with each of its parts in a function, where it can be done so.
func (t *training) divided(offered venue.Functions, ways venue.Ways) {
	work := t.work
	work.MostCores /= float64(t.parts)
	if way, possible := work.Cheapest(offered, ways, t.parts); possible {
		t.ways = append(t.ways, trainedBy{way, t.parts})
	}
}

// dearer reports whether what spills, a function for each task, costs no less than the pool, which has a slot for it.
func (t *training) dearer() bool { return !t.nowhere && !t.cheaper }

// spills reports whether a way is a function for each task.
func (t *training) spills(way trainedBy) bool { return way.functions == max(1, t.workers) }

// reason says what was weighed.
func (t *training) reason() string {
	var text strings.Builder
	how := "in " + words.Count(t.parts, "part")
	if t.workers > 0 {
		how = "by " + words.Count(t.workers, "worker")
	}
	fmt.Fprintf(&text, "a training of %s %s costs %s at the pool in %s", words.Count(t.work.Rounds, "step"), how,
		t.pool.Cost, words.Seconds(t.pool.Time.Seconds()))
	for _, way := range t.ways {
		fmt.Fprintf(&text, ", %s as %s in %s", way.Cost, t.described(way), words.Seconds(way.Time.Seconds()))
		if way.Exchange > muchExchange {
			fmt.Fprintf(&text, " (the exchange takes %.0f%% of a step)", 100*way.Exchange)
		}
	}
	switch {
	case len(t.ways) == 0:
		return text.String() + ", and no function can do it"
	case t.dearer() && t.workers > 0:
		return text.String() + ": functions are no cheaper"
	case t.dearer():
		return text.String() + ": one function is no cheaper"
	}
	return text.String()
}

// muchExchange is from which part of a step on a decision tells how much of it the exchange is.
const muchExchange = 0.25

func (t *training) described(way trainedBy) string {
	if way.functions == 1 {
		return "one function of " + way.Class.String()
	}
	exchange := "exchange"
	if t.work.Model > 0 {
		exchange += " " + t.work.Model.String()
	}
	return fmt.Sprintf("%d functions of %s that %s after each step through %s", way.functions, way.Class, exchange,
		way.Channel)
}

// rejected are the ways that were not taken.
func (t *training) rejected(spilled bool) (others []plan.Rejected) {
	if spilled && !t.nowhere {
		others = append(others, plan.Rejected{
			What: "a slot", Venue: fact.Pool, Price: t.pool.Cost, Seconds: t.pool.Time.Seconds(), Chance: -1,
		})
	}
	for _, way := range t.ways {
		if spilled && t.spills(way) {
			continue // that is what spills
		}
		others = append(others, plan.Rejected{
			What: t.described(way), Venue: fact.Function, Price: way.Cost, Seconds: way.Time.Seconds(), Chance: -1,
		})
	}
	for _, option := range t.front {
		if option.Workers == t.workers {
			continue // it is above, or is what is done
		}
		at := fact.Pool
		if option.Functions() {
			at = fact.Function
		}
		others = append(others, plan.Rejected{
			What: option.String(), Venue: at, Price: option.Cost, Seconds: option.Time.Seconds(), Chance: -1,
		})
	}
	return others
}
