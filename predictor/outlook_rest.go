package predictor

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Outlook returns what is expected of a run under goal, given what there is in snapshot, and what else could be had. It
// leaves s as it is.
//
// Chosen is what Decide would do on the next tick if goal were the goal in force. Present is what the last plan did: a
// State that only folds knows it from Obey. Both, and all alternatives, have the pool slots of the next tick, and the
// function slots that it gives to stages of other runs are not on offer.
func (s State) Outlook(run string, goal Goal, snapshot Snapshot) Outlook {
	out := Outlook{Run: run, Goal: sane(goal), At: snapshot.Now, Alternatives: []Alternative{}}
	if s.memory == nil || s.memory.runs[run] == nil || !s.memory.runs[run].Known {
		out.Why = "no run " + run + " goes on whose start was seen"
		out.Feasible, out.Summary = out.summarise()
		return out
	}
	m := s.memory.copied()
	r := m.runs[run]
	r.Goal = out.Goal
	now := at(snapshot.Now)
	out.Elapsed, out.Spent = now.since(r.Started), r.Spent.USD()
	d := begin(m, snapshot)
	d.settle()
	d.rest(r).tell(&out)
	out.Feasible, out.Summary = out.summarise()
	return out
}

// rest is what is known of the rest of a run.
type rest struct {
	elapsed float64
	spent   quantity.Money
	courses []course // of the stages that go on
	// finish and later are what earlier runs say: in how many seconds the run ends, and what the stages cost that it has
	// not called yet, in US dollars. They are zero where unknown.
	finish, total, later Interval
	runs                 int    // how many earlier runs say it
	byHistory            bool   // no stage has a choice: finish and total say all
	missing              string // what is not known; empty when enough is
	fits                 func(slots []int) bool
}

// rest gathers what is known of the rest of r. The decider has settled what every stage gets.
func (d *decider) rest(r *run) rest {
	left := rest{elapsed: d.now.since(r.Started), spent: r.Spent, later: d.memory.laterCosts(r).acrossRuns()}
	alike := len(d.memory.alike(r))
	left.runs = alike
	var unknown []string
	backlog, stuck := false, false
	for _, w := range d.worksOf(r) {
		c, known := d.course(w, r.ID)
		if !known {
			unknown = append(unknown, w.stage.ID.Name)
			continue
		}
		left.courses = append(left.courses, c)
		backlog, stuck = backlog || c.tasks+c.poolOnly > 0, stuck || c.stuck(c.chosen)
	}
	left.fits = d.room(left.courses)
	if stuck {
		left.missing = "no host has a valid lease, so nobody takes the tasks that wait for the pool"
		return left
	}
	if alike > 0 && len(unknown) == 0 && backlog {
		return left
	}
	forecast, known := State{d.memory}.Forecast(r.ID, time.Unix(0, int64(d.now)))
	switch {
	case known:
		left.finish, left.total, left.runs, left.byHistory = forecast.Finish, forecast.Cost, forecast.Runs, true
	case len(unknown) > 0:
		left.missing = "no attempt of " + strings.Join(unknown, " and ") +
			" has ended yet: how long a task takes is not known"
	case d.memory.pasts[r.pipeline()] == nil:
		left.missing = "no earlier run of this pipeline has succeeded: nothing is known of " + following(r)
	case alike == 0:
		left.missing = "no earlier run of this pipeline called the same stages first and reused as much: nothing is known " +
			"of " + following(r)
	case len(left.courses) == 0:
		left.missing = "it goes on for longer than every earlier run like it, and no task waits or runs now"
	}
	return left
}

// following names what comes after the stages that r has called.
func following(r *run) string {
	if len(r.Stages) == 0 {
		return "its stages"
	}
	return "what follows " + r.Stages[len(r.Stages)-1].Name
}

// worksOf lists the stages at which tasks of r wait, are to come or run, in the order in which r called them.
func (d *decider) worksOf(r *run) []*work {
	var found []*work
	for _, id := range r.Stages {
		st := d.memory.stages[id]
		if st == nil || st.Shares[r.ID] == nil {
			continue
		}
		part := st.Shares[r.ID]
		going := part.Queued[0]+part.Queued[1]+part.Further > 0 ||
			slices.ContainsFunc(d.attemptsOf(id), func(a attempt) bool { return a.Run == r.ID })
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
func (d *decider) room(courses []course) func([]int) bool {
	slots, cores := d.functions.Concurrency, d.functions.Cores
	for _, w := range d.works {
		if slices.ContainsFunc(courses, func(c course) bool { return c.id == w.stage.ID }) {
			continue
		}
		slots -= w.functions
		cores -= busy(w.stage.Class) * quantity.Milli(w.functions)
	}
	return func(wanted []int) bool {
		free, spare, more, chosen, held := slots, cores, false, true, true
		for i, c := range courses {
			free -= wanted[i]
			spare -= busy(c.class) * quantity.Milli(wanted[i])
			more = more || wanted[i] > 0
			chosen = chosen && wanted[i] == c.chosen
			held = held && wanted[i] == c.held
		}
		return !more || chosen || held || free >= 0 && (d.functions.Cores == 0 || spare >= 0)
	}
}

// tell writes what is known into out.
func (r rest) tell(out *Outlook) {
	out.Known, out.Why = r.missing == "", r.missing
	if out.Known {
		out.Runs = r.runs
	}
	present, chosen := make([]int, len(r.courses)), make([]int, len(r.courses))
	stages := make([][]option, len(r.courses))
	for i, c := range r.courses {
		present[i], chosen[i] = c.held, c.chosen
		stages[i] = c.options()
	}
	out.Present, out.Chosen = r.alternative(present), r.alternative(chosen)
	switch {
	case !out.Known:
	case r.byHistory || len(r.courses) == 0:
		out.Alternatives = append(out.Alternatives, out.Chosen)
	default:
		best := thin(merge(stages, r.fits), func(o option) bool {
			return slices.Equal(o.slots, present) || slices.Equal(o.slots, chosen)
		})
		for _, o := range best {
			out.Alternatives = append(out.Alternatives, r.alternative(o.slots))
		}
	}
}

// alternative is what the run takes and costs with so many function slots per course.
func (r rest) alternative(slots []int) Alternative {
	a := Alternative{Name: named(r.courses, slots)}
	for i, c := range r.courses {
		if slots[i] > 0 {
			if a.Functions == nil {
				a.Functions = map[string]int{}
			}
			a.Functions[c.id.Name] = slots[i]
		}
	}
	if r.missing != "" {
		return a
	}
	if r.byHistory {
		a.FinishSeconds, a.CostUSD = r.finish.from(r.elapsed), r.total
		return a
	}
	var finish, cost Interval
	for i, c := range r.courses {
		finish = finish.latest(c.finish(slots[i]))
		cost = cost.plus(spread(c.cost(slots[i]).USD(), c.variation, c.spilled(slots[i])))
	}
	a.FinishSeconds, a.CostUSD = finish.from(r.elapsed), cost.plus(r.later).from(r.spent.USD())
	return a
}

func named(courses []course, slots []int) string {
	var parts []string
	for i, c := range courses {
		switch {
		case slots[i] == 0:
		case len(parts) == 0:
			parts = append(parts, count(slots[i], "function")+" for "+c.id.Name)
		default:
			parts = append(parts, fmt.Sprintf("%d for %s", slots[i], c.id.Name))
		}
	}
	if len(parts) == 0 {
		return "pool only"
	}
	return strings.Join(parts, ", ")
}

// usd is an amount that was computed as a ratio.
func usd(amount float64) string {
	if math.IsNaN(amount) {
		amount = 0
	}
	return quantity.USD.Times(amount).String()
}
