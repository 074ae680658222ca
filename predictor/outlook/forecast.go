package outlook

import (
	"cmp"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Forecast is what is expected of a run that goes on.
type Forecast struct {
	// Finish is in how many seconds from now it ends, and Cost what it will have cost altogether by then, in US dollars;
	// the zero Cost where that is not known.
	Finish, Cost fact.Interval
	// Runs is on how many earlier runs of its pipeline this rests; 0 where none went like it so far.
	Runs int
	// Basis says in a few words what it rests on: "its own tasks and 4 earlier runs".
	Basis string
	// Late is how probable it is that it ends after the deadline of its goal, and Dear that it costs more than the budget;
	// 0 without such a limit.
	Late, Dear float64
	// Free has the called stages whose tasks wait and cost nothing as far as is known, with how many seconds one takes.
	// They do where functions take them.
	Free map[fact.StageID]float64 `json:"-"`
}

// ForecastOf says when a run ends and what it costs by its own tasks: those that wait, those that run for a while, and
// those of stages that earlier runs called next, as many and as long as the input of this run lets expect; see
// [Journey.Draw]. known is false for runs that are unknown or over, and where nothing is known of what is left.
func ForecastOf(m *memory.State, run string, now time.Time) (forecast Forecast, known bool) {
	r := m.Runs[run]
	if r == nil || !r.Known {
		return Forecast{}, false
	}
	journey, basis, runs := JourneyOf(m, r, fact.At(now))
	if len(journey.Ways) == 0 && (!r.Whole() || !journey.told()) {
		return Forecast{}, false // what follows is not known
	}
	drawn, known := journey.Draw()
	if !known {
		return Forecast{}, false
	}
	forecast = Forecast{
		Finish: drawn.Finish(), Cost: drawn.Cost(), Runs: runs, Basis: basis, Free: map[fact.StageID]float64{},
	}
	for i, leg := range journey.Called {
		if leg.Waiting > 0 && !(leg.Rate > 0) && !(leg.Price > 0) {
			forecast.Free[r.Stages[i]] = leg.taking(journey.With)
		}
		if len(journey.Ways) == 0 && leg.goes() && !(leg.Rate > 0) { // nothing says what its tasks cost
			forecast.Cost = fact.Interval{}
		}
	}
	if r.Goal.Deadline > 0 {
		forecast.Late = drawn.Later(r.Goal.Deadline.Seconds() - fact.At(now).Since(r.Started))
	}
	if r.Goal.Budget > 0 && forecast.Cost.High > 0 {
		forecast.Dear = drawn.Dearer(r.Goal.Budget.USD())
	}
	return forecast, true
}

// taking is how many seconds a task of the stage takes; as long as the whole stage did where nothing else is known.
func (l Leg) taking(with map[string]float64) float64 {
	switch {
	case l.Done > 0:
		return math.Exp(l.seen())
	case l.Mean.Known():
		return l.Mean.Expected(with)
	case l.Whole.Known():
		return l.Whole.Expected(with)
	case l.Pace.Attempts > 0:
		return l.Pace.Mean()
	}
	return 0
}

// JourneyOf gathers what is left of a run, in words what that rests on, and how many earlier runs of its pipeline.
func JourneyOf(m *memory.State, r *memory.Run, now fact.Instant) (j Journey, basis string, runs int) {
	earlier, pipeline := m.AlikeAnywhere(r)
	j = Journey{
		Later: map[string]Leg{}, With: map[string]float64{}, Elapsed: m.Elapsed(r, now), Spent: r.Spent.USD(),
		Width: m.RunWidth, CostWidth: m.CostWidth, Seed: seedOf(r.ID),
	}
	if r.Input > 0 {
		j.With[RunInput] = float64(r.Input)
	}
	for name, value := range r.Features {
		j.With[RunFeature(name)] = value
	}
	running := goingOf(m, r, now)
	for i, id := range r.Stages {
		st := m.Stages[id]
		if st == nil || st.Shares[r.ID] == nil {
			j.Called = append(j.Called, Leg{Quiet: now.Since(r.Started)})
			continue
		}
		part := st.Shares[r.ID]
		if i == 0 && r.Input == 0 && part.Load.Input > 0 {
			j.With[FirstInput] = part.Load.Input
		}
		leg, loads := legOf(m, id, earlier, i)
		leg.Waiting = part.Queued[0] + part.Queued[1] + part.Further
		leg.Running = running[id]
		leg.Done, leg.Busy = part.Load.Done, part.Load.Busy
		leg.Since, leg.Quiet = now.Since(part.First), now.Since(part.Last)
		if part.Scheduled > 0 && part.Load.Input > 0 { // as earlier builds have it
			leg.Grown = map[string]float64{TaskInput: part.Load.Input / float64(part.Scheduled)}
		}
		leg.part = 1 / float64(max(1, part.Scheduled+part.Further))
		leg.fed(st.Model, part.Load, loads)
		if pace, known := m.PaceOf(id, st.Slot.CPU.Cores(), now); known {
			leg.Pace, leg.Task = pace, pace.Spread
		}
		if part.Load.Busy > 0 {
			leg.Rate = part.Cost.USD() / part.Load.Busy
		}
		j.Called = append(j.Called, leg)
		j.With[TasksBefore] = float64(max(1, part.Scheduled+part.Further))
	}
	for _, past := range earlier {
		way := Way{Seconds: past.Seconds}
		for i, stage := range past.Stages {
			way.Stages = append(way.Stages, Passed{Name: stage.Name, Start: stage.Start, End: stage.End})
			if _, known := j.Later[stage.Name]; i >= len(r.Stages) && !known {
				j.Later[stage.Name], _ = legOf(m, fact.StageID{App: r.App, Name: stage.Name}, earlier, i)
			}
		}
		j.Ways = append(j.Ways, way)
	}
	if pipeline == r.Key() {
		runs = len(earlier)
	}
	if len(earlier) == 0 {
		return j, j.basis(), runs
	}
	return j, basisOf(r, earlier, pipeline), runs
}

// basis says what a forecast rests on where no run went like this one before.
func (j Journey) basis() string {
	if slices.ContainsFunc(j.Called, func(l Leg) bool { return l.Pace.Attempts > 0 }) {
		return "the progress of its own tasks"
	}
	return "its own tasks"
}

// basisOf says what a forecast rests on, for people.
func basisOf(r *memory.Run, earlier []memory.PastRun, pipeline string) string {
	own := ""
	switch {
	case len(r.Stages) > 0:
		own = "its own tasks"
	case r.Input > 0:
		own = "its input"
	}
	and := func(what string) string {
		if own == "" {
			return what
		}
		return own + " and " + what
	}
	switch {
	case pipeline != r.Key():
		return and("what followed the same stages in "+words.Count(len(earlier), "run")+" of "+pipeline) + ", a guess"
	case len(earlier) == 1:
		return and("one earlier run") + ", so it is wide"
	}
	return and(words.Count(len(earlier), "earlier run"))
}

// fed makes a stage that the run has called one of the very tasks that are left: how long tasks take by their inputs is
// that of single tasks, and of a stage whose small ones come first, those that are done tell too little of the large
// ones. Those that run are known one by one.
func (l *Leg) fed(known *memory.Model, load memory.Load, earlier []memory.Load) {
	left := load.Inputs.Less(load.Fed)
	mean := left.Mean()
	if left.Tasks == 0 || !(mean > 0) || math.IsInf(mean, 0) {
		return
	}
	l.Grown = map[string]float64{TaskInput: mean}
	if done := load.Fed.Mean(); done > 0 {
		l.Relative = known.Relative(mean) / known.Relative(done)
	}
	waiting := left
	for i := range l.Running {
		one := &l.Running[i]
		waiting = waiting.Less(memory.InputsOf(1, one.Input))
		if one.Input > 0 && known.Duration().Feature == usage.InputBytes {
			one.Relative = known.Relative(float64(one.Input)) / known.Relative(mean)
		}
	}
	if waiting.Tasks > 0 && waiting.Bytes > 0 {
		l.Smaller = known.Relative(waiting.Mean()) / known.Relative(mean)
		left = waiting
	}
	power := known.Elasticity(mean)
	l.Own = scatterOf(append(slices.Clone(earlier), load), power)
	l.Task = math.Hypot(l.Own, power*math.Sqrt(left.Variance()))
}

func seedOf(run string) uint64 {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(run)) // never fails
	return sum.Sum64()
}

// goingOf are the attempts of a run by stage, the oldest first.
func goingOf(m *memory.State, r *memory.Run, now fact.Instant) map[fact.StageID][]Going {
	found := map[fact.StageID][]Going{}
	for _, running := range m.Attempts {
		if running.Run != r.ID || !running.Runs() {
			continue
		}
		one := Going{Age: m.Age(running, now), Input: m.Given[running.Key].Input}
		one.Lasts, _ = m.Lasts(running)
		one.Told, _ = m.ByProgress(running, now)
		found[running.Stage()] = append(found[running.Stage()], one)
	}
	for _, of := range found {
		slices.SortFunc(of, func(a, b Going) int {
			return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(b.Told.Now.Mean, a.Told.Now.Mean),
				cmp.Compare(b.Input, a.Input), cmp.Compare(b.Lasts.Median, a.Lasts.Median))
		})
	}
	return found
}

// What is thought of a stage before earlier runs tell: how many tasks there are is a count, and the same or in
// proportion; so is their input, but for what the data compress to; what they take has a part that does not depend on
// the input, and depends on what else the hosts do; how many slots it gets depends on what others want.
func counting() usage.Thought { return usage.Thought{Slope: 1, Give: 0.5, Spread: 0.03} }
func feeding() usage.Thought  { return usage.Thought{Slope: 1, Give: 0.5, Spread: 0.1} }
func timing() usage.Thought   { return usage.Thought{Slope: 0.5, Give: 0.5, Spread: 0.1} }
func slotting() usage.Thought { return usage.Thought{Slope: 1, Give: 0.5, Spread: 0.3} }

// legOf is what earlier runs tell of a stage, the i-th that they called, and the loads that it had in these.
func legOf(m *memory.State, id fact.StageID, earlier []memory.PastRun, i int) (leg Leg, loads []memory.Load) {
	var counts, inputs, means, wholes, slots []usage.Grown
	varied := variedOf(earlier)
	for number, past := range earlier {
		k := i
		if k >= len(past.Stages) || past.Stages[k].Name != id.Name {
			k = slices.IndexFunc(past.Stages, func(s memory.PastStage) bool { return s.Name == id.Name })
		}
		if k < 0 {
			continue
		}
		stage := past.Stages[k]
		with := toldOf(past, varied)
		timed := maps.Clone(with)
		if k > 0 {
			with[TasksBefore] = float64(max(1, past.Stages[k-1].Tasks))
		}
		counts = append(counts, usage.Grown{Value: float64(max(1, stage.Tasks)), With: with})
		wholes = append(wholes, usage.Grown{Value: max(stage.End-stage.Start, 1e-3), With: timed})
		leg.Price += (stage.Cost.USD() - leg.Price) / float64(number+1)
		load := stage.Load
		if load.Done == 0 || !(load.Busy > 0) {
			continue
		}
		loads = append(loads, load)
		leg.Rate += stage.Cost.USD()
		timed[TaskInput] = load.Input / float64(max(1, stage.Tasks))
		inputs = append(inputs, usage.Grown{Value: load.Input, With: with})
		timed[TaskPart] = 1 / float64(max(1, stage.Tasks))
		means = append(means, usage.Grown{Value: load.Busy / float64(load.Done), With: timed})
		leg.Most = max(leg.Most, load.Most)
		had, limited := stage.Slots()
		if limited {
			slots = append(slots, usage.Grown{Value: had})
		}
		leg.Besides = append(leg.Besides, max(0, stage.End-stage.Start-explained(load, had)))
	}
	undivided(means)
	if len(slots) == 0 {
		cores := 1.0
		if st := m.Stages[id]; st != nil && st.Slot.CPU > 0 {
			cores = max(st.Slot.CPU, size.LeastCPU).Cores()
		}
		for _, had := range m.Cores.Values {
			slots = append(slots, usage.Grown{Value: had / cores})
		}
	}
	leg.Task = scatterOf(loads, 0)
	busy := 0.0
	for n, load := range loads {
		means[n].Noise = leg.Task / math.Sqrt(float64(load.Done))
		busy += load.Busy
	}
	if busy > 0 {
		leg.Rate /= busy
	}
	leg.Count, leg.Input = usage.LearnGrowth(counts, counting()), usage.LearnGrowth(inputs, feeding())
	leg.Whole = usage.LearnGrowth(wholes, timing())
	leg.Mean, leg.Slots = usage.LearnGrowth(means, timing()), usage.LearnGrowth(slots, slotting())
	return leg, loads
}

// toldOf is what is known of an earlier run that its stages may grow with, of numbers of its input those that vary.
func toldOf(past memory.PastRun, varied map[string]bool) map[string]float64 {
	with := map[string]float64{RunInput: float64(past.Input)}
	if past.Input == 0 {
		with[FirstInput] = past.Stages[0].Load.Input
	}
	for name, value := range past.Features {
		if varied[name] || usage.IsCategory(name) {
			with[RunFeature(name)] = value
		}
	}
	return with
}

// variedOf are the names of the features that differ among earlier runs: a number that was always the same explains
// nothing, and one that has another value now for the first time may be a seed as well as a number of shards.
func variedOf(earlier []memory.PastRun) map[string]bool {
	varied := map[string]bool{}
	for _, past := range earlier {
		for name, value := range past.Features {
			if first, told := earlier[0].Features[name]; told && first != value {
				varied[name] = true
			}
		}
	}
	return varied
}

// sameInput is by what factor the inputs of tasks may differ from run to run and be the same.
const sameInput = 1.1

// undivided takes the part of a task off what explains how long tasks take, unless they divide what there is to do.
func undivided(means []usage.Grown) {
	if divides(means) {
		return
	}
	for _, mean := range means {
		delete(mean.With, TaskPart)
	}
}

// divides reports whether the tasks of a stage may divide what there is to do where nothing about their inputs says so:
// there were more in one run than in another, and each was told of as much. Where inputs differ, they say it better.
func divides(means []usage.Grown) bool {
	if len(means) < 2 {
		return false
	}
	least, most := maps.Clone(means[0].With), maps.Clone(means[0].With)
	for _, mean := range means[1:] {
		for _, name := range [...]string{TaskInput, TaskPart} {
			least[name], most[name] = min(least[name], mean.With[name]), max(most[name], mean.With[name])
		}
	}
	return most[TaskPart] > least[TaskPart] && most[TaskInput] <= sameInput*least[TaskInput]
}

// explained is how long tasks take that together take so long, list-scheduled on the slots that they had.
func explained(load memory.Load, slots float64) float64 {
	return max(load.Longest, load.Busy/slots+(1-1/max(1, slots))*load.Busy/float64(load.Done)/2)
}

// scatterOf is how far the logarithms of a stage's run times lie from their mean in one run, by what runs tell, but for
// what their inputs explain: tasks take longer by so large a power of these.
func scatterOf(loads []memory.Load, power float64) float64 {
	squares, count := usage.UsualScatterTimes*usage.UsualScatter*usage.UsualScatter, float64(usage.UsualScatterTimes)
	for _, load := range loads {
		explained := power * power * load.Fed.Variance() * float64(load.Fed.Tasks)
		squares, count = squares+max(0, load.Scatter-explained), count+float64(max(0, load.Done-1))
	}
	return math.Sqrt(squares / count)
}
