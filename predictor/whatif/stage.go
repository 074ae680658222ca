package whatif

import (
	"cmp"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/makespan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Stage is what is left of one stage of a run, and what its tasks can be given. Times are in seconds.
type Stage struct {
	Name string
	// Tasks is how many do not run yet, and Running are the attempts that go on, of any run: they stay where they are.
	Tasks   int
	Running []Running
	// Others is how many tasks of other runs wait in the same queue. They are served between those of this run: it is done
	// with the whole queue, and pays its part of that.
	Others int
	// Spread is the standard deviation of the logarithm of what one task takes, and Doubt that of what all of them take
	// together, which is as uncertain as their number and their mean.
	Spread, Doubt float64
	// Start and End are when the stage is called and done in the run that says what follows what: stages that overlap go
	// on beside each other, and what lies between two is time in which neither does.
	Start, End float64
	// Rooms are what the pool has for it, Classes what functions have; Refused is why there is none of these.
	Rooms   []Room
	Classes []Class
	Refused string
	// Devices are what the pool has for it on GPUs of other classes than it has now, one for each class of which it is
	// known how long its tasks take there, sorted by class; Untried are the classes of which that is not known.
	Devices []Room
	Untried []string
	// Present is what it gets, or would get, as things are decided now.
	Present Given

	settled bool // it gets that, whatever else
	single  int  // tasks that are scheduled one by one; 0 is mostScheduled
	spills  bool // it has all that the pool has for it, and what is asked is how many functions
}

// Running is an attempt that goes on.
type Running struct {
	// Left is in how many seconds it ends, Cost what it costs from its start: nothing is paid before.
	Left     float64
	Cost     quantity.Money
	Function bool
	// Other says that it is of another run: it has a slot of the stage, and that is all.
	Other bool
}

// Room is what the pool has of slots of one size. A slot is paid while it starts or works, as the ledger counts it.
type Room struct {
	// Size is that of a slot; its device class says of which devices.
	Size quantity.Size
	// Slots is how many there is room for.
	Slots int
	// Seconds is what a task takes in the mean, Start how long a slot takes to start.
	Seconds, Start float64
	// Hour is the price of a slot.
	Hour quantity.Money
	// Apart says that no attempt that runs has one of these slots, since it asks for another class of device.
	Apart bool
}

// Helps reports whether a task is faster with a slot of r than with one of usual, or cheaper, by more than what the
// model leaves out.
func (r Room) Helps(usual Room) bool {
	const less = 1 - leastGain
	return r.Seconds <= less*usual.Seconds || float64(r.Hour)*r.Seconds <= less*float64(usual.Hour)*usual.Seconds
}

// Class is what functions have of one memory class.
type Class struct {
	Memory quantity.Bytes
	// Slots is how many there may be at a time.
	Slots int
	// Seconds is what a task takes in the mean, Cold how long an environment takes to start.
	Seconds, Cold float64
	// Task is the price of a task, Begin that of starting an environment.
	Task, Begin quantity.Money
}

// Given is what a stage gets, and what that comes to. The zero value of Slots or Functions is none.
type Given struct {
	Stage string `json:"stage"`
	Tasks int    `json:"tasks"`
	// Slots is how many slots it has at the pool, of Size; Functions how many environments of the memory class.
	Slots     int            `json:"pool_slots,omitempty"`
	Size      quantity.Size  `json:"slot_size,omitzero"`
	Functions int            `json:"functions,omitempty"`
	Class     quantity.Bytes `json:"class_bytes,omitempty"`
	// Seconds is how long the stage goes on with it, the middle of what may come, and Cost what it costs, in US dollars.
	Seconds float64 `json:"seconds"`
	Cost    float64 `json:"cost_usd"`

	spread float64
	price  quantity.Money
	pool   quantity.Money // of that, what is not of functions
}

// The kinds of slots in a schedule.
const (
	atPool = iota
	atFunctions
)

// mostScheduled is how many tasks are scheduled one by one where there are fewer slots than tasks: what comes before
// them is divided evenly.
const mostScheduled = 256

// lengths are how long tasks take, of those that take 1 in the mean: that with rank i of n is at the median of where a
// log-normal distribution has it (Benard & Bos-Levenbach, 1953: quantile (i - 0.3) / (n + 0.4)), and they come in an
// order that is drawn. One task takes the median.
func (s Stage) lengths(n int) []float64 {
	lengths := make([]float64, n)
	for i := range lengths {
		p := (float64(i) + 0.7) / (float64(n) + 0.4)
		lengths[i] = math.Exp(s.Spread*math.Sqrt2*math.Erfinv(2*p-1) - s.Spread*s.Spread/2)
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(s.Name)) // never fails
	random := rand.New(rand.NewPCG(hash.Sum64(), uint64(n)))
	random.Shuffle(n, func(a, b int) { lengths[a], lengths[b] = lengths[b], lengths[a] })
	return lengths
}

// try is what the stage comes to with slots of a room and environments of a class, as many as g says; what runs keeps
// its slot. Not possible where nobody would take the tasks.
//
// The tasks are scheduled as their queue serves them: whoever is free first takes the next. How far the time may lie
// from that is what all tasks together are doubtful by, and chance: of w tasks that each slot does in turn, the sum
// varies by Spread/sqrt(w), and the latest of k such sums by about pi/sqrt(12 ln k) of that, the standard deviation of
// the limit of the largest of k normal variables (Gumbel, Statistics of Extremes, 1958).
func (s Stage) try(g Given, room Room, class Class) (Given, bool) {
	g.Stage, g.Tasks = s.Name, s.Tasks
	ends, price := 0.0, quantity.Money(0)
	var pool, functions []float64
	var own [2]int
	for _, one := range s.Running {
		kind := atPool
		if one.Function {
			kind = atFunctions
			functions = append(functions, one.Left)
		} else {
			pool = append(pool, one.Left)
		}
		if one.Other {
			continue
		}
		own[kind]++
		g.Tasks++
		ends, price = max(ends, one.Left), price.Plus(one.Cost)
		if !one.Function {
			g.pool = g.pool.Plus(one.Cost)
		}
	}
	if s.Tasks == 0 {
		g.Slots, g.Functions = own[atPool], own[atFunctions]
		if g.Slots > 0 {
			g.Size = s.Present.Size
		}
		g.Seconds, g.Cost, g.price, g.spread = ends, price.USD(), price, math.Hypot(s.Spread, s.Doubt)
		return g, true
	}
	if g.Slots+g.Functions == 0 {
		return g, false
	}
	var queue makespan.Slots
	slices.Sort(pool)
	slices.Sort(functions)
	started := max(0, g.Slots-len(pool))
	if room.Apart {
		started, pool = g.Slots, nil
	}
	for _, left := range pool[:min(len(pool), g.Slots)] {
		queue.Add(1, makespan.Slot{Free: left, Takes: room.Seconds, Kind: atPool})
	}
	queue.Add(started, makespan.Slot{Free: room.Start, Takes: room.Seconds, Kind: atPool})
	cold := max(0, g.Functions-len(functions))
	for _, left := range functions[:min(len(functions), g.Functions)] {
		queue.Add(1, makespan.Slot{Free: left, Takes: class.Seconds, Kind: atFunctions})
	}
	queue.Add(cold, makespan.Slot{Free: class.Cold, Takes: class.Seconds, Kind: atFunctions})
	before := [2]float64{queue.Sum(atPool), queue.Sum(atFunctions)}
	waiting := s.waiting()
	single := min(waiting, max(cmp.Or(s.single, mostScheduled), queue.Len()))
	queue.Fill(float64(waiting - single))
	for _, length := range s.lengths(single) {
		ends = max(ends, queue.Take(length))
	}
	part := float64(s.Tasks) / float64(waiting)
	if g.Slots > 0 {
		busy := queue.Sum(atPool) - before[atPool] + float64(started)*room.Start
		took := room.Hour.Times(part * busy / 3600)
		price, g.pool = price.Plus(took), g.pool.Plus(took)
	}
	if g.Functions > 0 {
		done := (queue.Sum(atFunctions) - before[atFunctions]) / class.Seconds
		price = price.Plus(class.Task.Times(part * done)).Plus(class.Begin.Times(part * float64(cold)))
	}
	g.Seconds, g.Cost, g.price = ends, price.USD(), price
	g.spread = math.Hypot(s.Doubt, s.Spread*latest(float64(waiting), float64(queue.Len())))
	return g, true
}

// waiting is how many tasks its queue has, of all runs.
func (s Stage) waiting() int { return s.Tasks + s.Others }

// latest is by which part of what one task varies by, the end of so many tasks on so many slots does.
func latest(tasks, slots float64) float64 {
	slots = min(slots, tasks)
	part := 1 / math.Sqrt(max(1, tasks/slots))
	if slots > 1 {
		part *= min(1, math.Pi/math.Sqrt(12*math.Log(slots)))
	}
	return part
}

// counts are numbers up to most, of many those that differ by about a half.
func counts(most int) (all []int) {
	for n, step := 1, 1; n < most; n += step {
		all = append(all, n)
		if n >= 4*step {
			step *= 2
		}
	}
	if most > 0 {
		all = append(all, most)
	}
	return all
}

// options are the ways to run the stage that no other is both faster and cheaper than: by the pool alone, by functions
// alone, and by both at once, which take from one queue.
func (s Stage) options() (ways []Given) {
	add := func(g Given, room Room, class Class) {
		if way, possible := s.try(g, room, class); possible {
			ways = append(ways, way)
		}
	}
	if s.Tasks == 0 {
		add(Given{}, Room{}, Class{})
		return ways
	}
	if present, possible := s.With(s.Present); s.settled && possible {
		return []Given{present}
	}
	for _, class := range s.Classes {
		if s.spills && len(s.Rooms) > 0 {
			break
		}
		for _, n := range counts(min(class.Slots, s.waiting())) {
			add(Given{Functions: n, Class: class.Memory}, Room{}, class)
		}
	}
	for _, room := range s.Rooms {
		slots, most := s.slots(room)
		for _, k := range slots {
			add(Given{Slots: k, Size: room.Size}, room, Class{})
		}
		if most == 0 {
			continue
		}
		for _, class := range s.Classes {
			for _, n := range counts(min(class.Slots, s.waiting())) {
				add(Given{Slots: most, Size: room.Size, Functions: n, Class: class.Memory}, room, class)
			}
		}
	}
	for _, room := range s.otherDevices() {
		slots, _ := s.slots(room)
		for _, k := range slots {
			add(Given{Slots: k, Size: room.Size}, room, Class{})
		}
	}
	return unbeaten(ways)
}

// otherDevices are those on which a task is faster or cheaper than with the slots that it has now.
func (s Stage) otherDevices() []Room {
	if len(s.Rooms) == 0 {
		return s.Devices
	}
	usual, _ := s.find(s.Present)
	return slices.DeleteFunc(slices.Clone(s.Devices), func(room Room) bool { return !room.Helps(usual) })
}

// slots are how many slots of a room the stage may have, and how many at most. What runs has its slots.
func (s Stage) slots(room Room) (numbers []int, most int) {
	held := 0
	for _, one := range s.Running {
		if !one.Function && !room.Apart {
			held++
		}
	}
	most = min(room.Slots, s.waiting()+held)
	return slices.DeleteFunc(counts(most), func(k int) bool { return k < most && (k < held || s.spills) }), most
}

// unbeaten leaves those out that another is as fast and as cheap as, and sorts by time.
func unbeaten(ways []Given) (kept []Given) {
	slices.SortStableFunc(ways, func(a, b Given) int {
		switch {
		case a.Seconds < b.Seconds, a.Seconds == b.Seconds && a.price < b.price:
			return -1
		case a.Seconds == b.Seconds && a.price == b.price:
			return (a.Slots + a.Functions) - (b.Slots + b.Functions)
		}
		return 1
	})
	for _, way := range ways {
		if len(kept) == 0 || way.price < kept[len(kept)-1].price {
			kept = append(kept, way)
		}
	}
	return kept
}

// With is what the stage comes to with what g says; not possible where nobody would take its tasks. Where the pool has
// no slots of the size, or functions none of the class, the nearest stand for them.
func (s Stage) With(g Given) (comes Given, possible bool) {
	room, class := s.find(g)
	if len(s.Rooms)+len(s.Devices) == 0 {
		g.Slots = 0
	}
	if len(s.Classes) == 0 {
		g.Functions = 0
	}
	return s.try(g, room, class)
}

// find is the room and the class that a plan names; the nearest in cores where the pool has none of the size.
func (s Stage) find(g Given) (room Room, class Class) {
	for i, one := range slices.Concat(s.Rooms, s.Devices) {
		if i == 0 || apart(one.Size, g.Size) < apart(room.Size, g.Size) {
			room = one
		}
	}
	for i, one := range s.Classes {
		if i == 0 || one.Memory == g.Class {
			class = one
		}
	}
	return room, class
}

func apart(a, b quantity.Size) float64 {
	distance := math.Abs(float64(a.CPU - b.CPU))
	if a.DeviceClass != b.DeviceClass {
		distance += 1e12
	}
	return distance
}

// option is a way as the frontier has it.
func (g Given) option() frontier.Option {
	return frontier.Option{Seconds: g.Seconds, Cost: g.price, Spread: min(g.spread, mostSpread)}
}

// mostSpread is how far times may lie apart at most, as a standard deviation of their logarithm: by a factor of twenty
// thousand. What is wider tells nothing more, and the variances of sums of prices would overflow from 18 on.
const mostSpread = 10
