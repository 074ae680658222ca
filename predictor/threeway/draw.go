package threeway

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// tasks is how many arrivals are counted: of ten thousand, a hundred are above the 99th percentile. So many more come
// before them, that queues are as long and environments as many as they are in the long run.
const (
	tasks   = 10_000
	warming = 5_000
	// What functions hold at a high rate takes more tasks to be warm: those of so many run times with their cold start,
	// and of a minute at least; as many tasks as that is, up to a bound.
	warmRuns    = 5
	warmSeconds = 60
	warmMost    = 100_000
)

// drawn are arrivals of a Poisson process of rate 1 and run times that were measured, each as likely as any other. All
// ways and all rates have the same, so that they differ by nothing else.
type drawn struct {
	Case
	arrivals, walls []float64
	// early are those before the first, by falling time, of which functions look at as many as make them warm.
	early, earlyWalls []float64
	mean, longest     float64 // of run times; longest is their 99th percentile
	within            float64
}

func (c Case) draw() *drawn {
	d := &drawn{Case: c}
	random := rand.New(rand.NewPCG(c.Seed, tasks))
	now := 0.0
	for range warming + tasks {
		now += random.ExpFloat64()
		d.arrivals = append(d.arrivals, now)
		d.walls = append(d.walls, c.Walls[random.IntN(len(c.Walls))])
	}
	now = 0
	for range warmMost - warming {
		now -= random.ExpFloat64()
		d.early = append(d.early, now)
		d.earlyWalls = append(d.earlyWalls, c.Walls[random.IntN(len(c.Walls))])
	}
	for _, wall := range c.Walls {
		d.mean += wall / float64(len(c.Walls))
	}
	d.longest = quantile(slices.Clone(d.walls[warming:]), 0.99)
	if d.within = c.Within.Seconds(); d.within == 0 {
		d.within = 2 * d.longest
	}
	return d
}

// at is what all ways come to at a rate.
func (d *drawn) at(rate float64) Point {
	return Point{Rate: rate, Ways: []Estimate{d.hosts(rate), d.containers(rate), d.functions(rate)}}
}

// hosts are held, as few as are in time.
func (d *drawn) hosts(rate float64) Estimate {
	fits := func(slots int) int { return (slots + d.Host.Slots - 1) / d.Host.Slots }
	held := d.held(rate, d.Host.Slots)
	held.Way, held.Units = Hosts, fits(held.Units)
	held.Million = million(d.Host.PerHour, held.Units, rate)
	return held
}

// containers are held as hosts are, or started for each task: what costs less, the latter only where that is in time.
func (d *drawn) containers(rate float64) Estimate {
	held := d.held(rate, 1)
	held.Way = Containers
	held.Million = million(d.Container.PerHour, held.Units, rate)
	each := Estimate{Way: Containers, Each: true, Cold: 1}
	latencies, billed := make([]float64, 0, tasks), 0.0
	start, least := d.Container.Start.Seconds(), d.Container.Least.Seconds()
	until := make([]float64, 0, tasks)
	for i, wall := range d.walls {
		until = append(until, d.arrivals[i]/rate+start+wall)
		if i >= warming {
			latencies = append(latencies, start+wall)
			billed += max(start+wall, least)
		}
	}
	each.Million = d.Container.PerHour.USD() * billed / tasks * 1e6 / 3600
	// At a high rate, none that is drawn ends before the last begins: then as many as there are in the mean.
	each.Units = max(d.atOnce(until, rate), int(rate*(start+d.mean)))
	d.tell(&each, latencies)
	if !each.Late && (held.Late || each.Million < held.Million) {
		return each
	}
	return held
}

// warm is how many of the early arrivals come before the others at a rate, for environments to be warm.
func (d *drawn) warm(rate float64) int {
	virtual := max(warmSeconds, warmRuns*(d.longest*d.Slower+d.Functions.Cold.Seconds()))
	return int(min(max(rate*virtual-warming, 0), float64(len(d.early))))
}

// task is when task i arrives at a rate and how long it takes on a slot; those below 0 are early.
func (d *drawn) task(i int, rate float64) (at, wall float64) {
	if i < 0 {
		return d.early[-i-1] / rate, d.earlyWalls[-i-1]
	}
	return d.arrivals[i] / rate, d.walls[i]
}

// functions start an environment where none is idle, and keep each for a while; the one that was busy last is taken
// first.
func (d *drawn) functions(rate float64) Estimate {
	e := Estimate{Way: InFunction}
	latencies := make([]float64, 0, tasks)
	cold, kept := d.Functions.Cold.Seconds(), d.Functions.Kept.Seconds()
	var busy ends
	var idle []float64 // since when, rising
	cost := 0.0
	for i := -d.warm(rate); i < len(d.walls); i++ {
		now, wall := d.task(i, rate)
		takes := wall * d.Slower
		for len(busy) > 0 && busy[0] <= now {
			idle = append(idle, busy.pop())
		}
		if len(idle) > 0 && idle[len(idle)-1]+kept >= now {
			idle = idle[:len(idle)-1]
		} else {
			idle = idle[:0] // the youngest is gone, and so are the others
			takes += cold
			if i >= warming {
				e.Cold += 1. / tasks
			}
		}
		busy.push(now + takes)
		if i >= warming {
			e.Units = max(e.Units, len(busy))
			latencies = append(latencies, takes)
			cost += d.Functions.Offered.Price(d.Functions.Class, span(takes)).USD()
		}
	}
	e.Million = cost * 1e6 / tasks
	if most := d.Functions.Offered.Concurrency; most > 0 {
		e.Beyond = e.Units > most || rate*d.mean*d.Slower > float64(most)
	}
	d.tell(&e, latencies)
	return e
}

// held is how few slots, a multiple of lot, are in time at a rate; where none is, how few are as good as any.
func (d *drawn) held(rate float64, lot int) Estimate {
	low := int(math.Ceil(rate * d.mean * (1 + 1e-9) / float64(lot))) // one less never keeps up
	low = max(low, 1)
	within := max(d.within, d.longest*1.01)
	enough := func(lots int) bool { return d.serve(rate, lots*lot).P99 <= within }
	above := low
	for !enough(above) && above*lot < tasks {
		low, above = above+1, 2*above
	}
	for low < above {
		if middle := (low + above) / 2; enough(middle) {
			above = middle
		} else {
			low = middle + 1
		}
	}
	return d.serve(rate, above*lot)
}

// serve is how long tasks take where so many slots take them in turn.
func (d *drawn) serve(rate float64, slots int) Estimate {
	e := Estimate{Units: slots}
	latencies := make([]float64, 0, tasks)
	var busy ends
	for i, wall := range d.walls {
		now := d.arrivals[i] / rate
		begins := now
		if len(busy) == slots {
			begins = max(now, busy.pop())
		}
		busy.push(begins + wall)
		if i >= warming {
			latencies = append(latencies, begins+wall-now)
		}
	}
	d.tell(&e, latencies)
	return e
}

// atOnce is how many tasks run at a time at most that each start when they arrive.
func (d *drawn) atOnce(until []float64, rate float64) (most int) {
	var busy ends
	for i, end := range until {
		for now := d.arrivals[i] / rate; len(busy) > 0 && busy[0] <= now; {
			busy.pop()
		}
		busy.push(end)
		most = max(most, len(busy))
	}
	return most
}

func (d *drawn) tell(e *Estimate, latencies []float64) {
	e.P50, e.P99 = quantile(latencies, 0.5), quantile(latencies, 0.99)
	e.Late = e.P99 > d.within
}

// million is what a million tasks cost on so many of what is held.
func million(hour quantity.Money, units int, rate float64) float64 {
	return hour.USD() * float64(units) * 1e6 / rate / 3600
}

// quantile sorts the values and returns that which a part of them is not above.
func quantile(values []float64, part float64) float64 {
	slices.Sort(values)
	return values[max(0, int(math.Ceil(part*float64(len(values))))-1)]
}

func span(seconds float64) time.Duration {
	return time.Duration(min(seconds, fact.MaxWall.Seconds()) * float64(time.Second))
}
