package whatif_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

// certainJob is drawn: stages one after the other, of which all is certain, and few functions.
func certainJob(rt *rapid.T) whatif.Job {
	var job whatif.Job
	at := 0.0
	for i := range rapid.IntRange(1, 3).Draw(rt, "stages") {
		s := whatif.Stage{
			Name: string(rune('a' + i)), Tasks: rapid.IntRange(1, 30).Draw(rt, "tasks"), Start: at, End: at + 10,
			Rooms:   []whatif.Room{room(rapid.IntRange(1, 3).Draw(rt, "slots"), rapid.Float64Range(1, 20).Draw(rt, "takes"))},
			Classes: []whatif.Class{class(4, rapid.Float64Range(1, 20).Draw(rt, "there"), 0.5, 0)},
		}
		s.Classes[0].Task = quantity.Money(rapid.Int64Range(20, 2000).Draw(rt, "task"))
		at = s.End
		job.Stages = append(job.Stages, s)
	}
	return job
}

// each calls do with what every combination of functions for the stages of a job takes and costs, in picodollars.
func each(job whatif.Job, do func(seconds, cost float64)) {
	var next func(stage int, seconds, cost float64)
	next = func(stage int, seconds, cost float64) {
		if stage == len(job.Stages) {
			do(seconds, cost)
			return
		}
		s := job.Stages[stage]
		for n := range min(s.Classes[0].Slots, s.Tasks) + 1 {
			g, _ := s.With(whatif.Given{
				Slots: min(s.Rooms[0].Slots, s.Tasks), Size: core(), Functions: n, Class: s.Classes[0].Memory,
			})
			next(stage+1, seconds+g.Seconds, cost+g.Cost*1e12)
		}
	}
	next(0, 0, 0)
}

func TestADivisionIsTheBestOfAll(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		job := certainJob(rt)
		fastest, slowest, least, most := math.Inf(1), 0.0, math.Inf(1), 0.0
		each(job, func(seconds, cost float64) {
			fastest, slowest = min(fastest, seconds), max(slowest, seconds)
			least, most = min(least, cost), max(most, cost)
		})
		part := rapid.Float64Range(-0.2, 1.2).Draw(rt, "part")
		deadline, budget := fastest+part*(slowest-fastest), least+part*(most-least)
		byTime := rapid.Bool().Draw(rt, "deadline")
		if byTime {
			job.Goal.Deadline = time.Duration(max(1, math.Ceil(deadline*1e9)))
		} else {
			job.Goal.Budget = quantity.Money(max(1, math.Ceil(budget)))
		}
		best, possible := math.Inf(1), false
		each(job, func(seconds, cost float64) {
			switch {
			case byTime && seconds <= job.Goal.Deadline.Seconds():
				best, possible = min(best, cost), true
			case !byTime && cost <= float64(job.Goal.Budget)*(1+1e-12):
				best, possible = min(best, seconds), true
			}
		})
		d, known := whatif.Divide(job, nil)
		meets := min(d.InTime, d.InBudget) >= job.Goal.Asked()
		if !known || meets != possible || len(d.Parts) != len(job.Stages) {
			rt.Fatalf("known %v, meets %v with %d parts, want %v with %d", known, meets, len(d.Parts), possible,
				len(job.Stages))
		}
		seconds, cost := 0.0, 0.0
		for i, p := range d.Parts {
			if after := sum(d.Parts[i+1:], func(g whatif.Given) float64 { return g.Seconds }); math.Abs(p.After-after) > 1e-6 {
				rt.Fatalf("%v s follow %s, want the %v s of the others", p.After, p.Stage, after)
			}
			later := sum(d.Parts[i+1:], func(g whatif.Given) float64 { return g.Cost * 1e12 })
			if float64(p.Reserved) < later-3 {
				rt.Fatalf("%d are kept for what follows %s, want at least the %v of the others", p.Reserved, p.Stage, later)
			}
			seconds, cost = seconds+p.Seconds, cost+p.Cost*1e12
		}
		got := cost
		if !byTime {
			got = seconds
		}
		if possible && math.Abs(got-best) > 1e-6*best+3 { // whole picodollars
			rt.Fatalf("a plan of %v s for %v, the best of all has %v", seconds, cost, best)
		}
	})
}

func sum(parts []whatif.Part, of func(whatif.Given) float64) (all float64) {
	for _, p := range parts {
		all += of(p.Given)
	}
	return all
}

// TestADivisionIsKeptWhereAnotherGainsLittle has two stages that are alike, so that time costs as much at either.
func TestADivisionIsKeptWhereAnotherGainsLittle(t *testing.T) {
	t.Parallel()
	job := whatif.Job{Goal: fact.Goal{Deadline: 61 * time.Second}}
	for i := range 2 {
		job.Stages = append(job.Stages, whatif.Stage{
			Name: string(rune('a' + i)), Tasks: 8, Start: 40 * float64(i), End: 40 * float64(i+1),
			Rooms: []whatif.Room{room(2, 10)}, Classes: []whatif.Class{class(2, 10, 0, 20)},
		})
	}
	job.Stages[1].Classes[0].Task = 21 // a little dearer
	first := func(now map[string]whatif.Given) int {
		d, _ := whatif.Divide(job, now)
		return d.Parts[0].Functions
	}
	if got := first(nil); got == 0 {
		t.Errorf("%d functions for the cheaper stage, want some", got)
	}
	if got := first(map[string]whatif.Given{"a": {}}); got != 0 {
		t.Errorf("%d functions for what had none, and gains little by them", got)
	}
}

// TestAFastestPlanSaysWhetherItIsInTime has a run that minimises latency within a budget, and has a deadline besides:
// the plan is the same with any, and keeps one of them.
func TestAFastestPlanSaysWhetherItIsInTime(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		deadline time.Duration
		inTime   float64
	}{{0, 1}, {time.Hour, 1}, {time.Millisecond, 0}} {
		job := whatif.Job{Goal: fact.Goal{Minimise: fact.Latency, Budget: quantity.USD, Deadline: row.deadline}}
		for i := range 2 {
			job.Stages = append(job.Stages, whatif.Stage{
				Name: string(rune('a' + i)), Tasks: 8, Start: 40 * float64(i), End: 40 * float64(i+1),
				Rooms: []whatif.Room{room(2, 10)}, Classes: []whatif.Class{class(2, 10, 0, 20)},
			})
		}
		d, known := whatif.Divide(job, nil)
		if !known || d.InTime != row.inTime || d.Parts[0].Functions != 2 {
			t.Errorf("a deadline of %v is met with %g by %d functions, known %v; want %g by 2", row.deadline, d.InTime,
				d.Parts[0].Functions, known, row.inTime)
		}
	}
}

func TestNothingIsDividedWithoutAGoal(t *testing.T) {
	t.Parallel()
	job := twoStages()
	job.Goal = fact.Goal{Minimise: fact.Latency}
	if d, known := whatif.Divide(job, nil); known {
		t.Errorf("without a goal it is divided into %+v", d.Parts)
	}
	job.Goal, job.Missing = fact.Goal{Deadline: time.Minute}, "how long a task takes is not known"
	if d, known := whatif.Divide(job, nil); known {
		t.Errorf("what is not known is divided into %+v", d.Parts)
	}
}

// TestWhatIsToldOfADivisionIsNumbers has stages of which so little is known that a sum of their prices overflows, and
// not yet one of their times: a division is kept with what is known of the run, and no encoder takes what is no number.
func TestWhatIsToldOfADivisionIsNumbers(t *testing.T) {
	t.Parallel()
	for doubt := 1.0; doubt < 21; doubt += 0.05 {
		job := twoStages()
		job.Goal = fact.Goal{Deadline: time.Minute}
		for i := range job.Stages {
			s := &job.Stages[i]
			s.Doubt, s.Rooms[0].Hour, s.Classes[0].Task = doubt, 100*quantity.USD, quantity.USD
		}
		d, known := whatif.Divide(job, nil)
		if !known || len(d.Parts) != len(job.Stages) {
			t.Errorf("with a doubt of %g nothing is divided", doubt)
		}
		if _, err := json.Marshal(d); err != nil {
			t.Errorf("with a doubt of %g: %v", doubt, err)
		}
	}
}
