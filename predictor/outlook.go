package predictor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/outlook"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Outlook returns what is expected of a run under goal, given what there is in snapshot, and what else could be had. It
// leaves s as it is.
//
// Chosen is what Decide would do on the next tick if goal were the goal in force. Present is what the last plan did: a
// State that only folds knows it from Obey. Both, and all alternatives, have the pool slots of the next tick, and the
// function slots that it gives to stages of other runs are not on offer.
func (s State) Outlook(run string, goal fact.Goal, snapshot plan.Snapshot) outlook.Outlook {
	out := outlook.Outlook{Run: run, Goal: fact.SaneGoal(goal), At: snapshot.Now, Alternatives: []outlook.Alternative{}}
	if s.memory == nil || s.memory.Runs[run] == nil || !s.memory.Runs[run].Known {
		out.Why = "no run " + run + " goes on whose start was seen"
		out.Feasible, out.Summary = out.Summarise()
		return out
	}
	m := s.memory.Copied()
	r := m.Runs[run]
	r.Goal = out.Goal
	now := fact.At(snapshot.Now)
	out.Elapsed, out.Spent = now.Since(r.Started), r.Spent.USD()
	d := begin(m, snapshot)
	d.allocate()
	d.rest(r).Tell(&out)
	out.Feasible, out.Summary = out.Summarise()
	return out
}

// rest gathers what is known of the rest of r. The decider has allocated what every stage gets.
func (d *decider) rest(r *memory.Run) outlook.Rest {
	left := outlook.Rest{Elapsed: d.now.Since(r.Started), Spent: r.Spent}
	_, left.Later = d.followed(r, r.LastStage())
	alike := len(d.memory.Alike(r))
	left.Runs = alike
	var unknown []string
	backlog, stuck, roomless := false, false, false
	works := d.worksOf(r)
	for _, w := range works {
		c, known := d.course(w, r.ID)
		if !known {
			unknown = append(unknown, w.stage.ID.Name)
			continue
		}
		left.Courses = append(left.Courses, c)
		roomless = roomless || c.Wait >= spill.NoPool && (c.PoolOnly > 0 || c.Chosen == 0 && c.Tasks > 0)
		backlog, stuck = backlog || c.Tasks+c.PoolOnly > 0, stuck || c.Stuck(c.Chosen)
	}
	left.Fits = d.room(left.Courses)
	if stuck {
		left.Missing = "no host has a valid lease, so nobody takes the tasks that wait for the pool"
		return left
	}
	if roomless {
		left.Missing = "no host has room for a task that waits for the pool"
		return left
	}
	if alike > 0 && len(unknown) == 0 && backlog {
		d.undecided(&left, r, works)
		return left
	}
	forecast, known := State{d.memory}.Forecast(r.ID, time.Unix(0, int64(d.now)))
	switch {
	case known && alike == 0 && r.Whole() && forecast.Cost == (fact.Interval{}):
		left.Missing = "no attempt has ended yet: what a task costs is not known"
	case known:
		left.Finish, left.Total, left.Runs, left.ByHistory = forecast.Finish, forecast.Cost, forecast.Runs, true
		for _, w := range works {
			if wall, free := forecast.Free[w.stage.ID]; free {
				if dearest := d.dearest(w, r, wall); d.unprice(&left, r, w.stage, dearest) {
					left.Total.High += dearest.USD()
				}
			}
		}
	case len(unknown) > 0:
		left.Missing = "no attempt of " + strings.Join(unknown, " and ") +
			" has ended yet: how long a task takes is not known"
	case d.memory.Pasts[r.Key()] == nil:
		left.Missing = "no earlier run of this pipeline has succeeded: nothing is known of " + following(r)
	case alike == 0:
		left.Missing = "no earlier run of this pipeline called the same stages first and reused as much: nothing is known " +
			"of " + following(r)
	case len(left.Courses) == 0:
		left.Missing = "it goes on for longer than every earlier run like it, and no task waits or runs now"
	}
	return left
}

// undecided prices the tasks that no function has taken yet, of stages whose courses are all known.
func (d *decider) undecided(left *outlook.Rest, r *memory.Run, works []*work) {
	for i := range left.Courses {
		c := &left.Courses[i]
		if c.Chosen > 0 || c.Class == 0 {
			continue
		}
		dearest := c.Bill(c.Tasks, 1, c.Highest).Times(c.Part)
		if d.unprice(left, r, works[i].stage, dearest) && works[i].queued[0] == 0 {
			c.Undecided = dearest
		}
	}
}

// unprice notes that tasks of r at a stage are counted as if they cost nothing, which is so while no function takes
// them, and reports whether functions may. That they cost nothing is known where the pool has taken some and what
// waits now is left to it.
func (d *decider) unprice(left *outlook.Rest, r *memory.Run, st *memory.Stage, dearest quantity.Money) bool {
	part := st.Shares[r.ID]
	if !d.functions.Enabled || d.policy.Static || part.Queued[0]+part.Further == 0 || dearest <= 0 {
		return false
	}
	if part.Done == 0 || part.Queued[0] == 0 {
		left.Unpriced = append(left.Unpriced, st.ID.Name)
	}
	return true
}

// dearest is what functions would take for the tasks of r that wait or are to come at a stage, where one takes wall
// seconds at the pool; 0 where functions cannot take them.
func (d *decider) dearest(w *work, r *memory.Run, wall float64) quantity.Money {
	demand := spill.Demand{
		Memory: d.functionMemory(w), Speed: w.stage.Model.Speed(), Cores: w.size.CPU.Cores(), Wall: wall, Longest: wall,
		Held: w.stage.Class, Device: w.size.GPU > 0 || w.size.DeviceClass != "",
	}
	class, refused := demand.Class(d.functions)
	if refused != "" {
		return 0
	}
	part := w.stage.Shares[r.ID]
	o := spill.Offer{Class: class, Venue: d.functions, Cold: d.functions.ColdStart.Seconds()}
	return o.Bill(float64(part.Queued[0]+part.Further), 1, wall*demand.Slowdown(class))
}

// following names what comes after the stages that r has called.
func following(r *memory.Run) string {
	if len(r.Stages) == 0 {
		return "its stages"
	}
	return "what follows " + r.LastStage()
}

// worksOf lists the stages at which tasks of r wait, are to come or run, in the order in which r called them.
func (d *decider) worksOf(r *memory.Run) []*work {
	var found []*work
	for _, id := range r.Stages {
		st := d.memory.Stages[id]
		if st == nil || st.Shares[r.ID] == nil {
			continue
		}
		part := st.Shares[r.ID]
		going := part.Queued[0]+part.Queued[1]+part.Further > 0 ||
			slices.ContainsFunc(d.attemptsOf(id), func(a memory.Attempt) bool { return a.Run == r.ID })
		i := slices.IndexFunc(d.works, func(w *work) bool { return w.stage == st })
		if !going && (i < 0 || !d.works[i].taken(part)) {
			continue
		}
		if i >= 0 {
			found = append(found, d.works[i])
			continue
		}
		w := d.newWork(st) // its tasks are only announced
		d.estimate(w)
		d.resize(w)
		found = append(found, w)
	}
	return found
}

// room tells whether the venue has room for so many slots of each course beside what stages of other runs get. What is
// held or chosen has room in any case.
func (d *decider) room(courses []outlook.Course) func([]int) bool {
	slots, cores := d.functions.Concurrency, d.functions.Cores
	for _, w := range d.works {
		if slices.ContainsFunc(courses, func(c outlook.Course) bool { return c.Stage == w.stage.ID }) {
			continue
		}
		slots -= w.functions
		cores -= busy(w.stage.Class) * quantity.Milli(w.functions)
	}
	return func(wanted []int) bool {
		free, spare, more, chosen, held := slots, cores, false, true, true
		for i, c := range courses {
			free -= wanted[i]
			spare -= busy(c.Class) * quantity.Milli(wanted[i])
			more = more || wanted[i] > 0
			chosen = chosen && wanted[i] == c.Chosen
			held = held && wanted[i] == c.Held
		}
		return !more || chosen || held || free >= 0 && (d.functions.Cores == 0 || spare >= 0)
	}
}

// course follows a stage of the run. known is false while nothing is known about how long a task takes.
func (d *decider) course(w *work, run string) (c outlook.Course, known bool) {
	st := w.stage
	if !w.taking.known {
		return outlook.Course{}, false
	}
	mean, variation := w.taking.mean, w.taking.of(1)
	by := st.Model.Duration()
	if by.Feature == usage.InputBytes && w.input() > 0 && !st.Model.WallFallen {
		variation = by.Variation() // what inputs explain is in the mean
	}
	o, refused, _ := d.offer(w)
	if refused != "" {
		o = spill.Offer{
			Tasks: float64(w.queued[0]), Slots: w.slots, Wall: w.wall, Wait: w.wait, Function: w.wall, Venue: d.functions,
		}
		for _, part := range st.Shares {
			o.Tasks += float64(part.Further)
		}
	}
	if len(d.hosts) > 0 {
		o.Slots = max(o.Slots, 1) // every stage with work has one
	}
	c = outlook.Course{
		Offer: o, Stage: st.ID, Held: st.Functions, PoolOnly: float64(w.queued[1]),
		Idle: max(0, o.Slots-w.running[fact.Pool]),
		Part: w.parts()[run], Variation: variation, Chosen: w.functions,
	}
	c.After, _ = d.followed(d.memory.Runs[run], st.ID.Name)
	for _, attempt := range d.attemptsOf(st.ID) {
		age := d.memory.Age(attempt, d.now)
		if attempt.Venue == fact.Pool {
			times := st.Model.Times(fact.Pool, d.memory.Grants[attempt.Key].CPU.Cores())
			left := d.memory.Goes(attempt, d.now, age, times, times.Residual(age, mean))
			c.AtPool += left / c.Wall
			c.Longest = max(c.Longest, left)
			continue
		}
		times := st.Model.Times(fact.Function, size.ClassCores(st.Class))
		left := d.memory.Goes(attempt, d.now, age, times, times.Residual(age, c.Function))
		c.AtVenue += left / c.Function
		c.Longest = max(c.Longest, left)
		c.Running++
		if attempt.Run == run && st.Class > 0 {
			c.Committed = min(fact.MaxCost, c.Committed+min(fact.MaxCost, d.functions.Price(st.Class, spill.Span(age+left))))
		}
	}
	if c.Tasks+c.PoolOnly+c.AtPool+c.AtVenue == 0 && w.wait > 0 {
		c.PoolOnly = 1 // a host has taken it: see taken
	}
	c.Most = d.courseLimit(c, w)
	return c, true
}

// courseLimit is the largest n that is worth a look: what the venue has for the stage once the stages of other runs
// have theirs, but no more than there are tasks; what is held or chosen is looked at in any case.
func (d *decider) courseLimit(c outlook.Course, w *work) int {
	most := 0
	if d.functions.Enabled && !d.policy.Static && c.Class > 0 {
		most = min(int(min(c.Tasks, plan.MaxSlots)), d.limit(c.Class, d.functions.Concurrency, d.functions.Cores))
	}
	return max(most, c.Held, w.functions)
}

// attemptsOf lists the attempts of a stage that run now, by key: sums of them must not depend on the order of a map.
func (d *decider) attemptsOf(id fact.StageID) []memory.Attempt {
	var found []memory.Attempt
	for _, running := range d.memory.Attempts {
		if running.Stage() == id && running.Runs() {
			found = append(found, running)
		}
	}
	slices.SortFunc(found, func(a, b memory.Attempt) int { return cmp.Compare(a.Key, b.Key) })
	return found
}
