package predictor_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

// twoSteps has had three runs of forty tasks at "first", each of two seconds and so much memory, and then as many at
// "second": a function for a task of either costs as its memory does.
func twoSteps(first, second quantity.Bytes) (state predictor.State) {
	for i := range 3 {
		run, at := "past-"+string(rune('a'+i)), -1000+200*float64(i)
		state = fold(state, started(run, at, predictor.Goal{Minimise: predictor.Cost}))
		for k, memory := range []quantity.Bytes{first, second} {
			stage := []string{"first", "second"}[k]
			begun := at + 40*float64(k)
			state = fold(state, hint(run, stage, 40, begun))
			for task := range 40 {
				line := record(run, stage, task, begun+2*float64(task/2+1), 1.9+0.2*float64(task%2))
				line.Usage.PeakMemory = memory
				line.Cost = quantity.USD.Times(0.05 / 3600 * 2)
				state = fold(state, line)
			}
		}
		state = fold(state, predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: after(at + 80.5)})
	}
	return state
}

// roomy is a host of two cores with a price, and functions.
func roomy(now float64) predictor.Snapshot {
	snap := laptop(now, 2)
	snap.Hosts[0].Capacity.Memory, snap.Hosts[0].Free.Memory = 64*quantity.GiB, 64*quantity.GiB
	snap.Hosts[0].PricePerHour = quantity.USD.Times(0.1)
	return snap
}

func undivided(snap predictor.Snapshot) predictor.Snapshot {
	snap.Policy.Undivided = true
	return snap
}

// TestADeadlineIsDividedWhereTimeIsCheaper has two stages of forty seconds at the pool, and a deadline of a minute.
// Earlier runs left the first twenty: it bought them, whatever they cost there.
func TestADeadlineIsDividedWhereTimeIsCheaper(t *testing.T) {
	t.Parallel()
	const dear, cheap = 7 * quantity.GiB, 300 * quantity.MiB
	for _, row := range []struct {
		name           string
		first, second  quantity.Bytes
		deadline       time.Duration
		least, most    int // function slots of the first stage
		whole          int // and without a plan, at least
		says, withouts string
	}{
		{
			"the second is cheaper to hasten", dear, cheap, time.Minute, 0, 1, 2,
			"the plan leaves it (time is bought cheaper at second)", "left to the deadline, which the pool alone meets",
		},
		{
			"the first is", cheap, dear, time.Minute, 2, 8, 2,
			"the plan leaves it (time is bought cheapest here)", "left to the deadline, which the pool alone meets",
		},
		{
			"what followed in earlier runs does not fit", cheap, cheap, 35 * time.Second, 2, 8, 8,
			"the plan leaves it (time is bought here and at second)", "which is lost",
		},
		{
			"the pool has time for both", dear, cheap, 3 * time.Minute, 0, 0, 0,
			"the plan leaves it (47 s are for what follows, at the pool)", "well within",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			state := fold(twoSteps(row.first, row.second), started("r", 0, predictor.Goal{Deadline: row.deadline}),
				hint("r", "first", 40, 0))
			before, _ := predictor.Decide(twinOf(t, state), undivided(roomy(0)))
			got, _ := predictor.Decide(state, roomy(0))
			told := strings.Join(reasons(got), "\n")
			if n := slots(got, "first", predictor.Function); n < row.least || n > row.most || !strings.Contains(told, row.says) {
				t.Errorf("%d function slots, want %d to %d and %q:\n%s", n, row.least, row.most, row.says, told)
			}
			told = strings.Join(reasons(before), "\n")
			if n := slots(before, "first", predictor.Function); n < row.whole || !strings.Contains(told, row.withouts) {
				t.Errorf("without a plan %d function slots, want %d and %q:\n%s", n, row.whole, row.withouts, told)
			}
		})
	}
}

// TestABudgetIsKeptForWhatFollows has a run that minimises latency: its first stage could spend the whole budget.
func TestABudgetIsKeptForWhatFollows(t *testing.T) {
	t.Parallel()
	const budget = 8 * quantity.USD / 1000
	state := fold(twoSteps(2*quantity.GiB, 2*quantity.GiB),
		started("r", 0, predictor.Goal{Minimise: predictor.Latency, Budget: budget}), hint("r", "first", 40, 0))
	before, _ := predictor.Decide(twinOf(t, state), undivided(roomy(0)))
	got, _ := predictor.Decide(state, roomy(0))
	all, some := slots(before, "first", predictor.Function), slots(got, "first", predictor.Function)
	if some < 1 || some >= all {
		t.Errorf("%d function slots, without a plan %d, want fewer:\n%s", some, all, strings.Join(reasons(got), "\n"))
	}
	for _, d := range got.Decisions {
		if d.Venue != predictor.Function {
			continue
		}
		kept := quantity.USD.Times(d.Inputs["plan_reserved_usd"])
		if kept < 40*quantity.USD.Times(0.05/3600*2) || kept >= budget ||
			!strings.Contains(d.Reason, "that the plan keeps for the pool and for what follows") {
			t.Errorf("%v of %v are kept, %q; want at least what 40 tasks cost at the pool", kept, budget, d.Reason)
		}
	}
}

// TestABudgetIsKeptForWhatFollowsOnceTheDeadlineIsLost has a first stage that could spend all of it in order to be late
// by less.
func TestABudgetIsKeptForWhatFollowsOnceTheDeadlineIsLost(t *testing.T) {
	t.Parallel()
	const budget = 8 * quantity.USD / 1000
	state := fold(twoSteps(2*quantity.GiB, 2*quantity.GiB),
		started("r", 0, predictor.Goal{Deadline: time.Second, Budget: budget}), hint("r", "first", 40, 0))
	before, _ := predictor.Decide(twinOf(t, state), undivided(roomy(2)))
	got, _ := predictor.Decide(state, roomy(2))
	all, some := slots(before, "first", predictor.Function), slots(got, "first", predictor.Function)
	told := strings.Join(reasons(got), "\n")
	if some < 1 || some >= all || !strings.Contains(told, "which is lost") ||
		!strings.Contains(told, "that the plan keeps for the pool and for what follows") {
		t.Errorf("%d function slots, without a plan %d, want fewer:\n%s", some, all, told)
	}
	for _, d := range got.Decisions {
		if chance, told := d.Inputs["plan_in_time_ratio"]; told && chance > 0 {
			t.Errorf("the plan is in time with %g, want never", chance)
		}
	}
}

// TestAStageIsPaidBeforeWhatFollowsWhereThePoolTakesNoTask has no host, and a budget that pays for one of two stages.
func TestAStageIsPaidBeforeWhatFollowsWhereThePoolTakesNoTask(t *testing.T) {
	t.Parallel()
	snap := roomy(0)
	snap.Hosts = nil
	const budget = 4 * quantity.USD / 1000
	state := fold(twoSteps(2*quantity.GiB, 2*quantity.GiB),
		started("r", 0, predictor.Goal{Budget: budget}), hint("r", "first", 40, 0))
	got, _ := predictor.Decide(state, snap)
	if n := slots(got, "first", predictor.Function); n < 1 {
		t.Errorf("%d function slots, and nobody does the tasks:\n%s", n, strings.Join(reasons(got), "\n"))
	}
}

// TestWithoutAGoalNothingIsDivided has a run without a goal, and one whose pipeline has not run.
func TestWithoutAGoalNothingIsDivided(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]predictor.State{
		"no goal": fold(twoSteps(quantity.GiB, quantity.GiB), started("r", 0, predictor.Goal{}), hint("r", "first", 40, 0)),
		"no earlier run": fold(learn(learn(predictor.State{}, "first", 9, 2), "second", 9, 2),
			started("r", 0, predictor.Goal{Deadline: time.Minute}), hint("r", "first", 40, 0)),
		"its last stage": fold(twoSteps(quantity.GiB, quantity.GiB),
			started("r", 0, predictor.Goal{Deadline: time.Minute, Budget: quantity.USD}), hint("r", "first", 1, 0),
			record("r", "first", 0, 2, 2), hint("r", "second", 40, 2)),
	} {
		want, _ := predictor.Decide(twinOf(t, state), undivided(roomy(2)))
		got, _ := predictor.Decide(state, roomy(2))
		if a, b := encode(t, got), encode(t, want); !bytes.Equal(a, b) {
			t.Errorf("%s: a plan of %s, want %s", name, a, b)
		}
	}
}

// divisionOf is what a checkpoint has of how the goal of run "r" is divided.
func divisionOf(t *testing.T, state predictor.State) (d struct {
	Goal   predictor.Goal
	Called int
	Ended  int
	At     int64
	Parts  []struct{ Stage string }
},
) {
	t.Helper()
	var saved struct {
		Runs []struct {
			ID       string
			Division json.RawMessage
		}
	}
	if err := json.Unmarshal(encode(t, state), &saved); err != nil {
		t.Fatal(err)
	}
	for _, run := range saved.Runs {
		if run.ID == "r" && run.Division != nil {
			if err := json.Unmarshal(run.Division, &d); err != nil {
				t.Fatal(err)
			}
		}
	}
	return d
}

// TestAGoalIsDividedAnewWhenMoreIsKnown follows a run through its stages.
func TestAGoalIsDividedAnewWhenMoreIsKnown(t *testing.T) {
	t.Parallel()
	goal := predictor.Goal{Deadline: time.Minute}
	state := fold(twoSteps(quantity.GiB, quantity.GiB), started("r", 0, goal), hint("r", "first", 40, 0))
	at := int64(0)
	for _, row := range []struct {
		name   string
		now    float64
		events []predictor.Event
		anew   bool
		parts  int
	}{
		{"it begins", 0, nil, true, 2},
		{"an attempt ends", 0.2, []predictor.Event{record("r", "first", 0, 0.2, 2)}, false, 2},
		{"and a quarter of a second has passed", 0.5, nil, true, 2},
		{"nothing happens", 1.2, nil, false, 2},
		{
			"its goal is another", 1.4,
			[]predictor.Event{predictor.GoalChanged{Run: "r", Goal: predictor.Goal{Deadline: 2 * time.Minute}, At: after(1.4)}},
			true, 2,
		},
		{"nothing is told for a while", 4, nil, false, 2},
		{"and for longer", 6.5, nil, true, 2},
		{"a stage is called", 6.6, []predictor.Event{hint("r", "second", 40, 6.6)}, true, 0}, // nothing follows any more
		{
			"the goal is taken back", 7, []predictor.Event{predictor.GoalChanged{Run: "r", At: after(7)}}, false, 0,
		},
	} {
		state = fold(state, row.events...)
		_, state = predictor.Decide(state, roomy(row.now))
		got := divisionOf(t, state)
		if anew := got.At != at; anew != row.anew || len(got.Parts) != row.parts {
			t.Errorf("%s: divided anew %v into %v, want %v into %d", row.name, anew, got.Parts, row.anew, row.parts)
		}
		at = got.At
	}
}

// TestANewLeaderKeepsTheDivision decides by a checkpoint what is decided by the state that it is of.
func TestANewLeaderKeepsTheDivision(t *testing.T) {
	t.Parallel()
	state := fold(twoSteps(7*quantity.GiB, quantity.GiB), started("r", 0, predictor.Goal{Deadline: time.Minute}),
		hint("r", "first", 40, 0))
	_, state = predictor.Decide(state, roomy(0))
	twin := twinOf(t, state)
	a, state := predictor.Decide(state, roomy(0.5))
	b, twin := predictor.Decide(twin, roomy(0.5))
	if x, y := encode(t, a), encode(t, b); !bytes.Equal(x, y) {
		t.Errorf("by a checkpoint %s, want %s", y, x)
	}
	if x, y := divisionOf(t, state), divisionOf(t, twin); len(x.Parts) != 2 || x.At != y.At {
		t.Errorf("by a checkpoint %+v, want %+v", y, x)
	}
}

// TestAFrontierTellsWhatADivisionWouldGive asks of the next run what each stage would get at present.
func TestAFrontierTellsWhatADivisionWouldGive(t *testing.T) {
	t.Parallel()
	state := twoSteps(7*quantity.GiB, 300*quantity.MiB)
	goal := predictor.Goal{Deadline: time.Minute}
	functions := func(snap predictor.Snapshot) (first, second int) {
		job := state.ProspectOf(predictor.Coming{App: "app", Pipeline: "p"}, goal, snap)
		if len(job.Stages) != 2 {
			t.Fatalf("%q: stages %v", job.Missing, job.Stages)
		}
		return job.Stages[0].Present.Functions, job.Stages[1].Present.Functions
	}
	if first, second := functions(roomy(0)); first > 1 || second < 1 {
		t.Errorf("%d functions for the dear stage and %d for the cheap one, want the latter", first, second)
	}
	if first, _ := functions(undivided(roomy(0))); first < 2 {
		t.Errorf("without a plan %d functions for the dear stage, want what earlier runs left it", first)
	}
}

// TestAPipelineThatWasIdleForHoursHasAFrontier asks after the stages of its build were forgotten.
func TestAPipelineThatWasIdleForHoursHasAFrontier(t *testing.T) {
	t.Parallel()
	state := twoSteps(quantity.GiB, quantity.GiB)
	for tick := range 1000 { // its clock follows five seconds at a time
		_, state = predictor.Decide(state, roomy(float64(5*tick)))
	}
	coming, thrifty := predictor.Coming{App: "app", Pipeline: "p"}, predictor.Goal{Minimise: predictor.Cost}
	a := whatif.Of(state.ProspectOf(coming, thrifty, roomy(5000)))
	if !a.Known || len(a.Present.Stages) != 2 || a.Present.Seconds < 60 {
		t.Errorf("known %v %q: %+v, want about 80 s in two stages", a.Known, a.Why, a.Present)
	}
}
