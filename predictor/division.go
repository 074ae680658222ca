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
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/whatif"
	"github.com/spillway-ml/spillway/predictor/words"
)

const (
	// divideEach is for how long a division is kept while the run tells more, for each run that has a goal, and
	// divideLeast and divideMost what that is at least and at most: ten runs are divided anew each second, a
	// hundred every five. One that tells nothing keeps its division for divideMost.
	divideEach  = fact.Instant(100 * time.Millisecond)
	divideLeast = fact.Instant(250 * time.Millisecond)
	divideMost  = fact.Instant(5 * time.Second)
	// mostDivided bounds how many runs a tick divides. Those that wait are decided by the division that they have, and
	// without one by what earlier runs left each stage.
	mostDivided = 4
)

// divide divides goals anew of which more is known: a stage was called or is done, or the goal is another, or for some
// time the run has told of something else. The oldest division is the first. It is a step of its own, between the
// slots of the pool, on which plans rest, and those of functions, which are chosen within what a plan leaves a stage.
func (d *decider) divide() {
	if d.policy.Undivided || d.policy.Static {
		return
	}
	all := map[*memory.Run]bool{}
	for _, w := range d.works {
		for _, part := range w.stage.Shares {
			if r := part.Run; r.Known && part.Works() && (r.Goal.Deadline > 0 || r.Goal.Budget > 0) {
				all[r] = true
			}
		}
	}
	var due []*memory.Run
	every := min(max(divideLeast, divideEach*fact.Instant(len(all))), divideMost)
	clock := max(1, d.memory.Clock)
	for r := range all {
		called, ended := d.memory.Called(r)
		held := r.Division
		age := clock - held.At
		if held.At == 0 || age < 0 || held.Goal != r.Goal || held.Called != called || held.Ended != ended ||
			age >= divideMost || age >= every && r.Active > held.Told {
			due = append(due, r)
		}
	}
	slices.SortFunc(due, func(a, b *memory.Run) int { // the age of what was divided for another goal does not count
		return cmp.Or(cmp.Compare(a.Division.Of(a.Goal), b.Division.Of(b.Goal)), strings.Compare(a.ID, b.ID))
	})
	for _, w := range d.works {
		w.functions = w.stage.Functions // until they are chosen, what others have is not to be had
	}
	for _, r := range due[:min(len(due), mostDivided)] {
		d.divideRun(r, clock)
	}
}

// divideRun divides the goal of a run. It has no parts where nothing follows the stages that it has called, or not
// enough is known of what does.
func (d *decider) divideRun(r *memory.Run, clock fact.Instant) {
	held := r.Division
	r.Division = memory.Division{At: clock, Told: r.Active, Goal: r.Goal}
	r.Division.Called, r.Division.Ended = d.memory.Called(r)
	lost := d.lost(r)
	if lost && r.Goal.Budget <= 0 {
		return
	}
	job, follows := d.remaining(r)
	if !follows {
		return
	}
	if lost {
		job.Goal.Deadline = 0 // its budget is still that of all its stages
	}
	now := map[string]whatif.Given{}
	if held.Goal == r.Goal {
		for _, part := range held.Parts {
			now[part.Stage] = whatif.Given{Functions: part.Functions, Class: part.Class}
		}
	}
	divided, known := whatif.Divide(job, now)
	if !known {
		return
	}
	r.Division.InTime, r.Division.InBudget = divided.InTime, divided.InBudget
	if lost {
		r.Division.InTime = 0
	}
	for _, part := range divided.Parts {
		r.Division.Parts = append(r.Division.Parts, memory.Part{
			Stage: part.Stage, Functions: part.Functions, Class: part.Class, Seconds: part.Seconds, After: part.After,
			Hastened: part.Hastened, Reserved: part.Reserved, Rest: part.Rest, Costs: part.Costs,
		})
	}
}

// lost reports whether the deadline of a run has passed.
func (d *decider) lost(r *memory.Run) bool {
	return r.Goal.Deadline > 0 && d.now.Since(r.Started) >= r.Goal.Deadline.Seconds()
}

// mostDoubt is up to which doubt of what the tasks of a later stage take together (outlook.Left) that is known: to a
// factor of e, two times in three. Where this run has four hundred tasks of a stage of which earlier ones had one, as
// many may follow or one, and a plan would buy time here for what seldom comes.
const mostDoubt = 1.0

// remaining is what is left of a run, for [whatif.Divide]. It reports whether a stage follows those that the run has
// called, and enough is known of all that are left.
func (d *decider) remaining(r *memory.Run) (job whatif.Job, follows bool) {
	if len(d.memory.Alike(r)) == 0 {
		return job, false
	}
	journey, _, _ := outlook.JourneyOf(d.memory, r, d.now)
	names := make([]string, len(r.Stages))
	for i, id := range r.Stages {
		names[i] = id.Name
	}
	left, after := journey.Left(names)
	job = whatif.Job{
		Run: r.ID, Goal: r.Goal, After: after, Elapsed: d.now.Since(r.Started), Spent: r.Spent, At: d.plan.At,
	}
	for _, one := range left {
		follows = follows || !one.Called && one.Tasks > 0
	}
	if !follows {
		return job, false
	}
	for _, one := range left {
		if one.Tasks == 0 && !one.Called {
			continue
		}
		w := d.workIn(r, one)
		if w == nil || !w.taking.known && !(one.Mean > 0) || !one.Called && one.Doubt > mostDoubt {
			return job, false
		}
		s, wall := d.leftOf(w, one, 0, r)
		if s.Present.Slots == 0 {
			s.Present = whatif.Given{}
		}
		s.Rooms = d.rooms(w, []quantity.Milli{w.size.CPU}, wall, r)
		s.Classes = d.spillingTo(w, wall, r)
		if len(s.Rooms)+len(s.Classes) == 0 && s.Tasks > 0 {
			return job, false
		}
		job.Stages = append(job.Stages, s)
	}
	return job, true
}

// workIn is a stage of which a run has something left: with what this tick gives it, or else as it is known.
func (d *decider) workIn(r *memory.Run, left outlook.Left) *work {
	if !left.Called {
		return d.workNamed(r.App, left.Stage)
	}
	i := slices.IndexFunc(r.Stages, func(id fact.StageID) bool { return id.Name == left.Stage })
	if i < 0 || d.memory.Stages[r.Stages[i]] == nil {
		return nil
	}
	st := d.memory.Stages[r.Stages[i]]
	if k := slices.IndexFunc(d.works, func(w *work) bool { return w.stage == st }); k >= 0 {
		return d.works[k]
	}
	return d.known(st) // its tasks are only announced
}

// spillingTo is what functions have for a stage whose tasks take wall seconds with its slot of the pool, as they would
// be offered to it; none where they cannot run it, or are not to.
func (d *decider) spillingTo(w *work, wall float64, r *memory.Run) []whatif.Class {
	if !d.functions.Enabled || w.doubted > 0 || d.unfitToCome(w) != "" {
		return nil
	}
	own := *w
	own.wall = wall
	if own.taking.mean = wall / max(d.relative(w, fact.Pool), 1e-9); !own.taking.known {
		own.taking.known = true
	}
	o, refused, _ := d.offer(&own)
	if refused != "" {
		return nil
	}
	slots, cores := d.left(r)
	one := whatif.Class{
		Memory: o.Class, Slots: min(d.limit(o.Class, slots, cores), plan.MaxSlots), Seconds: o.Function, Cold: o.Cold,
		Task:  d.functions.Price(o.Class, spill.Span(o.Function)),
		Begin: d.functions.Price(o.Class, spill.Span(o.Cold)) - d.functions.PerRequest,
	}
	if one.Slots == 0 {
		return nil
	}
	return []whatif.Class{one}
}

// rests are for how many seconds a run goes on once a stage is done: by its plan, or as earlier runs did, each of them
// as probable as another.
func (d *decider) rests(r *memory.Run, stage string) []float64 {
	if part, divided := d.partOf(r, stage); divided {
		return []float64{part.After}
	}
	return d.memory.Rests(r, stage).Values
}

// follows is the middle of that.
func (d *decider) follows(r *memory.Run, stage string) float64 {
	if part, divided := d.partOf(r, stage); divided {
		return part.After
	}
	return d.memory.After(r, stage)
}

// followed is where that lies, and what it costs in US dollars.
func (d *decider) followed(r *memory.Run, stage string) (seconds, costs fact.Interval) {
	if part, divided := d.partOf(r, stage); divided {
		return part.Rest, part.Costs
	}
	return d.memory.Rests(r, stage).AcrossRuns(), d.memory.LaterCosts(r).AcrossRuns()
}

func (d *decider) partOf(r *memory.Run, stage string) (part memory.Part, divided bool) {
	if d.policy.Undivided || r.Goal.Deadline <= 0 && r.Goal.Budget <= 0 {
		return memory.Part{}, false
	}
	return r.Part(stage)
}

// divided says how the plan divides the deadline of a run at a stage: where it buys time. Empty without a plan.
func (d *decider) divided(r *memory.Run, stage string) string {
	mine, divided := d.partOf(r, stage)
	if !divided {
		return ""
	}
	if d.lost(r) {
		return "it divides the budget only"
	}
	if asked := r.Goal.Asked(); r.Goal.Deadline > 0 && r.Division.InTime < asked {
		return "the likeliest plan meets it with " + words.Percent(r.Division.InTime)
	}
	var others []string
	for _, part := range r.Division.Parts {
		if part.Functions > 0 && part.Stage != stage {
			others = append(others, part.Stage)
		}
	}
	at := strings.Join(others[:max(0, len(others)-1)], ", ")
	if at != "" {
		at += " and "
	}
	switch {
	case len(others) == 0 && mine.Functions == 0:
		return words.Seconds(mine.After) + " are for what follows, at the pool"
	case len(others) == 0:
		return "time is bought cheapest here"
	case mine.Functions == 0:
		return "time is bought cheaper at " + at + others[len(others)-1]
	}
	return "time is bought here and at " + at + others[len(others)-1]
}

// dividedInputs are the numbers of the plan by which a decision for a run was made.
func (d *decider) dividedInputs(inputs map[string]float64, run, stage string) {
	r := d.memory.Runs[run]
	if r == nil {
		return
	}
	part, divided := d.partOf(r, stage)
	if !divided {
		return
	}
	inputs["plan_stage_seconds"], inputs["plan_function_slots"] = part.Seconds, float64(part.Functions)
	inputs["plan_rest_seconds"] = part.After
	if r.Goal.Deadline > 0 {
		inputs["plan_in_time_ratio"] = r.Division.InTime
	}
	if r.Goal.Budget > 0 {
		inputs["plan_reserved_usd"], inputs["plan_in_budget_ratio"] = part.Reserved.USD(), r.Division.InBudget
	}
}
