package predictor_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// anEvent draws an event as a stack sends it, of few runs, stages and tasks, so that events meet.
func anEvent(t *rapid.T) predictor.Event {
	run := rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "run")
	stage := stageNamed(rapid.SampledFrom([]string{"prep", "train", "score"}).Draw(t, "stage"))
	task := fmt.Sprintf("%s-%d", stage.Name, rapid.IntRange(0, 20).Draw(t, "task"))
	attempt := rapid.IntRange(1, 3).Draw(t, "attempt")
	venue := rapid.SampledFrom([]predictor.Venue{predictor.Pool, predictor.Function}).Draw(t, "venue")
	host := rapid.SampledFrom([]string{"laptop", "second", "gone"}).Draw(t, "host")
	when := after(rapid.Float64Range(0, 100).Draw(t, "at"))
	poolOnly := rapid.Bool().Draw(t, "pool only")
	wall := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "wall"))
	memory := quantity.Bytes(rapid.Int64Range(0, int64(3*quantity.GiB)).Draw(t, "memory"))
	instance := rapid.SampledFrom([]string{"", "first", "second"}).Draw(t, "instance")
	switch rapid.IntRange(0, 8).Draw(t, "kind") {
	case 0:
		return predictor.RunStarted{Run: run, Pipeline: "p", App: "app", Build: "b1", Goal: aGoal(t), At: when}
	case 1:
		return predictor.GoalChanged{Run: run, Goal: aGoal(t), At: when}
	case 2:
		return predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: when}
	case 3:
		return predictor.Scheduled{
			Run: run, Stage: stage, Tasks: rapid.IntRange(1, 300).Draw(t, "tasks"), PoolOnly: poolOnly, Input: memory / 100,
			Expected: rapid.IntRange(0, 500).Draw(t, "expected"), At: when,
		}
	case 4:
		return predictor.BacklogObserved{
			Stage: stage, PoolOnly: poolOnly, Tasks: rapid.IntRange(0, 300).Draw(t, "tasks"),
			At: when,
		}
	case 5:
		return predictor.AttemptStarted{
			Run: run, Stage: stage, Task: task, Attempt: attempt, Venue: venue, Host: host, Instance: instance,
			PoolOnly: poolOnly, At: when,
		}
	case 7:
		return predictor.HostStarted{Host: host, Venue: venue, Instance: instance, At: when}
	case 6:
		return predictor.Sampled{
			Run: run, Stage: stage, Task: task, Attempt: attempt, Venue: venue, Host: host, Memory: memory,
			CPU:       quantity.Milli(wall / time.Millisecond),
			Throttled: rapid.Float64Range(0, 1).Draw(t, "throttled"), Grant: quantity.Size{CPU: 1000, Memory: memory}, At: when,
		}
	default:
		return predictor.Record{
			Run: run, Stage: stage, Task: task, Attempt: attempt, Venue: venue, Host: host, PoolOnly: poolOnly, At: when,
			Outcome: rapid.SampledFrom([]predictor.Outcome{
				predictor.Succeeded, predictor.Succeeded, predictor.Succeeded, predictor.Failed, predictor.OutOfMemory,
				predictor.Lost,
			}).Draw(t, "outcome"),
			Training: &predictor.Training{
				StepSeconds: wall.Seconds(), Steps: int64(attempt),
				Parts: make([]predictor.TrainingPart, attempt%3),
			},
			Start: wall / 10, Cold: poolOnly, Cost: quantity.Money(wall), Grant: quantity.Size{CPU: 1000, Memory: memory},
			Predicted: predictor.Prediction{Wall: predictor.Interval{Mid: rapid.Float64Range(0, 100).Draw(t, "predicted")}},
			Usage:     quantity.Usage{CPU: wall / 2, Wall: wall, PeakMemory: memory, Input: memory / 100, Throttled: wall / 5},
			Features: map[string]float64{
				"rows": rapid.Float64Range(0, 1e6).Draw(t, "rows"), "kind=": rapid.Float64Range(0, 3).Draw(t, "kind"),
			},
		}
	}
}

func aGoal(t *rapid.T) predictor.Goal {
	return predictor.Goal{
		Deadline: time.Duration(rapid.SampledFrom([]int64{0, 0, int64(time.Minute), int64(time.Hour)}).Draw(t, "deadline")),
		Budget:   rapid.SampledFrom([]quantity.Money{0, 0, quantity.USD / 1000, quantity.USD}).Draw(t, "budget"),
		Minimise: rapid.SampledFrom([]predictor.Objective{"", "", predictor.Cost, predictor.Latency}).Draw(t, "minimise"),
	}
}

func aSnapshot(t *rapid.T, now float64) predictor.Snapshot {
	snap := laptop(now, rapid.IntRange(1, 8).Draw(t, "cores"))
	if rapid.Bool().Draw(t, "two hosts") {
		second := snap.Hosts[0]
		second.ID = "second"
		snap.Hosts = append(snap.Hosts, second)
	}
	snap.Functions.Enabled = rapid.IntRange(0, 3).Draw(t, "burst") > 0
	snap.Functions.Cores = quantity.Milli(rapid.SampledFrom([]int{0, 0, 500, 2000}).Draw(t, "function cores"))
	snap.Policy.Static = rapid.IntRange(0, 5).Draw(t, "static") == 0
	snap.Policy.Shadow = rapid.IntRange(0, 5).Draw(t, "shadow") == 0
	return snap
}

func aState(t *rapid.T) predictor.State {
	var state predictor.State
	for _, event := range rapid.SliceOfN(rapid.Custom(anEvent), 0, 120).Draw(t, "events") {
		state = predictor.Fold(state, event)
	}
	return state
}

// clone is a second state, by way of a checkpoint.
func clone(t *rapid.T, state predictor.State) predictor.State {
	data, err := json.Marshal(state)
	if err != nil {
		t.Fatalf("encode the state: %v", err)
	}
	var twin predictor.State
	if err := json.Unmarshal(data, &twin); err != nil {
		t.Fatalf("decode the state: %v", err)
	}
	return twin
}

func TestTheSameStateAndSnapshotGiveTheSamePlan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		state := aState(t)
		twin := clone(t, state)
		for tick := range 5 {
			snap := aSnapshot(t, 100+float64(tick))
			var plan, again predictor.Plan
			plan, state = predictor.Decide(state, snap)
			again, twin = predictor.Decide(twin, snap)
			if diff := cmp.Diff(plan, again); diff != "" {
				t.Fatalf("tick %d: two plans (-first +second):\n%s", tick, diff)
			}
		}
	})
}

func TestFoldAfterAJSONRoundTripEqualsFoldBefore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		state := aState(t)
		twin := clone(t, state)
		for _, event := range rapid.SliceOfN(rapid.Custom(anEvent), 0, 50).Draw(t, "more events") {
			state, twin = predictor.Fold(state, event), predictor.Fold(twin, event)
		}
		first, err := json.Marshal(state)
		if err != nil {
			t.Fatal(err)
		}
		second, err := json.Marshal(twin)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, second) {
			t.Fatalf("states differ after a round trip:\n%s\n%s", first, second)
		}
	})
}

func TestPlansKeepTheirPromises(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		state := aState(t)
		for tick := range 4 {
			for _, event := range rapid.SliceOfN(rapid.Custom(anEvent), 0, 20).Draw(t, "events between ticks") {
				state = predictor.Fold(state, event)
			}
			snap := aSnapshot(t, 100+float64(tick))
			running := runningOnHosts(t, state, snap)
			var plan predictor.Plan
			plan, state = predictor.Decide(state, snap)
			checkAmounts(t, plan)
			checkHosts(t, plan, snap, running)
			checkFunctions(t, plan, snap)
		}
	})
}

// runningOnHosts reads from a checkpoint how many attempts of each stage run on each host of the snapshot.
func runningOnHosts(t *rapid.T, state predictor.State, snap predictor.Snapshot) map[string]map[string]int {
	data, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	var saved struct {
		Attempts []struct {
			Stage    predictor.StageID `json:"stage"`
			Venue    predictor.Venue   `json:"venue"`
			Host     string            `json:"host"`
			Lost     bool              `json:"lost"`
			Replaced bool              `json:"replaced"`
		} `json:"attempts"`
	}
	if err := json.Unmarshal(data, &saved); err != nil {
		t.Fatal(err)
	}
	running := map[string]map[string]int{}
	for _, host := range snap.Hosts {
		running[host.ID] = map[string]int{}
	}
	for _, attempt := range saved.Attempts {
		if attempt.Venue == predictor.Pool && !attempt.Lost && !attempt.Replaced && running[attempt.Host] != nil {
			running[attempt.Host][attempt.Stage.Name]++
		}
	}
	return running
}

// checkAmounts: never a NaN, an infinity or a negative amount in a plan.
func checkAmounts(t *rapid.T, plan predictor.Plan) {
	finite := func(what string, values ...float64) {
		for _, v := range values {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				t.Fatalf("%s is %v in %+v", what, v, plan)
			}
		}
	}
	for _, g := range plan.Grants {
		finite("a grant", float64(g.Slots), float64(g.Size.CPU), float64(g.Size.Memory))
		if g.Slots == 0 || g.Size.CPU == 0 || g.Size.Memory == 0 {
			t.Fatalf("an empty row: %+v", g)
		}
	}
	for _, s := range plan.Sizings {
		finite("a sizing", float64(s.Base.CPU), float64(s.Base.Memory), s.Term.PerUnit, float64(s.Floor),
			s.Expected.Base, s.Expected.Ratio.Low, s.Expected.Ratio.Mid, s.Expected.Ratio.High, s.Wall.Low, s.Wall.Mid,
			s.Wall.High)
	}
	for _, w := range plan.Windows {
		finite("a window", float64(w.Tasks-1), float64(w.Priority-1))
	}
	seen := map[string]bool{}
	for _, d := range plan.Decisions {
		finite("a prediction of "+d.Reason, d.Predicted.Low, d.Predicted.Mid, d.Predicted.High)
		if d.Reason == "" || d.ID == "" || seen[d.ID] {
			t.Fatalf("a decision without a reason or an ID of its own: %+v", d)
		}
		seen[d.ID] = true
		if _, err := json.Marshal(d); err != nil {
			t.Fatal(err)
		}
	}
}

// checkHosts: never above a host's capacity beyond the slot that every stage has and those that run, never below what
// runs, and every slot of a grant is on a host.
func checkHosts(t *rapid.T, plan predictor.Plan, snap predictor.Snapshot, running map[string]map[string]int) {
	sizes, granted := map[string]quantity.Size{}, map[string]int{}
	for _, g := range plan.Grants {
		if g.Venue == predictor.Pool {
			sizes[g.Stage.Name], granted[g.Stage.Name] = g.Size, g.Slots
		}
	}
	placed := map[string]map[string]int{}
	for _, p := range plan.Placements {
		if placed[p.Host] == nil {
			placed[p.Host] = map[string]int{}
		}
		placed[p.Host][p.Stage.Name] += p.Slots
		granted[p.Stage.Name] -= p.Slots
	}
	for stage, missing := range granted {
		if missing != 0 {
			t.Fatalf("%d slots of %s are on no host: %+v", missing, stage, plan)
		}
	}
	for _, host := range snap.Hosts {
		var held quantity.Size
		extra := false
		for stage, slots := range placed[host.ID] {
			for range slots {
				held = held.Plus(sizes[stage])
			}
			extra = extra || slots > max(1, running[host.ID][stage])
		}
		if extra && (held.CPU > host.Capacity.CPU || held.Memory > host.Capacity.Memory) {
			t.Fatalf("host %s holds %v of %v: %+v", host.ID, held, host.Capacity, plan.Placements)
		}
		for stage, runs := range running[host.ID] {
			if placed[host.ID][stage] < runs {
				t.Fatalf("%d attempts of %s run on %s, which holds %d slots", runs, stage, host.ID, placed[host.ID][stage])
			}
		}
	}
}

// checkFunctions: never more environments than the venue has, and none when it is off.
func checkFunctions(t *rapid.T, plan predictor.Plan, snap predictor.Snapshot) {
	sum := 0
	for _, g := range plan.Grants {
		if g.Venue == predictor.Function {
			sum += g.Slots
		}
	}
	if sum > snap.Functions.Concurrency || (sum > 0 && (!snap.Functions.Enabled || snap.Policy.Static)) {
		t.Fatalf("%d function slots of %d, enabled %v, static %v", sum, snap.Functions.Concurrency, snap.Functions.Enabled,
			snap.Policy.Static)
	}
}

func TestMoreBacklogNeverMeansFewerPoolSlots(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		snap := laptop(1, rapid.IntRange(1, 16).Draw(t, "cores"))
		var state predictor.State
		stages := []string{"a", "b", "c", "d"}[:rapid.IntRange(1, 4).Draw(t, "stages")]
		state = fold(state, started("r", 0, predictor.Goal{}))
		var first quantity.Milli
		for _, stage := range stages {
			cpu := quantity.Milli(rapid.SampledFrom([]int{500, 1000, 2000}).Draw(t, "cpu"))
			if first == 0 {
				first = cpu
			}
			state = learn(state, stage, 1, rapid.Float64Range(0.01, 100).Draw(t, "wall"))
			scheduled := hint("r", stage, rapid.IntRange(1, 50).Draw(t, "tasks"), 0)
			scheduled.Declared = quantity.Size{CPU: cpu, Memory: 64 * quantity.MiB}
			state = fold(state, scheduled)
		}
		more := clone(t, state)
		scheduled := hint("r", stages[0], rapid.IntRange(1, 100).Draw(t, "more"), 0)
		scheduled.Declared = quantity.Size{CPU: first, Memory: 64 * quantity.MiB}
		more = fold(more, scheduled)
		few, _ := predictor.Decide(state, snap)
		many, _ := predictor.Decide(more, snap)
		if got, want := slots(many, stages[0], predictor.Pool), slots(few, stages[0], predictor.Pool); got < want {
			t.Fatalf("more backlog: %d slots, less backlog: %d", got, want)
		}
	})
}
