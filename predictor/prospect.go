package predictor

import (
	"cmp"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/outlook"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

// prospect adds what is left of a stage and what it can be given to a job; r is the run that goes on, nil for one that
// has ended. Cores is with how many left.Mean was measured, 0 where tasks of either venue tell it, and device on which
// class of GPU, empty where that is not known.
func (d *decider) prospect(
	job *whatif.Job, w *work, left outlook.Left, cores float64, device string, r *memory.Run,
) {
	if w == nil || !w.taking.known && !(left.Mean > 0 && cores > 0) {
		job.Unknown = append(job.Unknown, left.Stage)
		return
	}
	s, wall := d.leftOf(w, left, cores, r)
	if cores == 0 && left.Mean > 0 && len(w.stage.Model.Devices[w.size.DeviceClass].Values) > 0 {
		device = w.size.DeviceClass // earlier runs asked for it, too, as far as anybody knows
	}
	s.Devices, s.Untried = d.devices(w, wall, device, r)
	s.Rooms = d.rooms(w, d.shares(w), d.here(w, wall, device), r)
	job.ValueOfTime = d.policy.ValueOfTime
	if s.Refused = string(d.unfitToCome(w)); s.Refused == "" && d.functions.Enabled && !d.policy.Static {
		s.Classes, s.Refused = d.classes(w, wall, r)
	}
	if len(s.Rooms)+len(s.Classes) == 0 && s.Tasks > 0 {
		job.Missing = cmp.Or(job.Missing, "no host has room for a task of "+left.Stage+", and no function can run it")
	}
	job.Stages = append(job.Stages, s)
}

// leftOf is what is left of a stage, without what it can be given, and how many seconds a task takes at the pool.
func (d *decider) leftOf(w *work, left outlook.Left, cores float64, r *memory.Run) (s whatif.Stage, wall float64) {
	s = whatif.Stage{
		Name: left.Stage, Tasks: left.Tasks, Spread: left.Spread, Doubt: left.Doubt, Start: left.Start, End: left.End,
	}
	model := w.stage.Model
	wall = w.wall
	switch {
	case cores > 0:
		wall = left.Mean * model.Speed().Slower(cores, w.size.CPU.Cores())
	case left.Mean > 0:
		wall = left.Mean * d.atPool(model, w.size.CPU.Cores())
	}
	if left.Called {
		s.Running, s.Others = d.goesOn(w, r), w.others(r)
		s.Present = whatif.Given{Slots: w.slots, Size: w.size, Functions: w.functions, Class: w.stage.Class}
	}
	return s, wall
}

// atPool is by what factor tasks take longer at the pool with so many cores than the mean of those that have ended at
// either venue did.
func (d *decider) atPool(model *memory.Model, cores float64) float64 {
	sum, n := 0.0, 0
	for _, at := range [...]fact.Venue{fact.Pool, fact.Function} {
		for _, wall := range model.Walls[at].Values {
			sum, n = sum+wall, n+1
		}
	}
	mean, _ := model.Times(fact.Pool, cores).Mean()
	if there := model.Walls[fact.Function]; len(model.Walls[fact.Pool].Values) == 0 && len(there.Values) > 0 {
		mean, _ = there.Mean()
		mean *= model.Speed().Slower(there.Reference(), cores)
	}
	if n == 0 || !(mean > 0) {
		return 1
	}
	return mean / (sum / float64(n))
}

// goesOn are the attempts of a stage that run, of r and of others: they have its slots.
func (d *decider) goesOn(w *work, r *memory.Run) (running []whatif.Running) {
	st := w.stage
	hour := d.slotPrice(w)
	for _, attempt := range d.attemptsOf(st.ID) {
		age := d.memory.Age(attempt, d.now)
		cores := d.memory.Grants[attempt.Key].CPU.Cores()
		if attempt.Venue == fact.Function {
			cores = size.ClassCores(st.Class)
		}
		times := st.Model.Times(attempt.Venue, cores)
		one := whatif.Running{
			Left:     d.memory.Goes(attempt, d.now, age, times, times.Residual(age, w.wall)),
			Function: attempt.Venue == fact.Function, Other: r == nil || attempt.Run != r.ID,
		}
		if one.Cost = hour.Times((age + one.Left) / 3600); one.Function {
			one.Cost = d.functions.Price(st.Class, spill.Span(age+one.Left))
		}
		running = append(running, one)
	}
	return running
}

// others is how many tasks of a stage wait or are to come that are not of r.
func (w *work) others(r *memory.Run) (tasks int) {
	for id, part := range w.stage.Shares {
		if id != r.ID {
			tasks += part.Queued[0] + part.Queued[1] + part.Further
		}
	}
	return tasks
}

// others are the stages at which r has no task any more, or none yet: what these have is not to be had.
func (d *decider) others(r *memory.Run) (others []*work) {
	if r == nil || r.ID == "" {
		return nil
	}
	for _, w := range d.works {
		if part := w.stage.Shares[r.ID]; part == nil || !part.Works() {
			others = append(others, w)
		}
	}
	return others
}

// shares are how many cores a slot of a stage may have: as many as it has, and others that its speed is known with.
func (d *decider) shares(w *work) []quantity.Milli {
	speed, most := w.stage.Model.Speed(), d.largestFor(w.size).CPU
	shares := []quantity.Milli{w.size.CPU}
	for cores := quantity.Core / 4; speed.Known() && cores <= most && cores.Cores() <= max(1, speed.Far); cores *= 2 {
		shares = append(shares, cores)
	}
	slices.Sort(shares)
	return slices.Compact(shares)
}

// rooms are what the pool has for a stage whose tasks take wall seconds with a slot as it is: slots with these shares
// of cores. Prices of a slot on several kinds of hosts are their mean, by slots.
func (d *decider) rooms(w *work, shares []quantity.Milli, wall float64, r *memory.Run) (rooms []whatif.Room) {
	speed := w.stage.Model.Speed()
	for _, share := range shares {
		slot := w.size
		slot.CPU = share
		room := d.roomWith(w, slot, wall*speed.Slower(w.size.CPU.Cores(), share.Cores()), r)
		if room.Slots > 0 {
			rooms = append(rooms, room)
		}
	}
	usual := slices.IndexFunc(rooms, func(room whatif.Room) bool { return room.Size == w.size })
	return slices.DeleteFunc(slices.Clone(rooms), func(room whatif.Room) bool {
		return usual >= 0 && room.Size != w.size && !room.Helps(rooms[usual])
	})
}

// roomWith is what the pool has of slots of a size, with which tasks take so many seconds.
func (d *decider) roomWith(w *work, slot quantity.Size, seconds float64, r *memory.Run) whatif.Room {
	room := whatif.Room{Size: slot, Seconds: max(seconds, 0.001)}
	if colds := w.stage.Model.Colds[fact.Pool]; len(colds.Values) > 0 {
		room.Start = colds.Quantile(0.5)
	}
	others := d.others(r)
	for i, host := range d.hosts {
		capacity := host.For(slot)
		for _, other := range others {
			if len(other.placed) > i {
				held, n := other.size, other.placed[i]
				capacity = capacity.Minus(quantity.Size{
					CPU: held.CPU * quantity.Milli(n), Memory: held.Memory * quantity.Bytes(n), GPU: held.GPU * quantity.Milli(n),
				})
			}
		}
		fit := min(max(0, roomOf(capacity, slot)), host.Has(slot), plan.MaxSlots)
		room.Hour = room.Hour.Plus(pricing.Host{PerHour: host.PricePerHour, Capacity: host.Capacity}.
			For(slot, time.Hour).Times(float64(fit)))
		room.Slots += fit
	}
	if room.Slots > 0 {
		room.Hour = room.Hour.Times(1 / float64(room.Slots))
	}
	return room
}

// deviceClass is which class of GPUs the slots of a stage are of, and which other classes hosts have of which a slot
// could be, sorted. It is empty where a slot has none, or is of whichever class is free; then others are all of them.
func (d *decider) deviceClass(w *work) (class string, others []string) {
	if w.size.WholeGPUs() == 0 {
		return w.size.DeviceClass, nil
	}
	for _, host := range d.hosts {
		for _, device := range host.Devices() {
			slot := w.size
			slot.DeviceClass = device.Class
			if device.Class != "" && host.Has(slot) > 0 {
				others = append(others, device.Class)
			}
		}
	}
	slices.Sort(others)
	others = slices.Compact(others)
	if class = w.size.DeviceClass; class == "" && len(others) == 1 {
		class = others[0]
	}
	return class, slices.DeleteFunc(others, func(other string) bool { return other == class })
}

// here is how many seconds a task takes on GPUs of the class that the stage has, where it takes wall seconds on those
// of the class device, or of all on which its latest attempts ran. These differ where it ran on several.
func (d *decider) here(w *work, wall float64, device string) float64 {
	model := w.stage.Model
	if len(model.Devices) < 2 {
		return wall
	}
	if class, _ := d.deviceClass(w); class != "" {
		if seconds, known := model.OnDevice(class, device, wall, w.size.CPU); known {
			return seconds
		}
	}
	return wall
}

// devices are what the pool has for a stage on GPUs of other classes than it has, whatever it asks for, and the classes
// of which nothing is known: its own, too, where it has only run on others. Wall and device are those of here.
func (d *decider) devices(
	w *work, wall float64, device string, r *memory.Run,
) (rooms []whatif.Room, untried []string) {
	model := w.stage.Model
	class, others := d.deviceClass(w)
	if class != "" && len(model.Devices) > 0 { // its times are those of others
		others = append(others, class)
	}
	for _, other := range others {
		if len(model.Devices[other].Values) == 0 {
			untried = append(untried, other)
			continue
		}
		if other == class {
			continue
		}
		slot := w.size
		slot.DeviceClass = other
		seconds, known := model.OnDevice(other, device, wall, slot.CPU)
		if room := d.roomWith(w, slot, seconds, r); known && room.Slots > 0 {
			room.Apart = w.size.DeviceClass != ""
			rooms = append(rooms, room)
		}
	}
	slices.Sort(untried)
	return rooms, untried
}

// left is how many function slots, and how many cores of a local venue, the stages leave r at which it has no task.
func (d *decider) left(r *memory.Run) (slots int, cores quantity.Milli) {
	slots, cores = d.functions.Concurrency, d.functions.Cores
	for _, other := range d.others(r) {
		slots -= other.functions
		cores -= busy(other.stage.Class) * quantity.Milli(other.functions)
	}
	return slots, cores
}

// classes are what functions have for a stage whose tasks take wall seconds with a slot of the pool, in all memory
// classes that can run it, or why none can.
func (d *decider) classes(w *work, wall float64, r *memory.Run) (classes []whatif.Class, refused string) {
	model := w.stage.Model
	slots, cores := d.left(r)
	demand := d.demandOf(w, wall)
	cold := d.functions.ColdStart.Seconds()
	if colds := model.Colds[fact.Function]; len(colds.Values) > 0 {
		cold, _ = colds.Mean()
	}
	for _, class := range d.functions.Classes {
		only := d.functions
		only.Classes = []quantity.Bytes{class}
		if _, why := demand.Class(only); why != "" {
			refused = string(why)
			continue
		}
		seconds := max(wall*demand.Slowdown(class)*cmp.Or(model.AtFunctions(), 1), 0.001)
		one := whatif.Class{
			Memory: class, Slots: min(d.limit(class, slots, cores), plan.MaxSlots), Seconds: seconds, Cold: cold,
			Task:  d.functions.Price(class, spill.Span(seconds)),
			Begin: d.functions.Price(class, spill.Span(cold)) - d.functions.PerRequest,
		}
		if one.Slots > 0 {
			classes = append(classes, one)
		}
	}
	if len(classes) > 0 {
		refused = ""
	}
	return classes, refused
}

// demandOf is what a task of a stage takes of a function, where one takes wall seconds with a slot of the pool.
func (d *decider) demandOf(w *work, wall float64) spill.Demand {
	atPool := w.stage.Model.Times(fact.Pool, w.size.CPU.Cores())
	return spill.Demand{
		Memory: d.functionMemory(w), Speed: w.stage.Model.Speed(), Cores: w.size.CPU.Cores(), Wall: wall,
		Longest: max(atPool.Quantile(0.99), wall), Device: w.size.GPU > 0 || w.size.DeviceClass != "",
	}
}

// foresee says what stages would get that have no task yet, as is decided when they are called: slots for all tasks, as
// far as the pool has them, and as many functions as the plan for the goal has, or as their backlog is worth then.
func (d *decider) foresee(job *whatif.Job, r *memory.Run) {
	if r.Division.Of(r.Goal) == 0 && !d.policy.Undivided && (r.Goal.Deadline > 0 || r.Goal.Budget > 0) {
		d.divideRun(r, max(1, d.memory.Clock)) // it has not begun
	}
	passed, spent := job.Elapsed, job.Spent
	for i := range job.Stages {
		s := &job.Stages[i]
		if s.Present == (whatif.Given{}) && s.Tasks > 0 {
			after := job.After
			for _, later := range job.Stages[i+1:] {
				after = max(after, later.End-s.End+job.After)
			}
			due := r.Goal.Deadline.Seconds() - passed
			waiting := spill.Waiting{
				Run: r.ID, Goal: r.Goal, Left: max(0, due-after), Limited: r.Goal.Deadline > 0, Due: due,
				After: []float64{after}, Part: 1, Budget: max(0, r.Goal.Budget-spent),
			}
			s.Present = d.wouldGet(d.workNamed(r.App, s.Name), *s, waiting)
			if part, divided := d.partOf(r, s.Name); divided {
				s.Present.Functions, s.Present.Class = part.Functions, part.Class
			}
		}
		if comes, possible := s.With(s.Present); possible {
			passed += comes.Seconds
			spent = spent.Plus(quantity.USD.Times(comes.Cost))
		}
	}
}

// wouldGet is what a stage gets all of whose tasks are those of one run.
func (d *decider) wouldGet(w *work, s whatif.Stage, run spill.Waiting) (g whatif.Given) {
	wall := w.wall
	for _, room := range s.Rooms {
		if room.Size == w.size {
			g.Slots, g.Size, wall = min(room.Slots, s.Tasks), room.Size, room.Seconds
		}
	}
	demand := d.demandOf(w, wall)
	chosen, refused := demand.Class(d.functions)
	i := slices.IndexFunc(s.Classes, func(c whatif.Class) bool { return c.Memory == chosen })
	if refused != "" || i < 0 {
		return g
	}
	class := s.Classes[i]
	o := spill.Offer{
		Tasks: float64(s.Tasks), Slots: g.Slots, Wall: wall, Class: chosen, Venue: d.functions, Function: class.Seconds,
		Highest: demand.Longest * demand.Slowdown(chosen), Cold: class.Cold,
	}
	b := spill.Backlog{
		Offer: o, Queued: s.Tasks, Limit: class.Slots, Free: g.Slots, ValueOfTime: d.policy.ValueOfTime,
		Runs: []spill.Waiting{run},
	}
	if run.Limited {
		b.Scatter = d.scatter(w, o)
	}
	if g.Functions = b.Choose().Slots; g.Functions > 0 {
		g.Class = chosen
	}
	return g
}
