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
	"github.com/spillway-ml/spillway/predictor/outlook"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/provision"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/venue"
	"github.com/spillway-ml/spillway/predictor/whatif"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Measured is what the attempts of a stage have shown, whatever its build, for comparing where it runs.
type Measured struct {
	// Stage is app and stage: "digits/score".
	Stage string `json:"stage"`
	// Walls are the seconds that the latest attempts took, at most 32, as they would be with the cores of Size. AtPool and
	// AtFunctions are how many were measured there: where none was at the pool, Walls are those at functions, brought to
	// its cores.
	Walls       []float64 `json:"walls_seconds"`
	AtPool      int       `json:"measured_at_pool"`
	AtFunctions int       `json:"measured_at_functions"`
	// Size is that of a slot.
	Size quantity.Size `json:"size"`
	// Class is the memory class of its functions, 0 where they cannot run it, and Refusal why. Slower is by what factor a
	// task takes longer there, Cold how many seconds an environment starts, and Colds how many of these were measured.
	Class   quantity.Bytes  `json:"class_bytes"`
	Refusal string          `json:"refusal,omitempty"`
	Slower  float64         `json:"slower"`
	Cold    float64         `json:"cold_seconds"`
	Colds   int             `json:"measured_colds"`
	Venue   venue.Functions `json:"functions"`
	// Host is the kind of host with a price whose slots cost least, Slots how many it has room for; no name where none of
	// the pool has a price and room.
	Host  plan.Host `json:"host"`
	Slots int       `json:"slots"`
	// Rate is how many tasks came in a second of the latest minutes, at most an hour; 0 where that is not known.
	Rate float64 `json:"tasks_per_second"`
	// LatelyTasks came in LatelyMinutes: what Rate rests on.
	LatelyTasks   int `json:"lately_tasks"`
	LatelyMinutes int `json:"lately_minutes"`
}

// Measured returns what is measured of a stage, named as "stage" or "app/stage". Where there is no stage of the name,
// or several apps have one, found is false, and names are those that were meant or that there are.
func (s State) Measured(name string, snapshot plan.Snapshot) (measured Measured, names []string, found bool) {
	if s.memory == nil {
		return Measured{}, nil, false
	}
	m := s.memory.Copied()
	var models []*memory.Model
	for _, model := range m.Models() {
		names = append(names, model.Name)
		if model.Name == name || strings.HasSuffix(model.Name, "/"+name) {
			models = append(models, model)
		}
	}
	if len(models) > 1 {
		names = nil
		for _, model := range models {
			names = append(names, model.Name)
		}
	}
	if len(models) != 1 {
		return Measured{}, names, false
	}
	st := m.StageOf(models[0])
	if st == nil {
		return Measured{Stage: models[0].Name, Walls: []float64{}}, nil, true
	}
	d := begin(m, snapshot)
	return d.measure(d.known(st)), nil, true
}

// known is a stage, whether it has work or not, with the size of its slots.
func (d *decider) known(st *memory.Stage) *work {
	w := d.newWork(st)
	w.size = st.Slot
	w.size.CPU = cmp.Or(w.size.CPU, st.Declared.CPU, quantity.Core)
	if w.size.Memory == 0 {
		peak := st.Model.Memory.LargestPeak() * (1 + d.policy.Margin)
		w.size.Memory = max(d.policy.MinMemory, st.Declared.Memory, quantity.Bytes(min(peak, float64(fact.MaxPeakMemory))))
	}
	d.time(w, w.size.CPU)
	return w
}

func (d *decider) measure(w *work) Measured {
	model := w.stage.Model
	atPool := model.Times(fact.Pool, w.size.CPU.Cores())
	measured := Measured{
		Stage: model.Name, Size: w.size, Walls: append([]float64{}, atPool.Values...), AtPool: len(atPool.Values),
		Venue: d.functions, Cold: d.functions.ColdStart.Seconds(), Slower: 1,
	}
	measured.Rate = d.memory.Rate(model.Name)
	measured.LatelyTasks, measured.LatelyMinutes = d.memory.Lately(model.Name)
	if colds := model.Colds[fact.Function]; len(colds.Values) > 0 {
		measured.Cold, _ = colds.Mean()
		measured.Colds = len(colds.Values)
	}
	d.offered(w, &measured)
	measured.Host, measured.Slots = d.cheapest(w.size)
	return measured
}

// offered fills in what functions make of the stage.
func (d *decider) offered(w *work, measured *Measured) {
	model := w.stage.Model
	all := model.Walls[fact.Function]
	measured.AtFunctions = len(all.Values)
	if measured.Refusal = string(d.unfitToCome(w)); measured.Refusal != "" {
		return
	}
	atPool := model.Times(fact.Pool, w.size.CPU.Cores())
	wall, _ := atPool.Mean()
	longest := atPool.Quantile(0.99)
	if len(atPool.Values) == 0 {
		if len(all.Values) == 0 {
			return
		}
		wall, _ = all.Mean()
		longest = all.Quantile(0.99)
	}
	demand := spill.Demand{
		Memory: d.functionMemory(w), Speed: model.Speed(), Cores: w.size.CPU.Cores(), Wall: wall,
		Longest: max(longest, wall), Held: w.stage.Class, Device: w.size.GPU > 0 || w.size.DeviceClass != "",
	}
	class, why := demand.Class(d.functions)
	if measured.Class, measured.Refusal = class, string(why); why != "" {
		return
	}
	measured.Slower = demand.Slowdown(class)
	there := model.Times(fact.Function, size.ClassCores(class))
	took, _ := there.Mean()
	switch some := len(there.Values) > 0; {
	case some && len(atPool.Values) > 0:
		measured.Slower = took / wall
	case some:
		for _, value := range there.Values {
			measured.Walls = append(measured.Walls, value/measured.Slower)
		}
	}
}

// cheapest is the host whose slots of a size cost least, and how many of them it has room for.
func (d *decider) cheapest(slot quantity.Size) (best plan.Host, slots int) {
	least := math.Inf(1)
	for _, host := range d.hosts {
		room := min(roomOf(host.Capacity, slot), host.Has(slot))
		if each := host.PricePerHour.USD() / float64(room); room > 0 && host.PricePerHour > 0 && each < least {
			best, slots, least = host, room, each
		}
	}
	return best, slots
}

// Fit is how many slots of the stage a capacity has room for.
func (m Measured) Fit(capacity quantity.Size) int { return roomOf(capacity, m.Size) }

// roomOf is how many slots of a size a capacity has room for.
func roomOf(capacity, slot quantity.Size) int {
	room := math.MaxInt32
	for _, of := range [...][2]int64{
		{int64(capacity.CPU), int64(slot.CPU)},
		{int64(capacity.Memory), int64(slot.Memory)},
		{int64(capacity.GPU), int64(slot.GPU)},
	} {
		if of[1] > 0 {
			room = min(room, int(of[0]/of[1]))
		}
	}
	return room
}

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
	// load that nine in ten minutes do not exceed. Those that need GPUs are left out.
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
	c.Advice = told.Plus(always, min(always, now), terms, time.Minute)
	if len(c.Fixed) == len(c.Stages) {
		c.Reason = "functions can run none of these stages"
	}
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

// loads are those of the stages without GPUs whose arrivals are known well enough and whose tasks were measured, those
// first at which most was done lately.
func (d *decider) loads(host plan.Host) (loads []load) {
	known, followed := map[string]*work{}, d.memory.Followed()
	for _, model := range d.memory.Models() {
		if _, follows := slices.BinarySearch(followed, model.Name); !follows {
			continue
		}
		if st := d.memory.StageOf(model); st != nil {
			if w := d.known(st); w.taking.known && w.size.GPU == 0 && w.size.DeviceClass == "" {
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

// Coming is a run that could be started.
type Coming struct {
	App, Pipeline string
	// Input is that of the run with the artifacts that it names, Features its numbers and categories, as [fact.RunStarted]
	// has them; 0 and nil where they are not known.
	Input    quantity.Bytes
	Features map[string]float64
}

// Taken is a run that has ended, as it was measured.
type Taken struct {
	Run, App, Pipeline string
	// Seconds and Cost are what it took.
	Seconds float64
	Cost    quantity.Money
	Stages  []TakenStage
}

// TakenStage is what a stage of it took. Times are in seconds.
type TakenStage struct {
	whatif.Given
	// Start and End are when it began and was done, from the run's start.
	Start, End float64
	// Mean is what a task took that succeeded, Spread the standard deviation of the logarithm of one; Cores is how many
	// these had in the mean, 0 where nobody tells.
	Mean, Spread, Cores float64
}

// Prospect is what a run that goes on has left, and what its stages can be given, for [whatif.Of]: with the room that
// the stages of other runs leave it. It leaves s as it is, and shares nothing with it.
func (s State) Prospect(run string, goal fact.Goal, snapshot plan.Snapshot) whatif.Job {
	job := whatif.Job{Run: run, Goal: fact.SaneGoal(goal), At: snapshot.Now}
	if s.memory == nil || s.memory.Runs[run] == nil || !s.memory.Runs[run].Known {
		job.Missing = "no run " + run + " goes on whose start was seen"
		return job
	}
	m := s.memory.Copied()
	r := m.Runs[run]
	r.Goal, job.Pipeline, job.Spent = job.Goal, r.Pipeline, r.Spent
	d := begin(m, snapshot)
	job.Elapsed = d.now.Since(r.Started)
	d.allocate()
	return d.prospects(job, r)
}

// ProspectOf is that of a run that could be started under goal, with the whole pool and all functions for itself.
func (s State) ProspectOf(run Coming, goal fact.Goal, snapshot plan.Snapshot) whatif.Job {
	m := memory.New()
	if s.memory != nil {
		m = s.memory.Copied()
	}
	r := &memory.Run{
		App: run.App, Pipeline: run.Pipeline, Goal: fact.SaneGoal(goal), Started: fact.At(snapshot.Now), Known: true,
		Input: run.Input, Features: run.Features,
	}
	return begin(m, snapshot).prospects(whatif.Job{Pipeline: run.Pipeline, Goal: r.Goal, At: snapshot.Now}, r)
}

// ProspectAfter is that of a run that has ended, from its start: what it could have come to with the whole pool and all
// functions for itself, by what its tasks were measured to take.
func (s State) ProspectAfter(run Taken, goal fact.Goal, snapshot plan.Snapshot) whatif.Job {
	job := whatif.Job{
		Run: run.Run, Pipeline: run.Pipeline, Goal: fact.SaneGoal(goal), At: snapshot.Now,
		Basis:    "what its tasks were measured to take",
		Measured: &whatif.Point{Seconds: run.Seconds, Cost: run.Cost.USD(), Stages: []whatif.Given{}},
	}
	switch {
	case len(run.Stages) == 0:
		job.Missing = "no task of it has succeeded whose attempts are still kept"
		return job
	case s.memory == nil:
		job.Missing = "nothing is remembered of its stages"
		return job
	}
	d := begin(s.memory.Copied(), snapshot)
	last := 0.0
	for _, taken := range run.Stages {
		job.Measured.Stages = append(job.Measured.Stages, taken.Given)
		left := outlook.Left{
			Stage: taken.Stage, Tasks: taken.Tasks, Mean: taken.Mean, Spread: taken.Spread, Start: taken.Start, End: taken.End,
		}
		last = max(last, taken.End)
		d.prospect(&job, d.workNamed(run.App, taken.Stage), left, taken.Cores, taken.Size.DeviceClass, nil)
		if known := len(job.Stages); known > 0 && job.Stages[known-1].Name == taken.Stage {
			job.Stages[known-1].Present = taken.Given
		}
	}
	job.After = max(0, run.Seconds-last)
	d.lack(&job, "of which nothing is remembered")
	return job
}

// prospects adds to a job what is left of r, which may not have begun.
func (d *decider) prospects(job whatif.Job, r *memory.Run) whatif.Job {
	journey, basis, runs := outlook.JourneyOf(d.memory, r, d.now)
	names := make([]string, len(r.Stages))
	for i, id := range r.Stages {
		names[i] = id.Name
	}
	left, after := journey.Left(names)
	job.Basis, job.After = basis, after
	switch {
	case len(journey.Ways) == 0 && !r.Whole() && d.memory.Pasts[r.Key()] == nil:
		job.Missing = "no earlier run of this pipeline has succeeded: nothing is known of " + following(r)
	case len(journey.Ways) == 0 && !r.Whole():
		job.Missing = "no earlier run of this pipeline called the same stages first and reused as much: nothing is known " +
			"of " + following(r)
	case len(left) == 0:
		job.Missing = "no task is left that is known of"
	}
	if runs == 0 && len(journey.Ways) > 0 {
		job.Basis += ": its stages are guessed"
	}
	works := d.worksOf(r)
	for _, one := range left {
		i := slices.IndexFunc(works, func(w *work) bool { return one.Called && w.stage.ID.Name == one.Stage })
		if i >= 0 {
			d.prospect(&job, works[i], one, 0, "", r)
			continue
		}
		d.prospect(&job, d.workNamed(r.App, one.Stage), one, 0, "", r)
	}
	d.lack(&job, "of which no attempt has ended yet")
	if job.Missing == "" {
		d.foresee(&job, r)
	}
	return job
}

// lack says which stages are unknown.
func (d *decider) lack(job *whatif.Job, why string) {
	switch {
	case job.Missing != "":
	case len(job.Unknown) > 0:
		job.Missing = "how long a task takes is not known of " + strings.Join(job.Unknown, " and ") + ", " + why
	case len(d.hosts) == 0 && !slices.ContainsFunc(job.Stages, func(s whatif.Stage) bool { return len(s.Classes) > 0 }):
		job.Missing = "no host has a valid lease"
	}
}

// workNamed is the stage of an app that has the name, whether it has work or not; nil where none is known.
func (d *decider) workNamed(app, name string) *work {
	key := fact.StageID{App: app, Name: name}.Model()
	for _, model := range d.memory.Models() {
		if model.Name != key {
			continue
		}
		if st := d.memory.StageOf(model); st != nil {
			return d.known(st)
		}
		return d.known(&memory.Stage{ID: fact.StageID{App: app, Name: name}, Model: model}) // idle for so long
	}
	return nil
}
