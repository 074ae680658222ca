package size

import (
	"cmp"
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

const (
	cpuStep quantity.Milli = 50
	// coreStep is the step above one core.
	coreStep = quantity.Core / 2
	// Between this and one core nothing is worth a share of its own: four slots fit where five would, for as much less of
	// what each could do at once.
	nearlyCore = quantity.Core * 4 / 5
	// LeastCPU is the least share of a core that an attempt is given.
	LeastCPU quantity.Milli = 100
)

// EnoughRates is how many rates a share that is lower than what the stage has rests on.
const EnoughRates = 5

// turnaround is how long a slot is without work between two tasks, in seconds: the answer to Temporal, the poll and the
// reading of the next task. Counted as busy, it would leave a core idle for most of the time that tasks of a
// millisecond wait: at 1 ms each, one slot does 90 a second and eleven do a thousand.
const turnaround = 0.010

// period is for how many seconds a limit of CPU holds before it is made up anew.
const period = 0.100

// What a second of an attempt is worth to those who wait for it, in seconds of a core: usually as much as the core that
// computes for them, so that an attempt that is alone gets two cores where it is 1.5 times as fast on them.
const (
	usualWorth = 1.0
	// MostWorth is that of those who are in a hurry: a hundredth of a second more is worth one of a core.
	MostWorth = 100.0
)

// usualCore is what a core costs for an hour on a usual host (c7i.large in prices.csv), usualHour what an hour is worth
// to a run whose goal does not say: with both, usualWorth holds. How much of that hour a second of one attempt is worth
// is not known, so that the two are only compared with what is usual.
const usualCore, usualHour = quantity.USD * 44625 / 1_000_000, quantity.USD

// Worth is what a second of an attempt is worth in seconds of a core, where an hour is worth this much to its run and
// a core costs so much for an hour; the usual price where that is 0. A run that minimises cost pays for no more cores
// than an attempt needs, one that minimises latency for all that make it faster.
func Worth(hour, core quantity.Money, minimise fact.Objective) float64 {
	switch minimise {
	case fact.Cost:
		return 0
	case fact.Latency:
		return MostWorth
	}
	if core <= 0 {
		core = usualCore
	}
	return min(MostWorth, usualWorth*max(0, float64(hour)/float64(usualHour))*float64(usualCore)/float64(core))
}

// CPU is what the share of cores of a stage is chosen by.
type CPU struct {
	// Speed is how fast an attempt is with each share.
	Speed usage.Speed
	// Rate is how much of a core attempts use, by the 90th percentile of their means; 0 while too few are known. A share
	// below it holds some of them back all the time.
	Rate quantity.Milli
	// Wall is how long an attempt takes with the share At, in seconds; 0 where that is not known. At is 0 for one core.
	Wall float64
	At   quantity.Milli
	// Held is the share that attempts have now, HeldBack the largest that holds them back; 0 for none.
	Held, HeldBack quantity.Milli
	// Most is what the largest host has.
	Most quantity.Milli
	// Tasks is how many wait or run. Room is how many cores there are for them.
	Tasks float64
	Room  quantity.Milli
	// Slots is how many of them the memory and the GPUs have room for; 0 for no bound.
	Slots float64
	// Bundled is the part of a host's cores that goes with the GPUs of an attempt: whoever holds those pays for as much of
	// the host, with fewer cores too.
	Bundled quantity.Milli
	// Worth is what a second of an attempt is worth to those who wait for it: see [Worth].
	Worth float64
	// Threaded says that attempts are started with as many threads as their share has whole cores, at least one: so one of
	// one core never shows that it could use a second.
	Threaded bool
	// Left is how many seconds those who wait have for all of them, where one has a deadline that can be met; 0 where none
	// has a deadline, and below 0 where none that they have can be met, see [CPU.Late]. Where they take longer at the
	// share that Worth says, it is that of [MostWorth].
	Left float64
}

// Share is the share of cores with the least cost of an attempt: what it holds for as long as it runs, and what those
// who wait for it lose,
//
//	t(c) (c + v max(1, tasks / slots))
//
// with t(c) how long it takes with c cores relative to one, and slots how many fit, room / c, whole ones. Where there
// is room for all tasks, that is (c + v) t(c), and more cores are worth it while they make it fast enough; where many
// wait, it is proportional to c t(c), and the share is the one that gets most out of each core. A share that gives no
// further slot is only smaller where less is used. Where memory is what is short, fewer fit than cores say. Cores that
// are bundled with GPUs cost what these do, used or not: the larger of c and those counts.
//
// What is held is kept while nothing is cheaper by [Step]. A size beyond those that were seen is tried where attempts
// are held back and it may be cheaper; that tells how fast they are there.
func (c CPU) Share(otherwise quantity.Milli) quantity.Milli {
	if !c.Speed.Known() || c.Rate == 0 && c.HeldBack == 0 {
		return otherwise
	}
	floor, ceiling := c.bounds(otherwise)
	best, least := c.cheapest(floor, ceiling)
	switch { // whether it is too late is asked of what is chosen without a deadline
	case c.Left < 0:
		c.Worth = max(c.Worth, usualWorth)
		best, least = c.cheapest(floor, ceiling)
	case c.Left > 0 && c.ends(best) > c.Left:
		c.Worth = MostWorth
		best, least = c.cheapest(floor, ceiling)
	}
	if c.Held >= floor && c.Held <= ceiling && c.cost(c.Held) <= least*(1+Step) {
		best = c.Held
	}
	if next := c.tries(best); next > 0 {
		return next
	}
	return best
}

// bounds are the least share that is looked at and the most.
func (c CPU) bounds(otherwise quantity.Milli) (floor, ceiling quantity.Milli) {
	ceiling = max(c.Most, LeastCPU)
	floor = max(quantity.Milli(math.Ceil(float64(min(c.Rate, quantity.Core))*c.busy())), LeastCPU)
	if c.Rate == 0 {
		floor = max(floor, otherwise) // too few are known to give less
	}
	if floor = RoundUp(floor, cpuStep); floor > nearlyCore {
		floor = max(floor, quantity.Core)
	}
	return min(floor, ceiling), ceiling
}

// Ahead is the work that is left at a stage, in tasks at its share: an attempt that runs counts for the part of its
// time that it has left. Longest is the largest part of one, 1 where some have not begun.
type Ahead struct{ Tasks, Longest float64 }

// forbearance is by which part of the time that is left those who hurry may be late before they are given up: by about
// as much run times are off, and a share that is taken back from an attempt that would have been in time is worse than
// one that was given for nothing.
const forbearance = 0.25

// Late reports whether a deadline in so many seconds is missed with the share of those who are in a hurry, too. What is
// late anyhow is worth what others are: all cores for the rest of a run that misses its deadline by an hour would make
// everybody wait, and it no less late than a share that pays by its speed, but for little.
func (c CPU) Late(left float64, ahead Ahead) bool {
	if left <= 0 || !c.Speed.Known() {
		return left <= 0
	}
	c.Worth = MostWorth
	floor, ceiling := c.bounds(0)
	share, _ := c.cheapest(floor, ceiling)
	if c.Held >= share {
		left *= 1 + forbearance
	}
	return c.alone(share)*max(ahead.Longest, ahead.Tasks/c.slots(share)) > left
}

// longEnough is how long attempts take at least, in seconds, that are tried with more cores: what shorter ones would
// gain is lost in their start.
const longEnough = 1.0

// tries is the share that an attempt is tried with because nothing tells how fast it is there; 0 for none. It is twice
// the largest that was seen, where that is what attempts have and they use most of it: with as many threads as they
// have cores nothing holds them back, and the curve ends there. It is tried where that many are idle, for all tasks,
// and where an attempt that were as much faster as it can be at most would be cheaper by [Step]. Once one has ended at
// that share, it is seen, and the curve decides; it is tried again when that is forgotten, after some hundred attempts.
func (c CPU) tries(now quantity.Milli) quantity.Milli {
	next := 2 * max(now, quantity.Core)
	seen := quantity.Milli(math.Round(max(c.Speed.Most, 1) * float64(quantity.Core)))
	switch {
	case !c.Threaded, c.HeldBack > 0, c.Rate == 0, c.Wall < longEnough:
		return 0 // what is held back is given more by the curve
	case c.Held > seen && c.Held == 2*max(seen, quantity.Core): // it is being tried
		now, next = seen, c.Held
	case now != seen:
		return 0
	}
	if next > c.Most || c.Tasks*next.Cores() > c.Room.Cores() || c.Slots > 0 && c.Tasks > c.Slots {
		return 0
	}
	faster := float64(next) / float64(now) * min(1, c.Rate.Cores()/now.Cores())
	hoped := c.time(now.Cores()) / faster * (max(next.Cores(), c.Bundled.Cores()) + c.Worth)
	if hoped > c.cost(now)*(1-Step) {
		return 0
	}
	return next
}

// cheapest is the share with the least cost, and that cost. Of two that cost the same it is the larger up to one core.
func (c CPU) cheapest(floor, ceiling quantity.Milli) (best quantity.Milli, least float64) {
	best, least = floor, c.cost(floor)
	for _, share := range c.shares(floor, ceiling) {
		if cost := c.cost(share); cost < least*(1-1e-9) || cost <= least*(1+1e-9) && share <= quantity.Core {
			best, least = share, min(least, cost)
		}
	}
	return best, least
}

// ends is after how many seconds all tasks are done with this share.
func (c CPU) ends(share quantity.Milli) float64 { return c.alone(share) * c.waves(share) }

// alone is how many seconds an attempt takes with this share.
func (c CPU) alone(share quantity.Milli) float64 {
	at := cmp.Or(max(c.At, 0), quantity.Core)
	return c.Wall * c.time(share.Cores()) / c.time(at.Cores())
}

// waves is how many tasks each slot takes after one another with this share.
func (c CPU) waves(share quantity.Milli) float64 { return max(1, c.Tasks/c.slots(share)) }

// slots is how many attempts have room with this share, at least one.
func (c CPU) slots(share quantity.Milli) float64 {
	slots := math.Floor(float64(c.Room)/float64(max(share, 1)) + 1e-9)
	if c.Slots > 0 {
		slots = min(slots, c.Slots)
	}
	return max(1, slots)
}

// shares are those that are looked at above the least: up to one core in steps of a quarter of it, then
// in steps of half a core or an eighth, as far as the curve is known.
func (c CPU) shares(least, most quantity.Milli) []quantity.Milli {
	var shares []quantity.Milli
	share := least
	for share < quantity.Core {
		if share = max(share+cpuStep, RoundUp(share*5/4, cpuStep)); share > nearlyCore {
			share = quantity.Core
		}
		if share > most {
			return shares
		}
		shares = append(shares, share)
	}
	far := quantity.Milli(min(c.Speed.Far*float64(quantity.Core), float64(most)))
	for share = share / coreStep * coreStep; ; {
		if share += RoundUp(max(coreStep, share/8), coreStep); share > far {
			return shares
		}
		shares = append(shares, share)
	}
}

// busy is the part of a slot's time in which it runs user code.
func (c CPU) busy() float64 {
	if !(c.Wall > 0) {
		return 1
	}
	return c.Wall / (c.Wall + turnaround)
}

// cost is that of an attempt with this share, in seconds of a core for each second that it takes with one.
func (c CPU) cost(share quantity.Milli) float64 {
	cores := share.Cores()
	return c.time(cores) * (max(cores, c.Bundled.Cores()) + c.Worth*c.waves(share))
}

// time is how long a slot takes for an attempt with so many cores, relative to one. Of short attempts a slot runs
// several while one limit holds: what holds them back is what they take together.
func (c CPU) time(cores float64) float64 {
	alone := c.Speed.Slower(1, cores)
	if most := c.Speed.Most; cores > max(most, 1) && c.HeldBack > 0 {
		alone = 1 / c.Speed.Between(1, cores).High // not known: it may be that fast
	}
	busy := c.busy()
	long := 1.0
	if c.Wall > 0 {
		long = min(1, c.Wall/period)
	}
	together := max(1, c.Rate.Cores()*busy/cores)
	if cores > 1 {
		together = alone
	}
	return (1-long)*together + long*((1-busy)+busy*alone)
}

// Why says in words what the share is chosen by, for decisions.
func (c CPU) Why(share quantity.Milli) string {
	if c.Left < 0 && c.Speed.Known() {
		return c.compared(share) + "; the deadline cannot be met with more cores either, so they are those that pay"
	}
	return c.compared(share)
}

// compared is how fast the share is beside another.
func (c CPU) compared(share quantity.Milli) string {
	if !c.Speed.Known() {
		return "nothing known of how fast they are on more or less"
	}
	if most := max(c.Speed.Most, 1); share.Cores() > most && c.HeldBack == 0 {
		seen := quantity.Milli(math.Round(most * float64(quantity.Core)))
		return fmt.Sprintf("an exploration: on %s they have no more threads than that and use %s, and whether more make "+
			"them faster is seen at no smaller size; so many cores are idle", cores(seen), c.Rate)
	}
	other, held := quantity.Core, ""
	switch {
	case c.HeldBack > 0 && share > c.HeldBack:
		other, held = c.HeldBack, "held back by "+cores(c.HeldBack)+", "
	case c.Held > 0 && share != c.Held:
		other = c.Held
	case share != quantity.Core:
	case c.Speed.Most >= 2 && c.Most >= 2*quantity.Core:
		other = 2 * quantity.Core
	case c.Rate < nearlyCore:
		other = quantity.Core / 2
	default:
		return "one core is what they use"
	}
	if busy := c.busy(); share < other && busy < 0.9 {
		return fmt.Sprintf("%.0f percent of a slot's time has work", 100*busy)
	}
	by := "as"
	if faster := c.Speed.Between(other.Cores(), share.Cores()).Mid; math.Abs(faster-1) > 0.01 {
		by = fmt.Sprintf("%.2g times as", faster)
	}
	text := held + fmt.Sprintf("%s fast on %s as on %s", by, cores(share), cores(other))
	if c.Tasks > 1 && c.Tasks*share.Cores() > c.Room.Cores() {
		text += fmt.Sprintf(", and %.0f tasks for %s", c.Tasks, cores(c.Room))
	}
	return text
}

// cores writes "2 cores", "1 core".
func cores(cpu quantity.Milli) string {
	if cpu == quantity.Core {
		return "1 core"
	}
	return cpu.String() + " cores"
}

// CPUOf is the share for a rate that samples of running attempts tell: a rate close to one core is one that waits now
// and then, and that a lower limit would slow by what it is short.
func CPUOf(rate quantity.Milli) quantity.Milli {
	share := max(RoundUp(rate, cpuStep), LeastCPU)
	if share > nearlyCore && share <= quantity.Core {
		return quantity.Core
	}
	return share
}
