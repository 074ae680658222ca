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
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/provision"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Capacity is how much of a pool would be held beside functions for what is forecast to arrive, in cores of hosts as
// there are: advice, since no part of the engine launches hosts.
type Capacity struct {
	provision.Advice
	// Host is the capacity of a host of the kind that is counted in, PerHour what it costs, and Hosts how many hosts
	// Held fills.
	Host    quantity.Size  `json:"host"`
	PerHour quantity.Money `json:"host_per_hour_picodollars"`
	Hosts   int            `json:"hosts"`
	// Stages are those whose arrivals it is for, Fixed those of them that functions cannot run: the pool has them at the
	// load that nine in ten minutes do not exceed.
	Stages []string `json:"stages"`
	Fixed  []string `json:"fixed,omitempty"`
	// Minutes is of how many minutes the forecast is that it is for.
	Minutes int `json:"minutes"`
	// Summary says it in a sentence.
	Summary string `json:"summary"`
}

// The terms of advice: hosts serve a minute after they were asked for and are held for ten (C. Zhang et al., MArk,
// USENIX ATC 2019, whose hosts take about as long).
const (
	advisedDelay = 1
	advisedHold  = 10
	// mostAdvised is how many stages advice counts, those with the most to do: a forecast takes about a millisecond.
	mostAdvised = 64
)

// advisedLevels are the quantiles of arrivals that advice reads.
var advisedLevels = []float64{0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99}

// Capacity advises on the capacity of the pool; known is false where it cannot: no stage's arrivals are known well
// enough, nobody knows how long their tasks take, or no host has a price. It leaves s as it is.
//
// All stages together are one load in cores, as if those that peak did so at the same time (their quantiles are added),
// which is what a pool for all of them must hold in its worst minutes; a core of functions has the mean price of them
// all. [provision.Advise] says the rest.
func (s State) Capacity(snapshot plan.Snapshot) (advice Capacity, known bool) {
	if s.memory == nil {
		return Capacity{}, false
	}
	d := begin(s.memory.Copied(), snapshot)
	host := d.priced()
	if host.Capacity.CPU <= 0 || !d.functions.Enabled {
		return Capacity{}, false
	}
	loads := d.loads(host)
	if len(loads) == 0 {
		return Capacity{}, false
	}
	c := Capacity{Host: host.Capacity, PerHour: host.PricePerHour, Stages: []string{}, Minutes: len(loads[0].minutes)}
	forecast := provision.Forecast{Levels: advisedLevels, Steps: make([][]float64, c.Minutes)}
	fixed, spent, cores := 0.0, 0.0, 0.0
	for i := range forecast.Steps {
		forecast.Steps[i] = make([]float64, len(advisedLevels))
		held := 0.0
		for _, load := range loads {
			if load.fixed {
				held += load.minutes[i][slices.Index(advisedLevels, 0.9)] * load.cores
				continue
			}
			for k, tasks := range load.minutes[i] {
				forecast.Steps[i][k] += tasks * load.cores
			}
			spent += load.mean(i) * load.price.USD()
			cores += load.mean(i) * load.cores
		}
		fixed = max(fixed, held)
	}
	for _, load := range loads {
		c.Stages = append(c.Stages, load.name)
		if load.fixed {
			c.Fixed = append(c.Fixed, load.name)
		}
	}
	core := host.PricePerHour.Prorated(quantity.Fraction{Of: int64(quantity.Core), In: int64(host.Capacity.CPU)},
		quantity.Fraction{Of: 1, In: 60})
	terms := provision.Terms{
		Hosts:    []provision.Host{{Name: "core", Tasks: 1, Step: max(core, 1)}},
		Function: quantity.USD.Times(spent / max(cores, 1e-9)), Delay: advisedDelay, Hold: advisedHold,
	}
	always := int(math.Ceil(fixed - 1e-9))
	now := 0
	for _, other := range d.hosts {
		now += int(other.Capacity.CPU / quantity.Core)
	}
	told, err := provision.Advise(terms, max(0, now-always), time.Minute, forecast)
	if err != nil {
		return Capacity{}, false
	}
	c.Advice = told.Plus(always, terms, time.Minute)
	c.Now = now // which may be less than what functions cannot run takes
	each := float64(host.Capacity.CPU) / float64(quantity.Core)
	c.Hosts = int(math.Ceil(float64(c.Held)/each - 1e-9))
	c.Summary = c.summary()
	return c, true
}

// load is what is forecast of the arrivals at a stage.
type load struct {
	name    string
	minutes [][]float64 // tasks at the advised levels
	cores   float64     // that a task keeps for a minute of the hosts that are counted in
	price   quantity.Money
	fixed   bool
}

// mean is about how many tasks come in a minute.
func (l load) mean(minute int) float64 {
	mean, below := 0.0, 0.0
	for k, level := range advisedLevels {
		above := 1.0
		if k+1 < len(advisedLevels) {
			above = (level + advisedLevels[k+1]) / 2
		}
		mean, below = mean+(above-below)*l.minutes[minute][k], above
	}
	return mean
}

// loads are those of the stages whose arrivals are known well enough and whose tasks were measured, those first at
// which most was done lately.
func (d *decider) loads(host plan.Host) (loads []load) {
	known, followed := map[string]*work{}, d.memory.Followed()
	for _, model := range d.memory.Models() {
		if _, follows := slices.BinarySearch(followed, model.Name); !follows {
			continue
		}
		if st := d.memory.StageOf(model); st != nil {
			if w := d.known(st); w.taking.known {
				known[model.Name] = w
			}
		}
	}
	lately := func(name string) float64 { return d.memory.Rate(name) * known[name].wall }
	names := slices.Sorted(maps.Keys(known))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(lately(b), lately(a)) })
	for _, name := range names[:min(len(names), mostAdvised)] {
		w := known[name]
		one := load{name: name, minutes: d.memory.Fan(name, advisedLevels, d.now)}
		if len(one.minutes) < advisedDelay+advisedHold {
			continue
		}
		share := max(w.size.CPU.Cores()/host.Capacity.CPU.Cores(),
			float64(w.size.Memory)/max(float64(host.Capacity.Memory), 1))
		one.cores = share * host.Capacity.CPU.Cores() * w.wall / 60
		measured := d.measure(w)
		if one.fixed = measured.Class == 0; !one.fixed {
			one.price = d.functions.Price(measured.Class, time.Duration(
				min(w.wall*measured.Slower, fact.MaxWall.Seconds())*float64(time.Second)))
		}
		loads = append(loads, one)
	}
	return loads
}

// priced is the host whose cores cost least of those with a price.
func (d *decider) priced() (best plan.Host) {
	least := math.Inf(1)
	for _, host := range d.hosts {
		each := host.PricePerHour.USD() / max(host.Capacity.CPU.Cores(), 1e-9)
		if host.PricePerHour > 0 && host.Capacity.CPU > 0 && each < least {
			best, least = host, each
		}
	}
	return best
}

func (c Capacity) summary() string {
	text := fmt.Sprintf("%s held and the rest in functions would cost $%.2f a day ($%.2f to $%.2f) against $%.2f with "+
		"the %s that there are", words.Count(c.Held, "core"), c.Day.Mean, c.Day.Low, c.Day.High, c.DayNow.Mean,
		words.Count(c.Now, "core"))
	if len(c.Fixed) > 0 {
		text += "; " + strings.Join(c.Fixed, " and ") + " cannot go to functions"
	}
	return text
}
