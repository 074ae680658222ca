package predictor_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// hosts are a snapshot of hosts of two cores each.
func hosts(now float64, ids ...string) predictor.Snapshot {
	snap := laptop(now, 2)
	template := snap.Hosts[0]
	snap.Hosts = nil
	for _, id := range ids {
		template.ID = id
		snap.Hosts = append(snap.Hosts, template)
	}
	snap.Functions.Enabled = false
	return snap
}

func placements(plan predictor.Plan) map[string]int {
	placed := map[string]int{}
	for _, p := range plan.Placements {
		placed[p.Stage.Name+"@"+p.Host] += p.Slots
	}
	return placed
}

func TestSlotsSpreadOverHostsAndStayWhereTheyAre(t *testing.T) {
	t.Parallel()
	state := fold(learn(predictor.State{}, "score", 10, 1), started("r", 0, predictor.Goal{}), hint("r", "score", 3, 0))
	var plan predictor.Plan
	plan, state = predictor.Decide(state, hosts(1, "a", "b"))
	if diff := cmp.Diff(map[string]int{"score@a": 2, "score@b": 1}, placements(plan)); diff != "" {
		t.Errorf("three slots on two hosts (-want +got):\n%s", diff)
	}
	plan, state = predictor.Decide(state, hosts(2, "c", "b", "a"))
	if diff := cmp.Diff(map[string]int{"score@a": 2, "score@b": 1}, placements(plan)); diff != "" {
		t.Errorf("after a third host joined (-want +got):\n%s", diff)
	}
	plan, state = predictor.Decide(state, hosts(3, "b", "c"))
	if diff := cmp.Diff(map[string]int{"score@b": 2, "score@c": 1}, placements(plan)); diff != "" {
		t.Errorf("after the first host left (-want +got):\n%s", diff)
	}
	plan, _ = predictor.Decide(state, hosts(4))
	if len(plan.Placements) > 0 || !strings.Contains(strings.Join(reasons(plan), "\n"), "no host has a valid lease") {
		t.Errorf("without hosts: %+v", plan)
	}
}

func TestEveryStageWithWorkHasASlotAndTheNeediestTheRest(t *testing.T) {
	t.Parallel()
	var state predictor.State
	state = fold(state, started("r", 0, predictor.Goal{}))
	for _, stage := range []string{"a", "b", "c"} {
		state = learn(state, stage, 10, 1)
	}
	state = fold(state, hint("r", "a", 90, 0), hint("r", "b", 10, 0), hint("r", "c", 2, 0))
	snap := laptop(1, 6)
	snap.Functions.Enabled = false
	plan, state := predictor.Decide(state, snap)
	got := map[string]int{}
	for _, g := range plan.Grants {
		got[g.Stage.Name] = g.Slots
	}
	// 90/4 = 22.5 s, 10/1 = 10 s, 2/1 = 2 s: no other split of six slots ends earlier.
	if diff := cmp.Diff(map[string]int{"a": 4, "b": 1, "c": 1}, got); diff != "" {
		t.Errorf("slots of six cores (-want +got):\n%s", diff)
	}
	plan, _ = predictor.Decide(state, hosts(2, "small"))
	if len(plan.Grants) != 3 {
		t.Errorf("on a host for two, %d of three stages have a slot, want all", len(plan.Grants))
	}
}

func TestADeadlineComesBeforeALongerBacklog(t *testing.T) {
	t.Parallel()
	state := learn(learn(predictor.State{}, "long", 10, 1), "urgent", 10, 1)
	state = fold(
		state, started("r", 0, predictor.Goal{}), started("u", 0, predictor.Goal{Deadline: 10 * time.Second}),
		hint("r", "long", 500, 0), hint("u", "urgent", 30, 0),
	)
	snap := laptop(1, 4)
	snap.Functions.Enabled = false
	plan, _ := predictor.Decide(state, snap)
	if got := slots(plan, "urgent", predictor.Pool); got != 3 {
		t.Errorf("the stage that misses its deadline has %d of 4 slots, want 3", got)
	}
	var row predictor.Window
	for _, w := range plan.Windows {
		if w.Run == "u" {
			row = w
		}
	}
	if row.Priority != 2 && row.Priority != 1 {
		t.Errorf("its tasks have priority %d, want 1 or 2: %+v", row.Priority, plan.Windows)
	}
}

func TestWindowsGrowWithTheSlotsInPowersOfTwoAndStay(t *testing.T) {
	t.Parallel()
	state := fold(learn(predictor.State{}, "score", 10, 1), started("r", 0, predictor.Goal{}), hint("r", "score", 60, 0))
	snap := laptop(1, 40)
	snap.Functions.Enabled = false
	plan, state := predictor.Decide(state, snap)
	want := []predictor.Window{{Run: "r", Stage: stageNamed("score"), Tasks: 256, Priority: 3}}
	if diff := cmp.Diff(want, plan.Windows); diff != "" {
		t.Errorf("windows for 40 slots (-want +got):\n%s", diff)
	}
	if told := strings.Join(reasons(plan), "\n"); !strings.Contains(told,
		"window: 64 tasks, priority 3 -> 256 tasks, priority 3: 40 slots need 4 tasks in flight each") {
		t.Errorf("decisions: %s", told)
	}
	plan, _ = predictor.Decide(state, laptop(2, 1))
	if diff := cmp.Diff(want, plan.Windows); diff != "" {
		t.Errorf("windows once fewer slots fit (-want +got):\n%s", diff)
	}
}

// TestTheWindowOfATuningIsTwiceItsSlots follows that of one run from its announcement on, as slots come and go.
func TestTheWindowOfATuningIsTwiceItsSlots(t *testing.T) {
	t.Parallel()
	announced := predictor.Scheduled{Run: "r", Stage: stageNamed("score"), Expected: 81, Tuning: true, At: after(0)}
	state := fold(learn(predictor.State{}, "score", 10, 1), started("r", 0, predictor.Goal{}), announced,
		hint("r", "score", predictor.TuningWindow, 0))
	told, tick := 0, 1.0 // what the run goes by: nothing was told yet
	for _, step := range []struct {
		why     string
		hosts   int // slots that the host has room for
		waiting int // tasks that are scheduled besides
		want    int
	}{
		{"two slots are half of the first window", 2, 0, 0},
		{"three need more", 3, 0, 6},
		{"as many as wait", 40, 1, 10},
		{"half as many again", 40, 10, 30},
		{"a few more are none of its business", 17, 0, 30},
		{"most wait behind three slots", 3, 0, 6},
	} {
		if step.waiting > 0 {
			state = predictor.Fold(state, hint("r", "score", step.waiting, tick))
		}
		snap := laptop(tick, step.hosts)
		snap.Functions.Enabled = false
		var plan predictor.Plan
		plan, state = predictor.Decide(state, snap)
		tick++
		for _, row := range plan.Windows {
			told = row.Tasks
		}
		if told != step.want {
			t.Errorf("%s: with %d slots the window is %d, want %d: %s", step.why, step.hosts, told, step.want,
				strings.Join(reasons(plan), "\n"))
		}
	}
	state = predictor.Fold(state, predictor.Scheduled{
		Run: "r", Stage: stageNamed("score"), Expected: 100, At: after(tick),
	})
	plan, _ := predictor.Decide(state, laptop(tick, 2))
	if len(plan.Windows) != 1 || plan.Windows[0].Tasks != 64 {
		t.Errorf("a Map of the stage after it has the windows %+v, want the usual 64 tasks", plan.Windows)
	}
}

// TestATuningThatEndsEarlyHoldsNoFunctions does eight jobs of 81 that were announced, and the run goes on.
func TestATuningThatEndsEarlyHoldsNoFunctions(t *testing.T) {
	t.Parallel()
	state := fold(learn(predictor.State{}, "score", 10, 1), started("r", 0, predictor.Goal{Minimise: predictor.Latency}),
		predictor.Scheduled{Run: "r", Stage: stageNamed("score"), Expected: 81, Tuning: true, At: after(0)},
		hint("r", "score", 8, 0))
	plan, state := predictor.Decide(state, laptop(0, 1))
	if n := slots(plan, "score", predictor.Function); n < 2 {
		t.Fatalf("%d function slots, want some: %s", n, strings.Join(reasons(plan), "\n"))
	}
	for task := range 8 {
		state = predictor.Fold(state, record("r", "score", task, 10, 1))
	}
	plan, state = predictor.Decide(state, laptop(20, 1))
	if n := slots(plan, "score", predictor.Function); n < 2 {
		t.Errorf("%d function slots while more is to come, want some: %s", n, strings.Join(reasons(plan), "\n"))
	}
	state = predictor.Fold(state, predictor.Scheduled{
		Run: "r", Stage: stageNamed("score"), Withdrawn: 73, At: after(21),
	})
	plan, _ = predictor.Decide(state, laptop(25, 1))
	if n := slots(plan, "score", predictor.Function); n > 0 {
		t.Errorf("%d function slots, and nothing comes any more: %s", n, strings.Join(reasons(plan), "\n"))
	}
}

// TestATuningIsKnownByItsTasks has one whose announcement was lost, and one whose stage was mapped before.
func TestATuningIsKnownByItsTasks(t *testing.T) {
	t.Parallel()
	scheduled := hint("r", "score", predictor.TuningWindow, 1)
	scheduled.Tuning = true
	wide := []predictor.Event{hint("r", "score", 40, 0)}
	for task := range 40 {
		wide = append(wide, record("r", "score", task, 1, 1))
	}
	for name, c := range map[string]struct {
		want   int
		before []predictor.Event
	}{
		"nothing":                   {2 * predictor.TuningWindow, nil},
		"a Map that was told of it": {2 * 40, wide}, // of whose slots none has gone yet
		"a Map": {2 * predictor.TuningWindow, []predictor.Event{
			predictor.Scheduled{Run: "r", Stage: stageNamed("score"), Expected: 1, At: after(0)},
			hint("r", "score", 1, 0),
			record("r", "score", 0, 1, 1),
		}},
	} {
		state := fold(learn(predictor.State{}, "score", 10, 1), started("r", 0, predictor.Goal{}))
		for i, event := range c.before {
			state = predictor.Fold(state, event)
			if i <= 1 { // its tasks wait
				_, state = predictor.Decide(state, laptop(0.5, 40))
			}
		}
		plan, _ := predictor.Decide(predictor.Fold(state, scheduled), laptop(1, 40))
		if len(plan.Windows) != 1 || plan.Windows[0].Tasks != c.want {
			t.Errorf("after %s a tuning of four tasks has the windows %+v, want %d", name, plan.Windows, c.want)
		}
	}
}

func TestATermStartsItsTicksAnew(t *testing.T) {
	t.Parallel()
	var state predictor.State
	for _, want := range []struct{ term, tick uint64 }{{1, 1}, {1, 2}, {2, 1}, {2, 2}} {
		snap := laptop(1, 1)
		snap.Term = want.term
		var plan predictor.Plan
		plan, state = predictor.Decide(state, snap)
		if plan.Term != want.term || plan.Tick != want.tick {
			t.Errorf("plan %d.%d, want %d.%d", plan.Term, plan.Tick, want.term, want.tick)
		}
	}
}

func TestSilentAttemptsAndOldStagesAreForgotten(t *testing.T) {
	t.Parallel()
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "score", 1, 0),
		start("r", "score", 0, 0))
	ticks := func(from, to float64) (plan predictor.Plan) {
		for now := from; now <= to; now += 5 {
			plan, state = predictor.Decide(state, laptop(now, 1))
		}
		return plan
	}
	plan := ticks(0, 9*60)
	if slots(plan, "score", predictor.Pool) != 1 {
		t.Errorf("nine minutes after its start an attempt holds %d slots, want 1", slots(plan, "score", predictor.Pool))
	}
	plan = ticks(9*60, 11*60)
	if len(plan.Grants) != 0 {
		t.Errorf("after eleven silent minutes it holds %+v", plan.Grants)
	}
	state = fold(state, predictor.RunEnded{Run: "r", State: predictor.RunFailed, At: after(700)})
	_, state = predictor.Decide(state, laptop(3*3600, 1))
	if text := string(encode(t, state)); strings.Contains(text, `"stages"`) {
		t.Errorf("hours later the state still keeps the stage: %s", text)
	}
}

func TestForecastsRestOnEarlierRunsThatCalledTheSameStages(t *testing.T) {
	t.Parallel()
	var state predictor.State
	finish := func(run string, at, took float64, stages ...string) {
		state = fold(state, started(run, at, predictor.Goal{}))
		each := took / float64(len(stages))
		for i, stage := range stages {
			begins := at + each*float64(i)
			line := record(run, stage, i, begins+each, each)
			line.Cost = quantity.USD / 10
			state = fold(state, hint(run, stage, 1, begins), start(run, stage, i, begins), line)
		}
		state = fold(state, predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: after(at + took)})
	}
	forecast := func(now float64) (predictor.Forecast, bool) { return state.Forecast("now", after(now)) }
	state = fold(state, started("now", 0, predictor.Goal{}))
	if _, known := forecast(0); known {
		t.Error("a forecast without any earlier run is known")
	}
	state = fold(state, predictor.RunEnded{Run: "now", State: predictor.RunCancelled, At: after(1)})
	finish("one", 0, 100, "prep", "train")
	finish("two", 200, 120, "prep", "train")
	finish("three", 400, 140, "prep", "train", "score")
	finish("else", 600, 1000, "other")
	state = fold(
		state, started("now", 2000, predictor.Goal{}), hint("now", "prep", 1, 2001), start("now", "prep", 0, 2001),
	)
	got, known := forecast(2020)
	if !known || got.Runs != 3 || !about(got.Finish, 100, 0.15) {
		t.Errorf("after 20 s: %+v known %v, want about 100 s as three runs of 100 to 140 s tell", got, known)
	}
	if !about(got.Cost, 0.2, 0.15) || got.Cost.High < 0.25 {
		t.Errorf("its cost: %+v, want about $0.20, and $0.30 where it calls a third stage", got.Cost)
	}
	state = fold(state, record("now", "prep", 0, 2051, 50), hint("now", "train", 1, 2051), start("now", "train", 0, 2051),
		hint("now", "score", 1, 2051))
	if got, known = forecast(2061); !known || got.Runs != 1 || !about(got.Finish, 50, 0.35) {
		t.Errorf("once it called all three stages: %+v known %v, want about 50 s by its own tasks and the run like it", got,
			known)
	}
	if got, known = forecast(2400); !known || got.Finish.Low <= 0 {
		t.Errorf("a run that takes longer than all before: %+v known %v; its tasks still wait and run", got, known)
	}
	if _, known = state.Forecast("nobody", after(0)); known {
		t.Error("an unknown run has a forecast")
	}
	var none predictor.State
	if _, known = none.Forecast("now", after(0)); known {
		t.Error("the zero state has a forecast")
	}
}

func TestAForecastFromOneEarlierRunSaysSoAndIsNoIntervalWithoutWidth(t *testing.T) {
	t.Parallel()
	line := record("one", "prep", 0, 100, 100)
	line.Cost = quantity.USD / 10
	state := fold(
		predictor.State{}, started("one", 0, predictor.Goal{}), hint("one", "prep", 1, 0), start("one", "prep", 0, 0), line,
		predictor.RunEnded{Run: "one", State: predictor.RunSucceeded, At: after(100)},
		started("now", 200, predictor.Goal{}), hint("now", "prep", 1, 200), start("now", "prep", 0, 200),
	)
	got, known := state.Forecast("now", after(210))
	if got.Basis != "its own tasks and one earlier run, so it is wide" {
		t.Errorf("it rests on %q, want that one run tells little", got.Basis)
	}
	if !known || got.Runs != 1 || !about(got.Finish, 90, 0.25) || !about(got.Cost, 0.1, 0.25) ||
		got.Finish.High < 1.25*got.Finish.Mid || got.Finish.Low > 0.8*got.Finish.Mid {
		t.Errorf("after 10 s: %+v known %v, want about 90 s for $0.10, and as little certainty as one run gives", got, known)
	}
	outlook := state.Outlook("now", predictor.Goal{}, laptop(210, 1))
	if outlook.Runs != 1 || !strings.Contains(outlook.Summary, "a guess from one earlier run") {
		t.Errorf("the outlook rests on %d runs and says %q", outlook.Runs, outlook.Summary)
	}
}

// about reports whether the middle of a prediction is so close to what is wanted, relative to it, and between its ends.
func about(got predictor.Interval, want, part float64) bool {
	return math.Abs(got.Mid-want) <= part*want && got.Low <= got.Mid && got.Mid <= got.High
}

func TestWhatFollowsAStageCountsAgainstItsDeadline(t *testing.T) {
	t.Parallel()
	// In the earlier run, 30 s followed the end of the stage "score".
	state := learn(predictor.State{}, "score", 10, 1)
	line := record("one", "score", 0, -70, 1)
	state = fold(
		state, started("one", -100, predictor.Goal{}), hint("one", "score", 1, -100), line,
		predictor.RunEnded{Run: "one", State: predictor.RunSucceeded, At: after(-40)},
		started("r", 0, predictor.Goal{Deadline: 70 * time.Second}), hint("r", "score", 100, 0),
	)
	plan, _ := predictor.Decide(state, laptop(0, 1))
	told := strings.Join(reasons(plan), "\n")
	if slots(plan, "score", predictor.Function) != 2 || !strings.Contains(told, "with 40 s left to the deadline") {
		t.Errorf("got\n%s\nwant two function slots, because 40 s of 70 s are left for the stage", told)
	}
}

func TestACheckpointOfAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"v":11}`:                 "version 11, this build reads 2",
		`{"v":2,"recent":"AAAA"}`:  "cut short",
		`{"v":2,"stages":7}`:       "decode state",
		`{"v":2,"stages":[{}, 1]}`: "decode state",
	} {
		state := fold(predictor.State{}, started("r", 0, predictor.Goal{}))
		before := string(encode(t, state))
		if err := json.Unmarshal([]byte(text), &state); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", text, err, want)
		}
		if got := string(encode(t, state)); got != before {
			t.Errorf("%s: the state changed in spite of the error", text)
		}
	}
	var state predictor.State
	if err := json.Unmarshal(
		[]byte(`{"v":2,"stages":[null,{"id":{"app":"a","build":"b","name":"n"},"shares":{"r":null}}],"runs":[null]}`),
		&state); err != nil {
		t.Errorf("a checkpoint with holes: %v", err)
	}
	predictor.Decide(state, laptop(0, 1))
}

func TestAStageWithUnfinishedTasksIsPolledThoughItsQueueIsSaidToBeEmpty(t *testing.T) {
	t.Parallel()
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "score", 40, 0))
	for second := range 30 { // a server that was killed counts nothing until somebody polls
		state = predictor.Fold(state, predictor.BacklogObserved{Stage: stageNamed("score"), At: after(float64(20 + second))})
	}
	plan, state := predictor.Decide(state, laptop(60, 1))
	if got := slots(plan, "score", predictor.Pool); got != 1 {
		t.Errorf("forty tasks are not done and the queue is said to be empty: %d slots, want 1", got)
	}
	for i := range 40 {
		state = predictor.Fold(state, record("r", "score", i, 61, 0.1))
	}
	plan, _ = predictor.Decide(state, laptop(200, 1))
	if got := slots(plan, "score", predictor.Pool); got != 0 {
		t.Errorf("once all are done: %d slots, want 0", got)
	}
}

// TestASizeThatWasThoughtOfBeforeAHostJoinedIsThoughtOfAnew has a server decide before its first host is there: what a
// task is given then is what it would be given had the host been there from the start.
func TestASizeThatWasThoughtOfBeforeAHostJoinedIsThoughtOfAnew(t *testing.T) {
	t.Parallel()
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "new", 3, 0))
	want, _ := predictor.Decide(state, hosts(2, "a"))
	snapshot := laptop(1, 2)
	snapshot.Hosts = nil
	_, early := predictor.Decide(state, snapshot)
	got, _ := predictor.Decide(early, hosts(2, "a"))
	if diff := cmp.Diff(want.Grants, got.Grants); diff != "" {
		t.Errorf("with a host that joined later (-had it been there, +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.Sizings, got.Sizings); diff != "" {
		t.Errorf("sizings with a host that joined later (-had it been there, +got):\n%s", diff)
	}
}
