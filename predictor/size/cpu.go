package size

import (
	"fmt"
	"math"

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
// millisecond wait: at 1 ms each, one slot does 90 a second and eleven do a thousand (TestShortTasksShareACore).
const turnaround = 0.010

// period is for how many seconds a limit of CPU holds before it is made up anew.
const period = 0.100

// worthOfTime is what a second of an attempt is worth to those who wait for it, in seconds of a core: as much as the
// core that computes for them. So an attempt that is alone gets two cores where it is 1.5 times as fast on them.
const worthOfTime = 1.0

// CPU is what the share of cores of a stage is chosen by.
type CPU struct {
	// Speed is how fast an attempt is with each share.
	Speed usage.Speed
	// Rate is how much of a core attempts use, by the 90th percentile of their means; 0 while too few are known. A share
	// below it holds some of them back all the time.
	Rate quantity.Milli
	// Wall is how long an attempt takes, in seconds; 0 where that is not known.
	Wall float64
	// Held is the share that attempts have now, HeldBack the largest that holds them back; 0 for none.
	Held, HeldBack quantity.Milli
	// Most is what the largest host has.
	Most quantity.Milli
	// Tasks is how many wait or run. Room is how many cores there are for them.
	Tasks float64
	Room  quantity.Milli
	// Slots is how many of them the memory has room for; 0 for no bound.
	Slots float64
}

// Share is the share of cores with the least cost of an attempt: what it holds for as long as it runs, and what those
// who wait for it lose,
//
//	t(c) (c + v max(1, tasks c / room))
//
// with t(c) how long it takes with c cores relative to one. Where there is room for all tasks, that is (c + v) t(c),
// and more cores are worth it while they make it fast enough; where many wait, it is proportional to c t(c), and the
// share is the one that gets most out of each core. Where memory is what is short, fewer fit than cores say.
//
// What is held is kept while nothing is cheaper by [Step]. A size beyond those that were seen is tried where attempts
// are held back and it may be cheaper; that tells how fast they are there.
func (c CPU) Share(otherwise quantity.Milli) quantity.Milli {
	ceiling := max(c.Most, LeastCPU)
	if !c.Speed.Known() || c.Rate == 0 && c.HeldBack == 0 {
		return otherwise
	}
	floor := max(quantity.Milli(math.Ceil(float64(min(c.Rate, quantity.Core))*c.busy())), LeastCPU)
	if c.Rate == 0 {
		floor = max(floor, otherwise) // too few are known to give less
	}
	if floor = RoundUp(floor, cpuStep); floor > nearlyCore {
		floor = max(floor, quantity.Core)
	}
	floor = min(floor, ceiling)
	best, least := floor, c.cost(floor)
	for _, share := range c.shares(floor, ceiling) {
		if cost := c.cost(share); cost < least*(1-1e-9) || cost <= least*(1+1e-9) && share <= quantity.Core {
			best, least = share, min(least, cost)
		}
	}
	if c.Held >= floor && c.Held <= ceiling && c.cost(c.Held) <= least*(1+Step) {
		return c.Held
	}
	return best
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
	slots := max(1, float64(c.Room)/float64(max(share, 1)))
	if c.Slots > 0 {
		slots = max(1, min(slots, c.Slots))
	}
	return c.time(cores) * (cores + worthOfTime*max(1, c.Tasks/slots))
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
	if !c.Speed.Known() {
		return "nothing known of how fast they are on more or less"
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
