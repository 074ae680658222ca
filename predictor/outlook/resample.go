package outlook

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Journey is what is left of a run, as far as it can be told: the stages that it has called, and how earlier runs went
// on from there.
type Journey struct {
	// Called are the stages that the run has called, in their order; Later those that earlier runs called after them, by
	// name.
	Called []Leg
	Later  map[string]Leg
	// Ways are how earlier runs went, each with the called stages first. Without any, nothing is known to follow.
	Ways []Way
	// With is what is known of the run that its stages may grow with, by name.
	With map[string]float64
	// Elapsed is how many seconds the run has gone on, without the wait for its first attempt, and Spent what it has
	// cost, in US dollars.
	Elapsed, Spent float64
	// Width is by what factor the interval is wider than what is drawn, CostWidth the same of what is yet to be spent;
	// see [usage.Widened].
	Width, CostWidth float64
	// Seed makes the same values give the same answer.
	Seed uint64
}

// Way is how one earlier run went: when its stages were called and done, in seconds of the run, and how long it went
// on.
type Way struct {
	Stages  []Passed
	Seconds float64
}

// Passed is one stage of it.
type Passed struct {
	Name       string
	Start, End float64
}

// Leg is the work of one stage of a run. Times are in seconds.
type Leg struct {
	// Waiting is how many tasks wait or are announced, and Running are the attempts that go on. Count is how many tasks
	// there will be of a stage that is not called yet.
	Waiting int
	Running []Going
	Count   usage.Growth
	// Input is the input of all its tasks together, in bytes, of a stage that is not called yet.
	Input usage.Growth
	// Since is for how long the stage has been called, Quiet for how long no attempt of it has ended.
	Since, Quiet float64
	// Mean is how long a task takes in the mean of a run, Task the standard deviation of the logarithm of one; Done tasks
	// of the run took Busy together, and those that are left take longer by the factor Relative, for which 0 is 1. Grown
	// is what the mean of these grows with besides what is known of the run. Own is Task without what the inputs of tasks
	// explain; 0 where that is not known.
	Mean     usage.Growth
	Task     float64
	Own      float64
	Done     int
	Busy     float64
	Relative float64
	Grown    map[string]float64
	// Pace is how long a task takes where nothing but the progress of those that run tells; the zero value elsewhere.
	Pace memory.Pace
	// part is 1 divided by how many tasks a called stage has.
	part float64
	// doubt is how far the logarithms of the means lie apart that are drawn.
	doubt float64
	// Smaller is by what factor the tasks that wait take longer than all that are left, with those that run; 0 for 1.
	Smaller float64
	// Slots is how many tasks run at once where more wait, and Most how many have run at once in any case. Running
	// attempts tell better where tasks wait beside them.
	Slots usage.Growth
	Most  int
	// Besides is how long the stage took in earlier runs besides what its tasks explain; where these tell nothing of
	// tasks, Whole is how long it took.
	Besides []float64
	Whole   usage.Growth
	// Rate is what a second of a task costs, and Whole what the stage costs where that is not known, in US dollars.
	Rate, Price float64
}

// Going is an attempt that runs. Times are in seconds.
type Going struct {
	Age   float64
	Input quantity.Bytes // 0 where that is not known
	// Lasts is how long it takes by its own input, or another number that was known of it, and Told when it ends by the
	// progress that it reports; the zero values where these tell nothing. Relative is by what factor it takes longer than
	// tasks that are left do in the mean, where it is the bytes of its input that tell; 0 where that is not known.
	Lasts    memory.Lasting
	Told     memory.Paced
	Relative float64
}

// resamples is how many ways the rest of a run is drawn: the 10th percentile of so many is off by 2.7 percent of rank,
// one time in three, and a run of six stages of a hundred tasks takes about a millisecond.
const resamples = 128

// longestRun is for how many seconds a run goes on at most, 30 years: one earlier run of a kilobyte says so little of
// one of a terabyte that its interval reaches to ages that no time.Duration holds.
const longestRun = 1e9

// Drawn is how the rest of a run may go, each way as probable as any other: in how many seconds it ends, and what it
// will have cost altogether by then, in US dollars, both sorted.
type Drawn struct{ ends, dollars []float64 }

// Draw lets the rest of the run happen again and again, by what is known and by chance. known is false where nothing is
// left to be told of.
func (j Journey) Draw() (drawn Drawn, known bool) {
	random := rand.New(rand.NewPCG(j.Seed, uint64(len(j.Called))))
	means := make([][]float64, len(j.Called))
	j.Called = slices.Clone(j.Called)
	for i, leg := range j.Called {
		means[i] = leg.means(j.With, random)
		j.Called[i].doubt = scatter(means[i])
	}
	drawn = Drawn{make([]float64, resamples), make([]float64, resamples)}
	for i := range resamples {
		end, dollars := j.once(i, means, random)
		drawn.ends[i], drawn.dollars[i] = atMost(end, longestRun), atMost(dollars, fact.MaxCost.USD())
	}
	slices.Sort(drawn.ends)
	slices.Sort(drawn.dollars)
	widen(drawn.ends, j.Width)
	for i, end := range drawn.ends {
		drawn.ends[i] = min(end, longestRun)
	}
	widen(drawn.dollars, j.CostWidth)
	for i := range drawn.dollars {
		drawn.dollars[i] += j.Spent
	}
	return drawn, drawn.Finish().Mid > 0
}

// Finish is the middle 80 percent of when it ends, in seconds from now.
func (d Drawn) Finish() fact.Interval { return middle(d.ends) }

// Cost is the middle 80 percent of what it will have cost, in US dollars.
func (d Drawn) Cost() fact.Interval { return middle(d.dollars) }

// Later is how probable it is that it does not end within so many seconds from now.
func (d Drawn) Later(seconds float64) float64 { return above(d.ends, seconds) }

// Dearer is how probable it is that it costs more than so many US dollars.
func (d Drawn) Dearer(dollars float64) float64 { return above(d.dollars, dollars) }

// above is the part of sorted values that are larger than most.
func above(sorted []float64, most float64) float64 {
	i, _ := slices.BinarySearch(sorted, math.Nextafter(most, math.Inf(1)))
	return float64(len(sorted)-i) / float64(len(sorted))
}

// middle has the middle 80 percent of sorted values.
func middle(sorted []float64) fact.Interval {
	at := func(q float64) float64 { return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)] }
	return fact.Interval{Low: at(0.1), Mid: at(0.5), High: at(0.9)}
}

// atMost is value, or bound where it is larger or no number: what is known of one kilobyte says so little of a terabyte
// that a draw may overflow, and no time of what never ends is none.
func atMost(value, bound float64) float64 {
	if value < bound {
		return value
	}
	return bound
}

// widen moves sorted values away from their middle, in the logarithm; 0 stays where it is.
func widen(sorted []float64, width float64) {
	mid := middle(sorted).Mid
	if !(width > 0) || !(mid > 0) {
		return
	}
	for i, value := range sorted {
		sorted[i] = mid * math.Pow(value/mid, width)
	}
}

// once draws how the run goes on one time: in how many seconds it ends and what that costs.
func (j Journey) once(number int, means [][]float64, random *rand.Rand) (end, dollars float64) {
	var way Way
	if len(j.Ways) > 0 {
		way = j.Ways[number%len(j.Ways)]
	}
	ends := make([]float64, max(len(way.Stages), len(j.Called)))
	with := make(map[string]float64, len(j.With)+1)
	maps.Copy(with, j.With)
	for i, leg := range j.Called {
		mean := 0.0
		if len(means[i]) > 0 {
			mean = means[i][number]
		}
		seconds, price := leg.rest(mean, j.With, random)
		ends[i] = seconds
		dollars += price
		end = max(end, seconds)
	}
	for i := len(j.Called); i < len(way.Stages); i++ {
		stage := way.Stages[i]
		leg, begins := j.Later[stage.Name], j.begins(way, i, ends)
		leg.Waiting = int(math.Round(min(max(1, leg.Count.Draw(with, random)), mostDrawn)))
		with[TasksBefore] = float64(leg.Waiting)
		if leg.Input.Known() {
			with[TaskInput] = leg.Input.Draw(with, random) / float64(leg.Waiting)
		}
		with[TaskPart] = 1 / float64(leg.Waiting)
		seconds, price := leg.rest(leg.Mean.Draw(with, random), with, random)
		delete(with, TaskInput)
		delete(with, TaskPart)
		ends[i] = begins + seconds
		for k := range i { // what goes on beside it and ended before it did
			if other := way.Stages[k]; other.End > stage.Start && other.End <= stage.End {
				ends[i] = max(ends[i], ends[k])
			}
		}
		dollars += price
		end = max(end, ends[i])
	}
	if last := way.last(); len(way.Stages) > 0 {
		after := max(0, way.Seconds-last)
		if end == 0 { // all are done: it has gone on for a while since
			after = max(0, after-j.quiet())
		}
		end += after
	}
	return end, dollars
}

// mostDrawn bounds how many tasks are thought of.
const mostDrawn = 1e7

// The names of what stages grow with.
const (
	RunInput    = "the run's input"
	FirstInput  = "the input of its first stage"
	TasksBefore = "the tasks of the stage before"
	TaskInput   = "the input of a task"
	// TaskPart is 1 divided by how many tasks the stage has.
	TaskPart = "the part of a task"
)

// RunFeature is the name under which a feature of the run's input is what stages grow with.
func RunFeature(name string) string { return "of the run: " + name }

// begins is in how many seconds stage i is called: as long after the end of the last stage that had ended by then in
// the earlier run, or after the start of the run.
func (j Journey) begins(way Way, i int, ends []float64) float64 {
	stage, before := way.Stages[i], -1
	for k := range i {
		if way.Stages[k].End <= stage.Start && (before < 0 || way.Stages[k].End >= way.Stages[before].End) {
			before = k
		}
	}
	if before < 0 {
		return max(0, stage.Start-j.Elapsed)
	}
	gap := stage.Start - way.Stages[before].End
	if before < len(j.Called) && ends[before] == 0 {
		gap = max(0, gap-j.Called[before].Quiet)
	}
	return ends[before] + gap
}

// quiet is for how long no attempt of the run has ended.
func (j Journey) quiet() float64 {
	least := j.Elapsed
	for _, leg := range j.Called {
		least = min(least, leg.Quiet)
	}
	return least
}

func (w Way) last() float64 {
	last := 0.0
	for _, stage := range w.Stages {
		last = max(last, stage.End)
	}
	return last
}

// means draws how long a task of a called stage takes in the mean of this run, one for each resample: by earlier runs,
// by the tasks that have ended (of two estimates, each counts as the inverse of its variance), and by how long those
// run that go on (each draw as often as it would have let them run so long).
func (l Leg) means(with map[string]float64, random *rand.Rand) []float64 {
	if !l.goes() || !l.Mean.Known() && l.Done == 0 && l.Pace.Attempts == 0 {
		return nil
	}
	known := make(map[string]float64, len(with)+len(l.Grown)+1)
	maps.Copy(known, with)
	maps.Copy(known, l.Grown)
	known[TaskPart] = l.part
	draws := make([]float64, resamples)
	if !l.Mean.Known() {
		mean, noise := l.Pace.Log, l.Pace.Doubt
		if l.Done > 0 {
			mean, noise = l.seen(), l.noise()
		}
		for i := range draws {
			draws[i] = mean + noise*random.NormFloat64()
		}
		return l.outlived(draws, random)
	}
	for i := range draws {
		draws[i] = math.Log(l.Mean.Draw(known, random))
	}
	if l.Done > 0 {
		sorted := slices.Sorted(slices.Values(draws))
		m := middle(sorted)
		sd := (m.High - m.Low) / 2 / usage.Normal80
		noise := l.noise()
		part := sd * sd / max(sd*sd+noise*noise, 1e-12)
		seen := l.seen()
		for i := range draws {
			draws[i] = (1-part)*draws[i] + part*(seen+noise*random.NormFloat64())
		}
	}
	return l.outlived(draws, random)
}

// goes reports whether the stage has tasks that wait or run.
func (l Leg) goes() bool { return l.Waiting+len(l.Running) > 0 }

// told reports whether something tells how long each called stage that has work goes on.
func (j Journey) told() bool {
	return !slices.ContainsFunc(j.Called, func(l Leg) bool {
		return l.goes() && l.Done == 0 && l.Pace.Attempts == 0 && !l.Mean.Known() && !l.Whole.Known()
	})
}

// noise is how far the mean of the tasks that are done lies from that of many with their inputs, in the logarithm.
func (l Leg) noise() float64 { return cmp.Or(l.Own, l.Task) / math.Sqrt(float64(l.Done)) }

// seen is the logarithm of what tasks that are left take in the mean, by those that are done.
func (l Leg) seen() float64 {
	mean := math.Log(l.Busy / float64(l.Done))
	if l.Relative > 0 {
		mean += math.Log(l.Relative)
	}
	return mean
}

// outlived draws again from logarithms of means, each as often as attempts would have run for so long, and returns the
// means.
func (l Leg) outlived(draws []float64, random *rand.Rand) []float64 {
	weights, sum := make([]float64, len(draws)), 0.0
	for i, mean := range draws {
		weights[i] = 1
		for _, one := range l.Running[:min(len(l.Running), mostAges)] {
			spread := l.Task
			switch {
			case one.Relative > 0:
				spread = cmp.Or(l.Own, l.Task)
			case one.Lasts.Median > 0:
				continue // how long it takes tells nothing of those with another input
			}
			// A part of what a small one takes is the same for all.
			age := one.Age / max(one.Relative, 1)
			weights[i] *= max(1-below(math.Log(age)-mean, spread), leastSurvival)
		}
		sum += weights[i]
	}
	again, at, i := make([]float64, len(draws)), random.Float64(), 0
	passed := weights[0]
	for k := range again { // systematic resampling
		target := (float64(k) + at) / float64(len(again)) * sum
		for passed < target && i < len(draws)-1 {
			i++
			passed += weights[i]
		}
		again[k] = math.Exp(draws[i])
	}
	random.Shuffle(len(again), func(a, b int) { again[a], again[b] = again[b], again[a] })
	return again
}

// mostAges is how many attempts that run say how long they have: those that started together say about the same.
// leastSurvival keeps a draw that they have outlived by far from being impossible: all may be.
const (
	mostAges      = 8
	leastSurvival = 1e-3
)

// below is the probability that a task takes less than exp(x) times the mean, where logarithms lie so far from it. The
// mean of a log-normal distribution is exp(s^2/2) times its median.
func below(x, spread float64) float64 {
	return math.Erfc(-(x/max(spread, 1e-6)+spread/2)/math.Sqrt2) / 2
}

// drawn is a task of those that take mean seconds in the mean.
func drawn(mean, spread, normal float64) float64 { return mean * math.Exp(spread*(normal-spread/2)) }

// drawn is one of the stage's.
func (l Leg) drawn(mean, normal float64) float64 { return drawn(mean, l.Task, normal) }

// rest draws in how many seconds the stage is done, where tasks take mean seconds in the mean, and what that costs.
func (l Leg) rest(mean float64, with map[string]float64, random *rand.Rand) (seconds, dollars float64) {
	if !l.goes() {
		return 0, 0
	}
	if !(mean > 0) {
		return max(0, l.Whole.Draw(with, random)-l.Since), l.Price
	}
	running := make([]float64, len(l.Running))
	for i, one := range l.Running {
		running[i] = l.goesOn(one, mean, random)
		dollars += (running[i] + one.Age) * l.Rate
	}
	slots := l.slots(random)
	seconds, work := l.schedule(running, mean*cmp.Or(l.Smaller, 1), slots, random)
	dollars += work * l.Rate
	if len(l.Besides) > 0 {
		explained := l.Busy
		for _, one := range l.Running {
			explained += one.Age
		}
		seconds += max(0, l.Besides[random.IntN(len(l.Besides))]-max(0, l.Since-explained/max(1, slots)))
	}
	return seconds, dollars
}

// goesOn draws for how long an attempt runs on: as those do that take longer, and as its own progress says.
func (l Leg) goesOn(one Going, mean float64, random *rand.Rand) float64 {
	lasts := l.of(one, mean)
	left := outlives(one.Age, lasts, random)
	if !(one.Told.Now.Mean > 0) {
		return left
	}
	part, said := lasts.Heeds(one.Told, one.Age), math.Log1p(one.Told.Now.Variation*one.Told.Now.Variation)
	told := one.Told.Now.Mean * math.Exp(math.Sqrt(said)*random.NormFloat64()-said/2)
	if l.Pace.Attempts > 0 { // what tasks take is known by that alone
		part = 1
	}
	return math.Pow(left, 1-part) * math.Pow(told, part)
}

// of is how long an attempt that runs takes, where tasks that are left take mean. Its own input says so by the tasks of
// all runs, and beside how long those of this run take: each counts as the inverse of its variance. A run whose tasks
// are done in part knows how long the others take; one that has just begun has only the inputs.
func (l Leg) of(one Going, mean float64) memory.Lasting {
	usual := memory.Lasting{Median: mean * math.Exp(-l.Task*l.Task/2), Spread: l.Task}
	switch {
	case !(one.Lasts.Median > 0):
		return usual
	case !(one.Relative > 0):
		return one.Lasts
	}
	own := cmp.Or(l.Own, l.Task)
	spread := one.Lasts.Spread * one.Lasts.Spread
	part := spread / max(spread+l.doubt*l.doubt, 1e-12)
	return memory.Lasting{
		Median: math.Pow(mean*one.Relative*math.Exp(-own*own/2), part) * math.Pow(one.Lasts.Median, 1-part),
		Spread: part*own + (1-part)*one.Lasts.Spread,
	}
}

// scatter is the standard deviation of the logarithms; 0 of none.
func scatter(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	m := middle(slices.Sorted(slices.Values(values)))
	return math.Log(m.High/m.Low) / 2 / usage.Normal80
}

// outlives draws for how long an attempt goes on that has lasted for so long.
func outlives(age float64, lasts memory.Lasting, random *rand.Rand) float64 {
	mean, passed := lasts.Median*math.Exp(lasts.Spread*lasts.Spread/2), 0.0
	if age > 0 {
		passed = below(math.Log(age/mean), lasts.Spread)
	}
	if passed > 1-1e-6 { // it has outlived all: nothing says for how long it goes on
		return age * random.Float64()
	}
	u := passed + (1-passed)*random.Float64()
	return max(0, drawn(mean, lasts.Spread, math.Sqrt2*math.Erfinv(2*min(u, 1-1e-12)-1))-age)
}
