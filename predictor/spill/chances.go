package spill

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/makespan"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Scatter is how far the run times of a backlog's tasks lie from what they take in the mean, and how long what runs
// now goes on. The zero value knows of no attempt.
type Scatter struct {
	// Logs are the logarithms of run times of attempts that ended, relative to what their inputs let expect. Where they
	// vary more than what waits because of what is known of it, they are of no use.
	Logs []float64
	// Inputs is the standard deviation of the logarithms of what the inputs of the tasks that wait let expect.
	Inputs float64
	// AtPool and AtVenue are for how many seconds the attempts that run at the pool and at functions go on in the mean.
	AtPool, AtVenue []float64
	// PoolOnly is how many tasks wait besides that functions do not take.
	PoolOnly int
	// Oldest is for how many seconds the oldest attempt has run where none has ended yet. Doubt is how well their mean is
	// known by the progress of those that run: the standard deviation of its logarithm; 0 where nobody tells.
	Oldest, Doubt float64
	// Seed makes the same values give the same chances, and close values close ones.
	Seed uint64
}

// spreadUnseen is how far what tasks take that nobody has seen is known: to a factor of e, two times in three.
const spreadUnseen = 1.0

// How often a backlog is drawn: so often that it may be late in a handful of the worlds, which counts them to within
// half. Where it is late in none of the first, by which one in a thousand is misled, it is drawn no further.
const (
	leastWorlds, mostWorlds = 128, 1024
	lateWorlds              = 8
	misled                  = 1e-3
)

// mostDrawn is how many tasks are drawn one by one, and on how many slots: of more tasks the lengths of all before the
// last even out, and of more slots each stands for several, of which the last to end counts.
const mostDrawn = 64

// chances are how probable it is that a backlog is done in time, by how many functions work on it. Run times are drawn
// from those that were measured, and tasks are scheduled one by one, as queues do. What [Offer.Duration] says, the sum
// of mean times divided by the slots, is passed every other time, and by far where few tasks are left or some are long.
//
// Each draw is a world with a mean of its own: that of n measured times, whose logarithms vary by s, is off by
// s/sqrt(n) times a Student t of n + 1 degrees of freedom. A task is a measured one, smoothed with a normal kernel and
// shrunk such that they vary by s again (Silverman and Young, The bootstrap: to smooth or not to smooth?, 1987,
// https://doi.org/10.1093/biomet/74.3.469): the longest that was seen is not the longest that there is.
//
// Of a stage of which no attempt has ended, one that has run for a seconds takes longer than x with the probability a/x
// as far as its age tells: nothing says of which order its time is.
type chances struct {
	*drawn
	run   Waiting
	asked float64         // the probability that is asked for
	metAt map[int]float64 // in which part of the worlds, as far as they were drawn
}

// drawn is when a backlog is done in each world, by how many functions work on it. All runs whose tasks wait share it:
// their tasks are in one queue.
type drawn struct {
	Backlog
	spread   float64   // standard deviation of the logarithms of tasks that are alike
	tasks    []float64 // how long tasks are, evenly probable, sorted; one is 1 in the mean; nil before any is drawn
	variance float64   // of tasks
	slots    makespan.Slots
	ends     map[int][]float64 // of the worlds that were drawn, by the number of functions
}

// draw prepares to draw when a backlog is done.
func (b Backlog) draw() *drawn {
	d := &drawn{Backlog: b, ends: map[int][]float64{}}
	_, square := d.moments()
	usual := usage.UsualScatterTimes * usage.UsualScatter * usage.UsualScatter
	d.spread = math.Sqrt((square + usual) / (float64(len(b.Scatter.Logs)) + usage.UsualScatterTimes))
	return d
}

// moments are the mean of the logarithms of run times, and the sum of the squares of what they differ from it.
func (d *drawn) moments() (centre, square float64) {
	for _, log := range d.Scatter.Logs {
		centre += log / float64(len(d.Scatter.Logs))
	}
	for _, log := range d.Scatter.Logs {
		square += (log - centre) * (log - centre)
	}
	return centre, square
}

// chances are those of one of the runs.
func (d *drawn) chances(run Waiting, asked float64) *chances {
	c := &chances{drawn: d, run: run, asked: asked, metAt: map[int]float64{}}
	if c.clear() {
		c.metAt[0] = 1
	}
	return c
}

// hastened are those of the run where what follows is as fast as it can be.
func (c *chances) hastened() *chances {
	run := c.run
	run.After = []float64{run.Hastened}
	return c.drawn.chances(run, c.asked)
}

// prepare smooths the times that were measured.
func (d *drawn) prepare() {
	logs, n := d.Scatter.Logs, float64(len(d.Scatter.Logs))
	centre, square := d.moments()
	kernel, shrunk := d.spread, 0.0
	if square > 0 { // Silverman, Density estimation, 1986, 3.28: 1.06 s n^(-1/5)
		width := 1.06 * math.Pow(n, -0.2)
		shrunk = d.spread / math.Sqrt(square/n) / math.Hypot(1, width)
		kernel = d.spread * width / math.Hypot(1, width)
	}
	if shrunk == 0 {
		logs = []float64{centre}
	}
	kernel = math.Hypot(kernel, d.Scatter.Inputs)
	each, sum := mostQuantiles/len(logs), 0.0
	for i := range each {
		smoothed := kernel * math.Sqrt2 * math.Erfinv((2*float64(i)+1)/float64(each)-1)
		for _, log := range logs {
			task := math.Exp(min(shrunk*(log-centre)+smoothed, largest))
			d.tasks, sum = append(d.tasks, task), sum+task
		}
	}
	for i := range d.tasks {
		d.tasks[i] *= float64(len(d.tasks)) / sum
		d.variance += (d.tasks[i] - 1) * (d.tasks[i] - 1) / float64(len(d.tasks))
	}
	slices.Sort(d.tasks)
}

const (
	// mostQuantiles is by how many quantiles the times of tasks are told.
	mostQuantiles = 1024
	// largest keeps what is drawn a finite number.
	largest = 20
	// clearly is how many standard deviations are passed by nothing that is worth a thought, where so many times are known
	// that their mean is off by as good as a normal variable: by four once in some thousands.
	clearly     = 4
	leastToTell = 16
)

// clear reports whether the pool is done in time whatever happens, so that nothing needs to be drawn: list scheduling
// takes no longer than the work divided by the slots and the longest task (Graham, 1969).
func (c *chances) clear() bool {
	n := float64(len(c.Scatter.Logs))
	if n < leastToTell || c.Slots == 0 || c.Wait >= NoPool {
		return false
	}
	square := c.spread*c.spread + c.Scatter.Inputs*c.Scatter.Inputs
	tasks := c.Tasks + float64(c.Scatter.PoolOnly)
	mean, longest := c.Wall*math.Exp(clearly*c.spread/math.Sqrt(n)), math.Exp(clearly*math.Sqrt(square))
	work := (tasks + clearly*math.Sqrt(tasks*math.Expm1(square))) * mean
	running, after := 0.0, 0.0
	for _, left := range c.Scatter.AtPool {
		running = max(running, left*longest)
	}
	for _, left := range c.Scatter.AtVenue {
		running = max(running, left*longest)
	}
	for _, seconds := range c.run.After {
		after = max(after, seconds)
	}
	return c.Wait+running+work/float64(c.Slots)+mean*longest+after <= c.run.Due
}

// met is in which part of the worlds n function slots end the backlog in time. It is exact only where it decides: what
// misses more than is asked is drawn no further, nor what misses none for long.
func (c *chances) met(n int) float64 {
	if known, drawn := c.metAt[n]; drawn {
		return known
	}
	worlds := min(max(math.Ceil(lateWorlds/(1-c.asked)), leastWorlds), mostWorlds)
	late, first := (1-c.asked)*worlds, math.Log(misled)/math.Log(c.asked)
	missed, world := 0.0, 0.0
	for ; world < worlds && (missed > 0 || world < first) && (missed <= late || world < leastWorlds); world++ {
		if !c.inTime(int(world), n) {
			missed++
		}
	}
	c.metAt[n] = 1 - missed/world
	return c.metAt[n]
}

// least is the smallest n that ends the backlog in time with the probability that is asked for. Where none does,
// because a single task may take too long, it is the smallest that does so in the asked part of those cases in which
// the most do: what no number of functions changes is no reason to have more.
func (c *chances) least() (n int, found bool) {
	if c.met(0) >= c.asked {
		return 0, true
	}
	found = c.met(c.Most) >= c.asked
	enough := c.asked
	if !found {
		enough *= max(c.met(0), c.met(c.Most))
	}
	if c.met(0) >= enough {
		return 0, found
	}
	below, above := 0, c.Most
	for above-below > 1 {
		if middle := (below + above) / 2; c.met(middle) >= enough {
			above = middle
		} else {
			below = middle
		}
	}
	return above, found
}

// inTime draws whether the run meets its deadline with n function slots. The same world draws the same of all n.
func (c *chances) inTime(world, n int) bool {
	after := 0.0
	if len(c.run.After) > 0 { // a stream of its own, as the end of the backlog is drawn for all runs
		random := rand.New(rand.NewPCG(c.Scatter.Seed, ^uint64(world)))
		after = max(0, c.run.After[random.IntN(len(c.run.After))])
	}
	return c.end(world, n)+after <= c.run.Due
}

// end is in how many seconds the backlog is done in a world; worlds are asked for in their order.
func (d *drawn) end(world, n int) float64 {
	for len(d.ends[n]) <= world {
		next := uint64(len(d.ends[n]))
		d.ends[n] = append(d.ends[n], d.finish(n, rand.New(rand.NewPCG(d.Scatter.Seed, next))))
	}
	return d.ends[n][world]
}

// finish draws in how many seconds the backlog is done.
func (d *drawn) finish(n int, random *rand.Rand) (end float64) {
	if d.tasks == nil {
		d.prepare()
	}
	longer := d.mean(random)
	scale := max(1, float64(d.Slots+n)/mostDrawn)
	running := len(d.Scatter.AtVenue)

	d.slots.Reset()
	end = d.busy(d.Scatter.AtPool, len(d.Scatter.AtPool), makespan.Slot{Takes: d.Wall * longer}, scale, random)
	if d.Wait < NoPool {
		d.add(d.Slots-len(d.Scatter.AtPool), makespan.Slot{Free: d.Wait, Takes: d.Wall * longer}, scale)
	}
	if d.Scatter.PoolOnly > 0 {
		if d.slots.Len() == 0 {
			return math.Inf(1)
		}
		end = max(end, d.serve(float64(d.Scatter.PoolOnly), scale, random))
	}
	warm := makespan.Slot{Takes: d.Function * longer}
	end = max(end, d.busy(d.Scatter.AtVenue, n, warm, scale, random))
	d.add(min(d.Held, n)-running, warm, scale)
	d.add(n-max(d.Held, running), makespan.Slot{Free: d.Cold, Takes: warm.Takes}, scale)
	if d.slots.Len() == 0 {
		return math.Inf(1)
	}
	return max(end, d.serve(d.Tasks, scale, random))
}

// busy draws when the attempts end that run, and adds the slots of n of them, one for scale.
func (d *drawn) busy(left []float64, n int, slot makespan.Slot, scale float64, random *rand.Rand) (end float64) {
	n = min(n, len(left))
	scale = min(scale, float64(max(n, 1))) // at least one stands for any
	next := 0.5                            // the slot in the middle of those it stands for
	for i, seconds := range left {
		slot.Free = seconds * d.task(random, 1)
		end = max(end, slot.Free)
		if float64(i) >= next*scale-0.5 && i < n {
			d.slots.Add(1, slot)
			next++
		}
	}
	return end
}

// add adds so many slots, one for scale, but at least one of any.
func (d *drawn) add(n int, slot makespan.Slot, scale float64) {
	if n > 0 {
		d.slots.Add(max(1, int(math.Round(float64(n)/scale))), slot)
	}
}

// serve schedules tasks on slots that each stand for scale of them, and returns when the last is done.
func (d *drawn) serve(tasks, scale float64, random *rand.Rand) (end float64) {
	left := int(math.Ceil(tasks / scale))
	if bulk := float64(left - mostDrawn); bulk > 0 {
		left = mostDrawn
		d.slots.Fill(max(0, bulk+math.Sqrt(bulk*d.variance/scale)*random.NormFloat64()))
	}
	for ; left > 0; left-- {
		of := 1.0
		if left <= d.slots.Len() { // the last that the slot takes
			of = scale
		}
		end = max(end, d.slots.Take(d.task(random, of)))
	}
	return end
}

// mean draws how much longer tasks take in the mean than was expected.
func (d *drawn) mean(random *rand.Rand) float64 {
	n := float64(len(d.Scatter.Logs))
	if n > 0 {
		freedom := n + 1 // Wilson and Hilferty, The distribution of chi-square, 1931
		cube := 1 - 2/(9*freedom) + math.Sqrt(2/(9*freedom))*random.NormFloat64()
		t := random.NormFloat64() / math.Sqrt(max(cube*cube*cube, 1e-3))
		return math.Exp(min(max(d.spread*t/math.Sqrt(n), -largest), largest))
	}
	longer := math.Exp(cmp.Or(d.Scatter.Doubt, spreadUnseen) * random.NormFloat64())
	if outlived := d.Scatter.Oldest / d.Wall; longer < outlived {
		longer = outlived / (1 - random.Float64())
	}
	return min(longer, fact.MaxWall.Seconds()/d.Wall)
}

// task draws how long a task is; of so many the longest.
func (d *drawn) task(random *rand.Rand, of float64) float64 {
	rank := random.Float64()
	if of > 1 { // of k the longest has the k-th root of a uniform number as its rank
		rank = math.Pow(rank, 1/of)
	}
	return d.tasks[min(int(rank*float64(len(d.tasks))), len(d.tasks)-1)]
}
