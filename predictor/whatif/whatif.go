package whatif

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Job is what a run has left, and what is asked of it. Times are in seconds.
type Job struct {
	// Run and Pipeline say what of; Run is empty where none has started.
	Run, Pipeline string
	// Basis says in a few words what it rests on.
	Basis string
	// Missing says what is not known; empty where enough is. Unknown are the stages that nothing is known of.
	Missing string
	Unknown []string
	Stages  []Stage
	// Elapsed is for how long the run has gone on, Spent what it has cost; After is how long it goes on once the last
	// stage is done.
	Elapsed float64
	Spent   quantity.Money
	After   float64
	Goal    fact.Goal
	// ValueOfTime is what an hour of earlier finish is worth where the goal does not say, by which classes of devices are
	// compared; where it is 0 the cheapest is the best.
	ValueOfTime quantity.Money
	// Measured is what a run that has ended took and cost; nil of others.
	Measured *Point
	At       time.Time
}

// Answer is the frontier of a run, and what is read off it.
type Answer struct {
	Run      string    `json:"run,omitempty"`
	Pipeline string    `json:"pipeline"`
	Goal     fact.Goal `json:"goal"`
	At       time.Time `json:"at"`
	// Elapsed is for how long the run had gone on, in seconds, and Spent what it had cost by then, in US dollars. The
	// times and costs of points are those of the whole run, with these.
	Elapsed float64 `json:"elapsed_seconds"`
	Spent   float64 `json:"spent_usd"`
	// Known is false where the run has no frontier yet; Why says what is missing, and Unknown are the stages of which
	// nothing is known.
	Known   bool     `json:"known"`
	Why     string   `json:"why,omitempty"`
	Unknown []string `json:"unknown_stages,omitempty"`
	// Basis says in a few words what it rests on.
	Basis string `json:"basis,omitempty"`
	// Present is what the run comes to as things are decided now; of a run that has ended, what was measured.
	Present *Point `json:"present,omitempty"`
	// Points are the frontier, by rising time and falling cost, thinned to about sixty: from the cheapest of what is
	// nearly the fastest to the fastest of what nearly costs least (within a fiftieth).
	Points []Point `json:"points"`
	// Faster is the cheapest point that takes at most half of the time that is left, Cheaper the fastest that costs at
	// most half of what is yet to be spent, both within the ends of Points; nil where there is none.
	Faster  *Point `json:"twice_as_fast,omitempty"`
	Cheaper *Point `json:"half_the_cost,omitempty"`
	// Promise is what becomes of the goal with the classes of GPUs that stages ask for; nil without a deadline and a
	// budget. Elsewhere is what would become of it with others, where only these meet it; nil otherwise.
	Promise   *Promise `json:"promise,omitempty"`
	Elsewhere *Promise `json:"promise_elsewhere,omitempty"`
	// Devices compare the classes of GPUs for each stage that could have others than it has; none for the other stages.
	Devices []Devices `json:"devices,omitempty"`
	// Sentences say it to people: what twice as fast would cost, what half the money would take, whether the goal can be
	// met, and which class of GPU would be best where that is another one.
	Sentences []string `json:"sentences"`
}

// Point is one way to finish the run.
type Point struct {
	// Seconds is from the run's start to its end, the middle of what may come, and Cost what the run costs altogether, in
	// US dollars.
	Seconds float64 `json:"seconds"`
	Cost    float64 `json:"cost_usd"`
	// InTime is the probability that it ends within the deadline of the goal; 0 without one. Of what was measured it is 1
	// or 0.
	InTime float64 `json:"in_time_probability,omitempty"`
	// Stages are what each stage that is left gets, and Gets says it to people: see the function Gets.
	Stages []Given `json:"stages"`
	Gets   string  `json:"gets"`
}

// Promise is what becomes of a goal.
type Promise struct {
	// Met says that Plan keeps the deadline with the probability that is asked, and the budget.
	Met bool `json:"met"`
	// Plan is the cheapest that meets the deadline, or the fastest that keeps the budget where only that is asked; of a
	// goal that cannot be met, the plan that comes nearest. Probability is that with which it is in time.
	Plan        Point   `json:"plan"`
	Probability float64 `json:"probability"`
	// LeastDeadline is the earliest that could be promised with the probability and within the budget, in seconds from the
	// run's start, LeastBudget the least that meets the deadline, in US dollars; 0 where none would.
	LeastDeadline float64 `json:"least_deadline_seconds,omitempty"`
	LeastBudget   float64 `json:"least_budget_usd,omitempty"`
}

// mostPoints is about how many points are told.
const mostPoints = 60

// step is stages that go on beside each other, as one stage of the frontier.
type step struct {
	ways []together
}

// together is one way for each of its stages.
type together struct {
	frontier.Option
	given []Given
}

// Of computes the frontier of what is left and reads it off.
func Of(job Job) Answer {
	a := Answer{
		Run: job.Run, Pipeline: job.Pipeline, Goal: job.Goal, At: job.At, Elapsed: job.Elapsed, Spent: job.Spent.USD(),
		Basis: job.Basis, Why: job.Missing, Unknown: job.Unknown, Points: []Point{}, Sentences: []string{},
	}
	if job.Measured != nil {
		a.Present = new(job.Measured.with(job.Measured.Stages))
		if a.Present.Seconds <= job.Goal.Deadline.Seconds() {
			a.Present.InTime = 1
		}
	}
	if a.Why != "" {
		a.say()
		return a
	}
	r := job.read()
	whole, err := frontier.New(frontier.Job{Stages: r.options})
	if err != nil {
		a.Why = "a stage has no way to run: " + err.Error()
		a.say()
		return a
	}
	r.Frontier = whole
	a.Known = true
	if a.Present == nil {
		present := r.present()
		a.Present = &present
	}
	r.tell(&a)
	a.say()
	return a
}

// reading is a frontier of a run with what its options stand for.
type reading struct {
	frontier.Frontier
	job     Job
	options [][]frontier.Option
	steps   []step // of each stage of the frontier
	beside  [][]Stage
}

// read makes the job of the frontier: each group of stages that overlap is one stage of it, and so is the time between
// two groups.
func (job Job) read() *reading {
	r := &reading{job: job}
	add := func(ways []together, stages []Stage) {
		options := make([]frontier.Option, len(ways))
		for i, way := range ways {
			options[i] = way.Option
		}
		r.options, r.steps = append(r.options, options), append(r.steps, step{ways})
		r.beside = append(r.beside, stages)
	}
	ended := 0.0
	job.settle()
	for _, stages := range overlapping(job.Stages) {
		if gap := stages[0].Start - ended; gap > 0 {
			add([]together{{Option: frontier.Option{Seconds: gap}}}, nil)
		}
		for _, stage := range stages {
			ended = max(ended, stage.End)
		}
		add(combined(stages), stages)
	}
	if job.After > 0 {
		add([]together{{Option: frontier.Option{Seconds: job.After}}}, nil)
	}
	return r
}

// leastPart is the part of a run below which it does not matter what a stage gets: points would differ by the slot that
// a task of a tenth of a second has.
const leastPart = 0.01

// settle leaves stages that come to almost nothing of the run with what they get at present.
func (job *Job) settle() {
	job.Stages = slices.Clone(job.Stages)
	seconds, cost := 0.0, 0.0
	present := make([]Given, len(job.Stages))
	for i, stage := range job.Stages {
		comes, possible := stage.With(stage.Present)
		if !possible {
			return
		}
		present[i] = comes
		seconds, cost = seconds+comes.Seconds, cost+comes.Cost
	}
	for i := range job.Stages {
		if present[i].Seconds <= leastPart*seconds && present[i].Cost <= leastPart*cost {
			job.Stages[i].settled = true
		}
	}
}

// overlapping groups stages by whether they go on beside each other, in the order in which they begin.
func overlapping(stages []Stage) (groups [][]Stage) {
	stages = slices.Clone(stages)
	slices.SortStableFunc(stages, func(a, b Stage) int { return cmp.Compare(a.Start, b.Start) })
	end := math.Inf(-1)
	for _, stage := range stages {
		if len(groups) > 0 && stage.Start < end {
			groups[len(groups)-1] = append(groups[len(groups)-1], stage)
		} else {
			groups = append(groups, []Stage{stage})
		}
		end = max(end, stage.End)
	}
	for _, group := range groups {
		divide(group)
	}
	return groups
}

// divide divides the room among stages that go on beside each other by the work that they have, so that they end at
// about the same time; each has one slot of each at least.
func divide(group []Stage) {
	if len(group) < 2 {
		return
	}
	whole := 0.0
	for _, stage := range group {
		whole += stage.work()
	}
	for i := range group {
		stage := &group[i]
		part := stage.work() / max(whole, 1e-12)
		stage.Rooms, stage.Classes = slices.Clone(stage.Rooms), slices.Clone(stage.Classes)
		stage.Devices = slices.Clone(stage.Devices)
		for k := range stage.Devices {
			stage.Devices[k].Slots = max(1, int(math.Round(part*float64(stage.Devices[k].Slots))))
		}
		for k := range stage.Rooms {
			stage.Rooms[k].Slots = max(1, int(math.Round(part*float64(stage.Rooms[k].Slots))))
		}
		for k := range stage.Classes {
			stage.Classes[k].Slots = max(1, int(math.Round(part*float64(stage.Classes[k].Slots))))
		}
	}
}

// work is how many seconds all tasks of its queue take together where they take least.
func (s Stage) work() float64 {
	least := math.Inf(1)
	for _, room := range s.Rooms {
		least = min(least, room.Seconds)
	}
	for _, class := range s.Classes {
		least = min(least, class.Seconds)
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return float64(s.waiting()) * least
}

// combined are the ways of stages that go on beside each other: they are done with the last of them and pay for all.
// The earliest begins at once, each other as much later as it did in the run that says so.
func combined(stages []Stage) (ways []together) {
	for i, stage := range stages {
		later := stage.Start - stages[0].Start
		var next []together
		for _, g := range stage.options() {
			option := g.option()
			option.Seconds += later
			if i == 0 {
				next = append(next, together{option, []Given{g}})
				continue
			}
			for _, way := range ways {
				next = append(next, way.with(option, g))
			}
		}
		ways = best(next)
	}
	return ways
}

// with adds a stage that goes on beside those of t.
func (t together) with(option frontier.Option, g Given) together {
	if t.Seconds > option.Seconds {
		option.Seconds, option.Spread = t.Seconds, t.Spread
	}
	option.Cost = option.Cost.Plus(t.Cost)
	return together{option, append(slices.Clip(t.given), g)}
}

func best(ways []together) (kept []together) {
	slices.SortStableFunc(ways, func(a, b together) int {
		return cmp.Or(cmp.Compare(a.Seconds, b.Seconds), cmp.Compare(a.Cost, b.Cost))
	})
	for _, way := range ways {
		if len(kept) == 0 || way.Cost < kept[len(kept)-1].Cost {
			kept = append(kept, way)
		}
	}
	return kept
}

// point is a point of the frontier as it is told.
func (r *reading) point(p frontier.Point) Point {
	told := Point{
		Seconds: r.job.Elapsed + p.Seconds, Cost: r.job.Spent.Plus(p.Cost).USD(), InTime: r.inTime(p),
	}
	stages := []Given{}
	for stage, option := range p.Options {
		stages = append(stages, r.steps[stage].ways[option].given...)
	}
	return told.with(stages)
}

// with is p where stages get this.
func (p Point) with(stages []Given) Point {
	p.Stages, p.Gets = stages, Gets(stages)
	return p
}

// inTime is the probability that a point is in time.
func (r *reading) inTime(p frontier.Point) float64 {
	if r.job.Goal.Deadline <= 0 {
		return 0
	}
	return r.Within(p, r.job.Goal.Deadline.Seconds()-r.job.Elapsed)
}

// present is what the run comes to with what each stage gets now. It is no point of the frontier, or one by chance.
func (r *reading) present() Point {
	told := Point{Seconds: r.job.Elapsed, Cost: r.job.Spent.USD()}
	given := []Given{}
	one := frontier.Point{Options: make([]int, len(r.options))}
	options := make([][]frontier.Option, len(r.options))
	for i, stages := range r.beside {
		if stages == nil {
			options[i] = r.options[i]
		} else {
			way := together{}
			for k, stage := range stages {
				g, possible := stage.With(stage.Present)
				if !possible { // nobody has decided for it yet: the first of what there is
					g = stage.options()[0]
				}
				option := g.option()
				option.Seconds += stage.Start - stages[0].Start
				if k == 0 {
					way = together{option, []Given{g}}
				} else {
					way = way.with(option, g)
				}
			}
			options[i] = []frontier.Option{way.Option}
			given = append(given, way.given...)
		}
		one.Seconds += options[i][0].Seconds
		one.Cost = one.Cost.Plus(options[i][0].Cost)
	}
	told.Seconds += one.Seconds
	told.Cost = r.job.Spent.Plus(one.Cost).USD()
	if only, err := frontier.New(frontier.Job{Stages: options}); err == nil {
		told.InTime = (&reading{Frontier: only, job: r.job}).inTime(only.At(0))
	}
	return told.with(given)
}

// tell reads the frontier off into a.
func (r *reading) tell(a *Answer) {
	a.Points = r.points()
	left, toSpend := a.Present.Seconds-r.job.Elapsed, quantity.USD.Times(a.Present.Cost)-r.job.Spent
	first, last := r.ends()
	faster := sort.Search(r.Len(), func(i int) bool {
		seconds, _ := r.Pair(i)
		return !(seconds <= left/2)
	}) - 1
	if faster >= 0 && left >= leastLeft {
		a.Faster = new(r.point(r.At(min(faster, last))))
	}
	if cheaper := r.from(toSpend / 2); cheaper < r.Len() && toSpend > 0 {
		a.Cheaper = new(r.point(r.At(max(cheaper, first))))
	}
	a.promise(r)
	for _, stages := range r.beside {
		for _, stage := range stages {
			if one, some := stage.compare(r.job.Goal.Minimise, r.job.ValueOfTime); some {
				a.Devices = append(a.Devices, one)
			}
		}
	}
}

// promise says what becomes of the goal with what stages ask for: that is what an engine can give them.
func (a *Answer) promise(r *reading) {
	a.Promise = r.promise()
	asked := r.job
	asked.Stages = slices.Clone(asked.Stages)
	others := false
	for i := range asked.Stages {
		others = others || len(asked.Stages[i].Devices) > 0
		asked.Stages[i].Devices = nil
	}
	if a.Promise == nil || !others {
		return
	}
	own := asked.read()
	whole, err := frontier.New(frontier.Job{Stages: own.options})
	if err != nil {
		return
	}
	own.Frontier = whole
	with := a.Promise
	if a.Promise = own.promise(); with.Met && !a.Promise.Met {
		a.Elsewhere = with
	}
}

// nearly is within which part two times, or two costs, are the same: what is a hundredth cheaper and takes three times
// as long is nobody's choice.
const nearly = 0.02

// ends are where the frontier begins and ends that is told: the cheapest of the points that are nearly the fastest, and
// the fastest of those that nearly cost least.
func (r *reading) ends() (first, last int) {
	seconds, _ := r.Pair(0)
	_, cost := r.Pair(r.Len() - 1)
	seconds, most := seconds*(1+nearly), cost.Times(1+nearly)
	last = r.from(most)
	for first+1 < last {
		if next, _ := r.Pair(first + 1); next > seconds {
			break
		}
		first++
	}
	return first, last
}

// from is the first point that costs at most so much; Len where none does.
func (r *reading) from(most quantity.Money) int {
	return sort.Search(r.Len(), func(i int) bool {
		_, cost := r.Pair(i)
		return cost <= most
	})
}

// points are those of the frontier that are told, none nearly the same as the one before.
func (r *reading) points() (points []Point) {
	begin, end := r.ends()
	first, dearest := r.Pair(begin)
	last, cheapest := r.Pair(end)
	along := func(i int) float64 {
		seconds, cost := r.Pair(i)
		return (seconds-first)/max(last-first, 1e-12) + float64(dearest-cost)/max(float64(dearest-cheapest), 1)
	}
	next := 0.0
	for i := begin; i <= end; i++ {
		if i == end || along(i) >= next {
			points = append(points, r.point(r.At(i)))
			next = (math.Floor(along(i)*(mostPoints-1)/2) + 1) * 2 / (mostPoints - 1)
		}
	}
	return points
}

// promise says what becomes of the goal.
func (r *reading) promise() *Promise {
	goal := r.job.Goal
	if goal.Deadline <= 0 && goal.Budget <= 0 {
		return nil
	}
	left, money := goal.Deadline.Seconds()-r.job.Elapsed, quantity.Money(math.MaxInt64)
	if goal.Budget > 0 {
		money = goal.Budget - r.job.Spent
	}
	confidence := goal.Asked()
	if goal.Deadline <= 0 {
		left, confidence = math.Inf(1), 0
	}
	var p Promise
	affordable, affords := r.Fastest(money)
	sure, probability, found := r.Sure(left, confidence)
	switch {
	case goal.Deadline <= 0 && affords:
		return &Promise{Met: true, Plan: r.point(affordable)}
	case goal.Deadline <= 0:
		cheapest := r.At(r.Len() - 1)
		return &Promise{Plan: r.point(cheapest), LeastBudget: r.job.Spent.Plus(cheapest.Cost).USD()}
	case found && sure.Cost <= money:
		p = Promise{Met: true, Plan: r.point(sure), Probability: probability}
		if goal.Minimise == fact.Latency && r.Within(affordable, left) >= probability {
			p = Promise{Met: true, Plan: r.point(affordable), Probability: r.Within(affordable, left)}
		}
		return &p
	case found: // for more money
		p.LeastBudget = r.job.Spent.Plus(sure.Cost).USD()
	}
	nearest := r.At(0)
	if affords {
		nearest = affordable
		earliest, first := math.Inf(1), r.from(money)
		for i := first; i < min(r.Len(), first+mostEarliest); i++ {
			earliest = min(earliest, r.Quantile(r.At(i), confidence))
		}
		p.LeastDeadline = r.job.Elapsed + earliest
	}
	p.Plan, p.Probability = r.point(nearest), r.inTime(nearest)
	return &p
}

// mostEarliest bounds how many points are asked for the earliest time that can be promised: those that are slower in
// the middle seldom are more certain by more than that.
const mostEarliest = 256
