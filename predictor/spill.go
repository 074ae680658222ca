package predictor

import (
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// offer is what functions would do for the backlog of one stage.
//
// With N tasks that wait or are known to come, P pool slots at w seconds a task, and n function slots at f seconds a
// task after a start of c seconds, both venues taking tasks from the same queue as they become free, the pool from W
// seconds on, when a host has room for one of them:
//
//	T(0) = W + N w/P
//	T(n) = max( min( (N + P W/w + n c/f) / (P/w + n/f),  c + N f/n ),  c + f )     seconds until the backlog is done
//	k(n) = min( n (T(n) - c) / f,  N )                                             tasks that functions take
//	M(n) = k(n) price(class, f) + n price(class, c)              their marginal price: initialisation is billed, too
//
// The second term of the minimum is that functions are done before the pool has room, that of the maximum the
// straggler: a function that takes a task of the last moment ends c + f later.
// The marginal price of the pool is 0 while its hosts are held anyway, so nothing is subtracted from M.
//
// Without a goal the best n is the one that maximises (T(0) - T(n)) v/3600 - M(n) for v, the value of an hour. It needs
// no search for a stopping point: all n up to the limit are tried, at most a thousand.
//
// Worked: N = 240, P = 1, w = f = 0.1 s, c = 0, class 1 GiB at $0.0000166667 per GiB-second and $0.0000002 per request.
// T(0) = 24 s, T(1) = 240 / (10 + 10) = 12 s, k(1) = 120, M(1) = 120 x $0.00000187 = $0.000224. Twelve seconds at $1 an
// hour are worth $0.0033, so one slot pays; at a price a thousand times as high, M(1) = $0.224, and none does.
// TestSpillChoice holds the choice against brute force.
type offer struct {
	tasks          float64 // N
	slots          int     // P
	wall           float64 // w
	wait           float64 // W
	function, cold float64 // f, c
	highest        float64 // seconds that a task at functions took or may take at most
	class          quantity.Bytes
	venue          FunctionVenue
	most           int // the largest n that limits allow
}

// noPool stands for the time that no pool slot needs for anything: long enough to be avoided, short enough to be
// compared.
const noPool = 24 * 3600.0

// duration is T(n).
func (o offer) duration(n int) float64 {
	rate := float64(o.slots)/o.wall + float64(n)/o.function
	if rate == 0 {
		return noPool
	}
	together := (o.tasks + float64(o.slots)*o.wait/o.wall + float64(n)*o.cold/o.function) / rate
	if n > 0 {
		alone := o.cold + o.tasks*o.function/float64(n) // before the pool has room
		together = max(min(together, alone), o.cold+o.function)
	}
	return together
}

// spilled is k(n).
func (o offer) spilled(n int) float64 {
	return max(0, min(float64(n)*(o.duration(n)-o.cold)/o.function, o.tasks))
}

// price is M(n).
func (o offer) price(n int) quantity.Money {
	return o.priceAt(n, o.function)
}

// upperPrice is M(n) if every task at functions took as long as the longest may.
func (o offer) upperPrice(n int) quantity.Money {
	return o.priceAt(n, o.highest)
}

func (o offer) priceAt(n int, wall float64) quantity.Money {
	if n <= 0 {
		return 0
	}
	return o.bill(o.spilled(n), n, wall)
}

// bill is the price of so many tasks of wall seconds each at functions, and of starting so many environments.
func (o offer) bill(tasks float64, starts int, wall float64) quantity.Money {
	task := o.venue.Price(o.class, span(wall))
	start := o.venue.Price(o.class, span(o.cold)) - o.venue.PerRequest
	return min(task.Times(math.Ceil(tasks-1e-9)), maxCost) + min(start.Times(float64(starts)), maxCost)
}

// worth is what finishing in T(n) instead of T(0) is worth, less its price.
func (o offer) worth(n int, perHour quantity.Money) float64 {
	return o.value(n, perHour) - float64(o.price(n))
}

// value is what finishing in T(n) instead of T(0) is worth.
func (o offer) value(n int, perHour quantity.Money) float64 {
	return (o.duration(0) - o.duration(n)) / 3600 * float64(perHour)
}

// best returns the smallest n among those of the greatest worth; 0 when none is worth its price.
func (o offer) best(perHour quantity.Money) int {
	best, greatest := 0, 0.0
	for n := 1; n <= o.most; n++ {
		if worth := o.worth(n, perHour); worth > greatest {
			best, greatest = n, worth
		}
	}
	return best
}

// fastest returns the smallest n that finishes first.
func (o offer) fastest() int {
	best := 0
	for n := 1; n <= o.most; n++ {
		if o.duration(n) < o.duration(best)*(1-1e-9) {
			best = n
		}
	}
	return best
}

// within returns the least n that finishes within limit seconds, or the fastest when none does.
func (o offer) within(limit float64) int {
	for n := range o.most + 1 {
		if o.duration(n) <= limit {
			return n
		}
	}
	return o.fastest()
}

// affordable returns the largest m up to n whose upper price is within money; the tasks that a share of the stage's
// runs holds cost that share of it.
func (o offer) affordable(n int, money quantity.Money, part float64) int {
	for ; n > 0; n-- {
		if float64(o.upperPrice(n))*part <= float64(money) {
			return n
		}
	}
	return 0
}

func span(seconds float64) time.Duration {
	return time.Duration(min(max(seconds, 0), maxWall.Seconds()) * float64(time.Second))
}

// coreMemory is the configured memory that comes with one core
// (https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html).
const coreMemory = 1769 * quantity.MiB

// classCores is how many cores a memory class comes with.
func classCores(class quantity.Bytes) float64 { return float64(class) / float64(coreMemory) }

// slowdown is by how much longer a task takes with a class than at the pool: as many times as it lacks cores. A stage
// that nobody measured is taken to use one.
func slowdown(class quantity.Bytes, rate quantity.Milli) float64 {
	if rate <= 0 {
		rate = quantity.Core
	}
	return max(1, rate.Cores()/classCores(class))
}

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
	known := w.stage.model
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
	rate := quantity.Milli(w.stage.model.Rates.quantile(0.9))
	memory := d.functionMemory(w)
	var fits []quantity.Bytes
	tooLong := false
	for _, class := range d.functions.Classes {
		if class < memory || w.size.GPU > 0 || w.size.DeviceClass != "" {
			continue
		}
		if limit := d.functions.MaxDuration; limit > 0 && longest*slowdown(class, rate) >= durationShare*limit.Seconds() {
			tooLong = true
			continue
		}
		fits = append(fits, class)
	}
	switch {
	case w.size.GPU > 0 || w.size.DeviceClass != "":
		return 0, "it needs a GPU, which functions do not have"
	case len(fits) == 0 && tooLong:
		return 0, refusal("a task may take " + seconds(longest) + ", too close to the limit of " +
			seconds(d.functions.MaxDuration.Seconds()))
	case len(fits) == 0:
		return 0, refusal("it needs " + memory.String() + ", more than the largest function has")
	case slices.Contains(fits, w.stage.Class):
		return w.stage.Class, ""
	}
	price := func(class quantity.Bytes) quantity.Money {
		return d.functions.Price(class, span(wall*slowdown(class, rate)))
	}
	cheapest := price(slices.MinFunc(fits, func(a, b quantity.Bytes) int {
		return int(min(1, max(-1, price(a)-price(b))))
	}))
	chosen := quantity.Bytes(0)
	for _, class := range fits {
		if float64(price(class)) <= sameprice*float64(cheapest) &&
			(chosen == 0 || slowdown(class, rate) < slowdown(chosen, rate)) {
			chosen = class
		}
	}
	return chosen, ""
}

// durationShare is the part of the function's limit that the longest task may take: an invoke that runs into the limit
// is billed in full and done again at the pool.
const durationShare = 0.8

// offer prices functions for the stage. known is false while nothing is known about how long a task takes.
func (d *decider) offer(w *work) (o offer, why refusal, known bool) {
	mean, _, known := w.stage.model.pool()
	if !known {
		return offer{}, "", false
	}
	longest := max(w.stage.model.Walls[Pool].quantile(0.99), mean)
	class, why := d.class(w, mean, longest)
	if why != "" {
		return offer{}, why, true
	}
	rate := quantity.Milli(w.stage.model.Rates.quantile(0.9))
	factor := slowdown(class, rate)
	o = offer{
		tasks: float64(w.queued[0]), slots: w.serving(), wall: w.wall, wait: w.wait, class: class, venue: d.functions,
		function: max(w.wall*factor, 0.001), highest: longest * factor, cold: d.functions.ColdStart.Seconds(),
	}
	if walls := w.stage.model.Walls[Function]; len(walls.Values) > 0 && (w.stage.Class == 0 || w.stage.Class == class) {
		measured, _ := walls.mean()
		o.function, o.highest = max(measured, 0.001), max(walls.largest(), measured)
	}
	if colds := w.stage.model.Colds[Function]; len(colds.Values) > 0 {
		o.cold, _ = colds.mean()
	}
	for _, part := range w.stage.Shares {
		o.tasks += float64(part.Further)
	}
	return o, "", true
}
