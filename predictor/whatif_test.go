package predictor_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

// paid is laptop with a price: 17 cents an hour for each four cores.
func paid(now float64, cores int) predictor.Snapshot {
	snap := laptop(now, cores)
	snap.Hosts[0].PricePerHour = quantity.USD * 17 / 100 * quantity.Money(cores) / 4
	return snap
}

func TestARunHasAFrontierOfWhatIsLeft(t *testing.T) {
	t.Parallel()
	// 400 tasks of 2 s on four slots take 200 s, and 30 s of "report" follow; 10 s have passed.
	state := scoring(predictor.Goal{}, 400, 2)
	before := encode(t, state)
	job := state.Prospect("r", predictor.Goal{Minimise: predictor.Cost}, paid(10, 4))
	a := whatif.Of(job)
	if !bytes.Equal(before, encode(t, state)) {
		t.Error("asking changed the state")
	}
	if !a.Known || a.Elapsed != 10 || a.Pipeline != "p" {
		t.Fatalf("got %+v", a)
	}
	names := []string{}
	for _, stage := range job.Stages {
		names = append(names, stage.Name)
	}
	if !slices.Equal(names, []string{"score", "report"}) || job.Stages[0].Tasks != 400 || job.Stages[0].Refused != "" {
		t.Errorf("stages %v, the first with %d tasks, refused %q", names, job.Stages[0].Tasks, job.Stages[0].Refused)
	}
	// The pool alone costs four cores for what is left, and none of it is faster for less.
	last := a.Points[len(a.Points)-1]
	if got := last.Seconds - 10; math.Abs(got-230) > 25 || last.Stages[0].Functions != 0 {
		t.Errorf("the cheapest takes %v s more with %s, want about 230 with the pool", got, last.Gets)
	}
	if first := a.Points[0]; first.Stages[0].Functions == 0 || first.Seconds >= last.Seconds || first.Cost <= last.Cost {
		t.Errorf("the fastest takes %v s for %v with %s", first.Seconds, first.Cost, first.Gets)
	}
	if a.Present.Stages[0].Functions != 0 || a.Present.Stages[0].Slots != 4 {
		t.Errorf("at present %s: a run that minimises cost has the pool", a.Present.Gets)
	}
	if a.Faster == nil || !strings.HasPrefix(a.Sentences[0], "twice as fast (") {
		t.Errorf("twice as fast is %+v: %q", a.Faster, a.Sentences[0])
	}
}

func TestAFrontierAnswersForAGoal(t *testing.T) {
	t.Parallel()
	state := scoring(predictor.Goal{}, 400, 2)
	for _, row := range []struct {
		name string
		goal predictor.Goal
		met  bool
		says string
	}{
		{"a deadline with room", predictor.Goal{Deadline: time.Hour * 3}, true, "is met in"},
		{"a deadline that nothing meets", predictor.Goal{Deadline: 40 * time.Second}, false, "give a deadline of"},
		{"a budget that is enough", predictor.Goal{Budget: quantity.USD}, true, "is kept"},
		{"a budget that is not", predictor.Goal{Budget: quantity.USD / 10_000}, false, "give a budget of"},
	} {
		a := whatif.Of(state.Prospect("r", row.goal, paid(10, 4)))
		if a.Promise == nil || a.Promise.Met != row.met || !strings.Contains(a.Verdict(), row.says) {
			t.Errorf("%s: %+v: %q", row.name, a.Promise, a.Verdict())
		}
	}
}

func TestWhatHasNeverRunHasNoFrontier(t *testing.T) {
	t.Parallel()
	seen := scored(predictor.State{}, 1)
	unmeasured := fold(seen, started("r", 0, predictor.Goal{}), hint("r", "train", 9, 1))
	for _, row := range []struct {
		name string
		job  whatif.Job
		why  string
	}{
		{"a run nobody knows", predictor.State{}.Prospect("r", predictor.Goal{}, paid(1, 4)), "no run r goes on"},
		{
			"a pipeline that never ran", predictor.State{}.ProspectOf(predictor.Coming{App: "app", Pipeline: "p"},
				predictor.Goal{}, paid(1, 4)), "no earlier run of this pipeline has succeeded",
		},
		{
			"a run that went another way", unmeasured.Prospect("r", predictor.Goal{}, paid(1, 4)),
			"called the same stages first",
		},
		{
			"a run whose attempts are gone", seen.ProspectAfter(predictor.Taken{App: "app", Pipeline: "p", Seconds: 10},
				predictor.Goal{}, paid(1, 4)), "no task of it has succeeded whose attempts are still kept",
		},
		{
			"a stage of which nothing is remembered", seen.ProspectAfter(predictor.Taken{
				App: "app", Pipeline: "p", Seconds: 10,
				Stages: []predictor.TakenStage{{Given: whatif.Given{Stage: "other", Tasks: 3}, End: 9, Mean: 1, Cores: 1}},
			}, predictor.Goal{}, paid(1, 4)), "not known of other, of which nothing is remembered",
		},
	} {
		a := whatif.Of(row.job)
		if a.Known || !strings.Contains(a.Why, row.why) {
			t.Errorf("%s: known %v: %q, want %q", row.name, a.Known, a.Why, row.why)
		}
	}
}

func TestAPipelineHasAFrontierOfItsNextRun(t *testing.T) {
	t.Parallel()
	state := predictor.State{}
	for i, tasks := range []int{10, 20, 40} { // a task for each KiB, of 2 s
		run, at := string(rune('a'+i)), -1000+float64(100*i)
		begun := started(run, at, predictor.Goal{})
		begun.InputBytes = quantity.Bytes(tasks) * quantity.KiB
		state = fold(state, begun, hint(run, "score", tasks, at+1))
		for task := range tasks {
			state = fold(state, record(run, "score", task, at+1+float64(task/4+1)*2, 2))
		}
		state = fold(state, predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: after(at + 60)})
	}
	ask := func(input quantity.Bytes) (whatif.Job, whatif.Answer) {
		job := state.ProspectOf(predictor.Coming{App: "app", Pipeline: "p", Input: input}, predictor.Goal{}, paid(0, 4))
		return job, whatif.Of(job)
	}
	small, smallAnswer := ask(10 * quantity.KiB)
	large, largeAnswer := ask(40 * quantity.KiB)
	if !smallAnswer.Known || small.Stages[0].Tasks < 8 || small.Stages[0].Tasks > 12 ||
		large.Stages[0].Tasks < 34 || large.Stages[0].Tasks > 46 {
		t.Fatalf("known %v %q: %d and %d tasks, want about 10 and 40", smallAnswer.Known, smallAnswer.Why,
			small.Stages[0].Tasks, large.Stages[0].Tasks)
	}
	if a, b := smallAnswer.Present, largeAnswer.Present; a.Seconds >= b.Seconds || a.Cost >= b.Cost {
		t.Errorf("the small one takes %v s for %v, the large one %v s for %v", a.Seconds, a.Cost, b.Seconds, b.Cost)
	}
}

func TestARunThatHasEndedIsComparedWithWhatItWas(t *testing.T) {
	t.Parallel()
	state := scored(predictor.State{}, 2)
	taken := predictor.Taken{
		Run: "r", App: "app", Pipeline: "p", Seconds: 100, Cost: quantity.USD / 100,
		Stages: []predictor.TakenStage{{
			Given: whatif.Given{Stage: "score", Tasks: 40, Slots: 1, Seconds: 90, Cost: 0.01}, Start: 5, End: 95, Mean: 2,
			Spread: 0.1, Cores: 1,
		}},
	}
	a := whatif.Of(state.ProspectAfter(taken, predictor.Goal{}, paid(0, 4)))
	if !a.Known || a.Present.Seconds != 100 || a.Present.Cost != 0.01 || a.Present.Stages[0].Slots != 1 {
		t.Fatalf("known %v %q, %+v", a.Known, a.Why, a.Present)
	}
	for deadline, want := range map[time.Duration]float64{100 * time.Second: 1, 99 * time.Second: 0} {
		was := whatif.Of(state.ProspectAfter(taken, predictor.Goal{Deadline: deadline}, paid(0, 4))).Present
		if was.InTime != want {
			t.Errorf("what took 100 s was within %v with %v, want %v", deadline, was.InTime, want)
		}
	}
	// On four slots of its own the pool takes 20 s of tasks, and 10 s before and after.
	last := a.Points[len(a.Points)-1]
	if math.Abs(last.Seconds-30) > 2 || last.Stages[0].Slots != 4 {
		t.Errorf("the cheapest takes %v s with %s, want about 30 with 4 slots", last.Seconds, last.Gets)
	}
	if a.Faster == nil || a.Cheaper == nil {
		t.Errorf("nothing is faster or cheaper than one slot at a cent: %q", a.Sentences)
	}
}

// TestWhatFunctionsCannotRunIsNotOfferedThem asks about tasks that none waits of, as of a script that imports what
// functions have not: of a run that has ended, of the next one, and of one whose only task runs.
func TestWhatFunctionsCannotRunIsNotOfferedThem(t *testing.T) {
	t.Parallel()
	const lack = "it imports torch, which functions do not have"
	unfit := func(run string, at float64) predictor.Scheduled {
		called := hint(run, "train", 1, at)
		called.Program, called.PoolOnly, called.Unfit = "python3", true, lack
		return called
	}
	past := func() (state predictor.State) {
		for i, run := range []string{"a", "b", "c"} {
			at := -400 + 100*float64(i)
			state = fold(state, started(run, at, predictor.Goal{}), unfit(run, at), record(run, "train", 0, at+40, 40),
				predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: after(at + 41)})
		}
		return state
	}
	state := past()
	running := fold(past(), started("r", 0, predictor.Goal{}), unfit("r", 0), start("r", "train", 0, 1))
	fits := fold(past(), started("r", -90, predictor.Goal{}), func() predictor.Scheduled {
		called := hint("r", "train", 1, -90)
		called.Program = "python3"
		return called
	}(), record("r", "train", 0, -49, 40))
	ended := predictor.Taken{Run: "c", App: "app", Pipeline: "p", Seconds: 41, Stages: []predictor.TakenStage{{
		Given: whatif.Given{Stage: "train", Tasks: 1, Slots: 1, Seconds: 40, Cost: 0.01}, End: 40, Mean: 40, Cores: 1,
	}}}
	next := predictor.Coming{App: "app", Pipeline: "p"}
	for _, row := range []struct {
		name string
		job  whatif.Job
		lack string
	}{
		{"a run that has ended", state.ProspectAfter(ended, predictor.Goal{}, paid(0, 4)), lack},
		{"the next run", state.ProspectOf(next, predictor.Goal{}, paid(0, 4)), lack},
		{"a run whose task runs", running.Prospect("r", predictor.Goal{}, paid(10, 4)), lack},
		{"the next run, after one that functions could run", fits.ProspectOf(next, predictor.Goal{}, paid(0, 4)), ""},
	} {
		if len(row.job.Stages) != 1 {
			t.Errorf("%s: %+v, want one stage", row.name, row.job)
			continue
		}
		got := row.job.Stages[0]
		if got.Refused != row.lack || (len(got.Classes) > 0) != (row.lack == "") {
			t.Errorf("%s: functions refuse it by %q and offer %d classes, want %q", row.name, got.Refused,
				len(got.Classes), row.lack)
		}
	}
}

func TestWhatOthersHoldIsNotOnOffer(t *testing.T) {
	t.Parallel()
	alone := scoring(predictor.Goal{Minimise: predictor.Cost}, 400, 2)
	beside := fold(learn(scoring(predictor.Goal{Minimise: predictor.Cost}, 400, 2), "other", 20, 3),
		started("o", 0, predictor.Goal{Minimise: predictor.Latency}), hint("o", "other", 300, 9))
	most := func(state predictor.State) (slots int) {
		job := state.Prospect("r", predictor.Goal{Minimise: predictor.Cost}, paid(10, 4))
		for _, room := range job.Stages[0].Rooms {
			if room.Size.CPU == quantity.Core {
				slots = room.Slots
			}
		}
		return slots
	}
	if a, b := most(alone), most(beside); a != 4 || b >= a || b < 1 {
		t.Errorf("%d slots alone, %d beside another run; want 4 and fewer", a, b)
	}
}

// TestWhatOthersRunIsNotPaid has an attempt with ten seconds left, beside three of another run in the same queue that
// go on for long.
func TestWhatOthersRunIsNotPaid(t *testing.T) {
	t.Parallel()
	ask := func(beside bool) whatif.Answer {
		state := fold(scored(predictor.State{}, 600), started("r", 0, predictor.Goal{}), hint("r", "score", 1, 1),
			start("r", "score", 0, 1))
		if beside {
			state = fold(state, started("o", 500, predictor.Goal{}), hint("o", "score", 3, 501))
			for task := range 3 {
				state = fold(state, start("o", "score", task, 501))
			}
		}
		return whatif.Of(state.Prospect("r", predictor.Goal{Deadline: 12 * time.Minute}, paid(591, 4)))
	}
	alone, beside := ask(false), ask(true)
	if !alone.Known || !beside.Known {
		t.Fatalf("alone %q, beside %q", alone.Why, beside.Why)
	}
	if a, b := alone.Present, beside.Present; math.Abs(a.Seconds-b.Seconds) > 1 || math.Abs(a.Cost-b.Cost) > a.Cost/100 ||
		!beside.Promise.Met {
		t.Errorf("alone %v s for %v, beside another run %v s for %v: %s", a.Seconds, a.Cost, b.Seconds, b.Cost,
			beside.Verdict())
	}
}

// TestOthersWaitInTheSameQueue has ten times as many tasks of another run in the queue of a stage.
func TestOthersWaitInTheSameQueue(t *testing.T) {
	t.Parallel()
	goal := predictor.Goal{Minimise: predictor.Cost}
	state := fold(scoring(goal, 100, 20), started("o", 0, goal), hint("o", "score", 1000, 10))
	got := whatif.Of(state.Prospect("r", goal, paid(10, 4)))
	want := state.Outlook("r", goal, paid(10, 4)).Chosen
	if !got.Known || math.Abs(got.Present.Seconds-want.FinishSeconds.Mid) > want.FinishSeconds.Mid/10 {
		t.Fatalf("%q: the run takes %v s as a frontier has it, %v s as the outlook does", got.Why, got.Present.Seconds,
			want.FinishSeconds.Mid)
	}
	alone := whatif.Of(scoring(goal, 100, 20).Prospect("r", goal, paid(10, 4)))
	if a, b := alone.Points[len(alone.Points)-1].Cost, got.Points[len(got.Points)-1].Cost; math.Abs(a-b) > a/10 {
		t.Errorf("the cheapest costs %v alone and %v where each run pays its tasks", a, b)
	}
}

// TestWhatAnAttemptHasTakenIsYetToBePaid has an attempt that ends in ten seconds, of ten minutes.
func TestWhatAnAttemptHasTakenIsYetToBePaid(t *testing.T) {
	t.Parallel()
	state := fold(scored(predictor.State{}, 600), started("r", 0, predictor.Goal{}), hint("r", "score", 1, 1),
		start("r", "score", 0, 1))
	job := state.Prospect("r", predictor.Goal{}, paid(591, 4))
	want := quantity.USD.Times(0.17 / 4 / 6) // a core for ten minutes
	if got := job.Stages[0].Running[0].Cost; job.Spent != 0 || math.Abs(float64(got-want)) > 0.01*float64(want) {
		t.Errorf("it costs %v beside the %v that are spent, want %v", got, job.Spent, want)
	}
}

// TestWhatOthersHoldWhereTheRunIsDoneIsNotOnOffer has a run that is past a stage of which another run still has slots.
func TestWhatOthersHoldWhereTheRunIsDoneIsNotOnOffer(t *testing.T) {
	t.Parallel()
	goal := predictor.Goal{Minimise: predictor.Cost}
	most := func(tasks int) (slots int) {
		state := fold(learn(scored(predictor.State{}, 2), "score", 20, 2), started("r", 0, goal), hint("r", "score", 1, 1),
			record("r", "score", 0, 5, 2), started("o", 0, goal))
		if tasks > 0 {
			state = fold(state, hint("o", "score", tasks, 9))
		}
		state = fold(state, hint("r", "report", 40, 10))
		job := state.Prospect("r", goal, paid(10, 4))
		for _, room := range job.Stages[0].Rooms {
			if room.Size.CPU == quantity.Core {
				slots = room.Slots
			}
		}
		return slots
	}
	if a, b := most(0), most(300); a != 4 || b >= a || b < 1 {
		t.Errorf("%d slots alone, %d beside another run; want 4 and fewer", a, b)
	}
}

// onGPU is an attempt of "train" on a GPU of a class.
func onGPU(run string, task int, at, wall float64, class string) predictor.Record {
	r := record(run, "train", task, at, wall)
	r.Grant = quantity.Size{
		CPU: quantity.Core, Memory: quantity.GiB, GPU: quantity.Core, GPUMemory: 40 * quantity.GiB, DeviceClass: class,
	}
	return r
}

// equipped are one host for each of these classes, with two GPUs each, at so many dollars an hour.
func equipped(now float64, price map[string]quantity.Money) predictor.Snapshot {
	snap := laptop(now, 16)
	snap.Hosts = nil
	for _, class := range slices.Sorted(maps.Keys(price)) {
		room := quantity.Size{
			CPU: 16 * quantity.Core, Memory: 256 * quantity.GiB, GPU: 2 * quantity.Core, GPUMemory: 160 * quantity.GiB,
			DeviceClass: class,
		}
		snap.Hosts = append(snap.Hosts, predictor.Host{
			ID: class, Capacity: room, Free: room, PricePerHour: price[class] * quantity.USD,
		})
	}
	return snap
}

// TestTheBestClassOfGPUIsToldBeforeItIsApplied has attempts of 30 s on a100 and of 12 s on h200, which costs twice as
// much, and a run that asks for a100.
func TestTheBestClassOfGPUIsToldBeforeItIsApplied(t *testing.T) {
	t.Parallel()
	learned := func(classes map[string]float64) (state predictor.State) {
		for i := range 8 {
			for k, class := range slices.Sorted(maps.Keys(classes)) {
				state = predictor.Fold(state, onGPU("earlier", 10*i+k, -1000+float64(10*i+k), classes[class], class))
			}
		}
		past := hint("past", "train", 1, -200)
		past.Declared = quantity.Size{GPU: quantity.Core, DeviceClass: "a100"}
		now := hint("r", "train", 8, 1)
		now.Declared = past.Declared
		return fold(state, started("past", -200, predictor.Goal{}), past, onGPU("past", 0, -130, classes["a100"], "a100"),
			predictor.RunEnded{Run: "past", State: predictor.RunSucceeded, At: after(-120)},
			started("r", 0, predictor.Goal{}), now)
	}
	price := map[string]quantity.Money{"a100": 4, "h200": 8, "l4": 1}
	both := learned(map[string]float64{"a100": 30, "h200": 12})
	var again predictor.State
	if err := json.Unmarshal(encode(t, both), &again); err != nil {
		t.Fatal(err)
	}
	for name, state := range map[string]predictor.State{"folded": both, "read": again} {
		job := state.Prospect("r", predictor.Goal{}, equipped(1, price))
		if s := job.Stages[0]; len(s.Rooms) == 0 || len(s.Devices) != 1 || math.Abs(s.Rooms[0].Seconds-30) > 1 ||
			math.Abs(s.Devices[0].Seconds-12) > 0.4 || s.Devices[0].Slots != 2 {
			t.Fatalf("%s: a task has %+v and %+v, want 30 s on a100 and 12 s on h200", name, s.Rooms, s.Devices)
		}
		a := whatif.Of(job)
		if !a.Known || len(a.Devices) != 1 || len(a.Devices[0].Others) != 1 || a.Devices[0].Best != "h200" {
			t.Fatalf("%s: known %v %q, compared %+v", name, a.Known, a.Why, a.Devices)
		}
		present, best := a.Devices[0].Present, a.Devices[0].Others[0]
		if math.Abs(best.Seconds/present.Seconds-0.4) > 0.01 || present.Size.DeviceClass != "a100" ||
			math.Abs(best.Cost/present.Cost-0.8) > 0.01 {
			t.Errorf("%s: all take %v s for %v with %s, and %v s for %v with %s; want 0.4 of the time for 0.8 of the cost",
				name, present.Seconds, present.Cost, present.Gets(), best.Seconds, best.Cost, best.Gets())
		}
		said := strings.Join(a.Sentences, "\n")
		for _, want := range []string{"on h200 train would take 5", "on a100", "train takes on l4 is not known"} {
			if !strings.Contains(said, want) {
				t.Errorf("%s: said %q, want %q", name, said, want)
			}
		}
		if a.Points[0].Stages[0].Size.DeviceClass != "h200" {
			t.Errorf("%s: the fastest has %s", name, a.Points[0].Gets)
		}
		plan, _ := predictor.Decide(state, equipped(1, price))
		for _, placed := range plan.Placements {
			if placed.Slots > 0 && placed.Host != "a100" {
				t.Errorf("%s: who asks for a100 has a slot on %s", name, placed.Host)
			}
		}
	}
	renewed := hint("r", "train", 1, 2)
	renewed.Declared = quantity.Size{GPU: quantity.Core, DeviceClass: "l4"}
	moved := whatif.Of(fold(both, renewed).Prospect("r", predictor.Goal{}, equipped(2, price)))
	if len(moved.Devices) != 1 || moved.Devices[0].Best != "" || !slices.Equal(moved.Devices[0].Untried, []string{"l4"}) {
		t.Errorf("of a stage that asks for a class on which it never ran is said %+v", moved.Devices)
	}
	alone := whatif.Of(learned(map[string]float64{"a100": 30}).Prospect("r", predictor.Goal{}, equipped(1, price)))
	if len(alone.Devices) != 1 || !slices.Equal(alone.Devices[0].Untried, []string{"h200", "l4"}) ||
		len(alone.Devices[0].Others) > 0 {
		t.Errorf("of classes that were never tried is said %+v", alone.Devices)
	}
	ended := whatif.Of(again.ProspectAfter(predictor.Taken{
		Run: "e", App: "app", Pipeline: "p", Seconds: 120,
		Stages: []predictor.TakenStage{{
			Given: whatif.Given{Stage: "train", Tasks: 8, Slots: 2, Seconds: 120, Size: onGPU("e", 0, 0, 1, "a100").Grant},
			End:   120, Mean: 30, Cores: 1,
		}},
	}, predictor.Goal{}, equipped(0, price)))
	if len(ended.Devices) != 1 || ended.Devices[0].Best != "h200" ||
		math.Abs(ended.Devices[0].Others[0].Seconds-48) > 1 || math.Abs(ended.Devices[0].Present.Seconds-120) > 1 {
		t.Errorf("of a run that has ended is said %+v", ended.Devices)
	}
}
