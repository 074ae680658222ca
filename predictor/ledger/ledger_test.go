package ledger_test

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var (
	epoch = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	score = predictor.StageID{App: "app", Build: "b1", Name: "score"}
)

func after(seconds float64) time.Time {
	return epoch.Add(time.Duration(seconds * float64(time.Second)))
}

func apply(events ...predictor.Event) *ledger.Ledger {
	l := ledger.New()
	for _, event := range events {
		l.Apply(event)
	}
	return l
}

func started(run string) predictor.RunStarted {
	return predictor.RunStarted{
		Run: run, Pipeline: "digits", App: "app", Build: "b1", Event: "e1",
		Goal: predictor.Goal{Budget: quantity.USD}, At: epoch,
	}
}

func record(task, attempt int, venue predictor.Venue, outcome predictor.Outcome) predictor.Record {
	return predictor.Record{
		Run: "r", Stage: score, Task: fmt.Sprint("t", task), Attempt: attempt, Venue: venue, Outcome: outcome, At: after(10),
		Queue: time.Second, Start: 100 * time.Millisecond, Grant: quantity.Size{CPU: 1000, Memory: 128 * quantity.MiB},
		Cost: 1000,
		Predicted: predictor.Prediction{
			Memory: predictor.Interval{Low: 50e6, Mid: 100e6, High: 120e6}, Wall: predictor.Interval{Low: 1, Mid: 2, High: 3},
			Source: "declared",
		},
		Usage: quantity.Usage{CPU: 2 * time.Second, Wall: 4 * time.Second, PeakMemory: 100e6},
	}
}

func view(t *testing.T, l *ledger.Ledger, run string) ledger.RunView {
	t.Helper()
	found, known := l.Run(run)
	if !known {
		t.Fatalf("run %q is not known", run)
	}
	return found
}

func TestARunIsAccountedFromItsEvents(t *testing.T) {
	t.Parallel()
	l := apply(
		started("r"),
		predictor.Scheduled{Run: "r", Stage: score, Tasks: 3, Expected: 1, Declared: quantity.Size{CPU: 500}, At: after(1)},
		predictor.AttemptStarted{Run: "r", Stage: score, Task: "t0", Attempt: 1, Venue: predictor.Pool, At: after(2)},
		predictor.Sampled{
			Run: "r", Stage: score, Task: "t0", Step: 7,
			Metrics: map[string]float64{"loss": 0.5, "bad": math.NaN()}, Memory: 90e6, At: after(3),
		},
		record(0, 1, predictor.Pool, predictor.OutOfMemory),
		record(0, 2, predictor.Pool, predictor.Succeeded),
		record(1, 1, predictor.Function, predictor.Refused),
		record(1, 2, predictor.Pool, predictor.Lost),
		predictor.AttemptStarted{Run: "r", Stage: score, Task: "t2", Attempt: 1, Venue: predictor.Function, At: after(11)},
	)
	l.SetPlan(predictor.Plan{Grants: []predictor.Grant{
		{Stage: score, Venue: predictor.Function, Slots: 2}, {Stage: score, Venue: predictor.Pool, Slots: 1},
	}})
	l.Forecast("r", after(5), predictor.Forecast{
		Finish: predictor.Interval{Low: 10, Mid: 20, High: 30},
		Cost:   predictor.Interval{Mid: 0.1}, Runs: 3, Basis: "its own tasks", Late: 0.25, Dear: 0.75,
	})
	l.Forecast("r", after(9), predictor.Forecast{Finish: predictor.Interval{Mid: 1}})
	want := ledger.RunView{
		Run: "r", Pipeline: "digits", App: "app", Build: "b1", State: predictor.RunRunning,
		Goal:      predictor.Goal{Budget: quantity.USD},
		StartedAt: epoch, Event: "e1",
		Stages: []ledger.StageView{{
			Name: "score", Declared: quantity.Size{CPU: 500}, Expected: 4, Scheduled: 3, Running: 1, Done: 1,
			Attempts: 4, Failed: 1, OutOfMemory: 1, Lost: 1, Refused: 1,
			Tasks:        map[predictor.Venue]int{predictor.Pool: 1, predictor.Function: 0},
			QueueSeconds: 4, StartSeconds: 0.4, RunSeconds: 16, CPUSeconds: 8, PeakMemory: 100e6,
			Wait: ledger.Wait{MedianSeconds: 1, LongestSeconds: 1, Attempts: 3}, // the venue refused the fourth
			Memory: map[predictor.Venue]ledger.Memory{
				predictor.Pool: {Peak: 100e6, Grant: 128 * quantity.MiB}, predictor.Function: {},
			},
			Slots:         map[predictor.Venue]int{predictor.Pool: 1, predictor.Function: 2},
			PredictedWall: predictor.Interval{Low: 1, Mid: 2, High: 3}, ActualWall: 4,
			PredictedMemory: predictor.Interval{Low: 50e6, Mid: 100e6, High: 120e6}, WallError: 1, WallErrors: 1,
			MemoryErrors: 1,
			Cost:         4000, Step: 7, Metrics: map[string]float64{"loss": 0.5},
		}},
		Totals: ledger.Totals{
			QueueSeconds: 4, StartSeconds: 0.4, RunSeconds: 16, CPUSeconds: 8,
			Tasks: map[predictor.Venue]int{predictor.Pool: 1, predictor.Function: 0}, Attempts: 4, Failures: 1, OutOfMemory: 1,
			Cost: 4000,
		},
		Predicted: ledger.RunPrediction{
			FinishSeconds: predictor.Interval{Low: 15, Mid: 25, High: 35}, Cost: predictor.Interval{Mid: 0.1}, Runs: 3,
			Basis: "its own tasks", Late: 0.25, Dear: 0.75, At: after(5),
		},
		Latest: ledger.RunPrediction{FinishSeconds: predictor.Interval{Low: 9, Mid: 10, High: 9}, At: after(9)},
		Static: ledger.Static{ // no host has told its price
			Actual: 4000, Sizes: map[string]quantity.Size{"score": {CPU: 500, Memory: 110e6}},
		},
		Actual: ledger.RunActual{Seconds: 11, Cost: 4000},
	}
	if diff := cmp.Diff(want, view(t, l, "r"), cmpopts.EquateApprox(1e-9, 0)); diff != "" {
		t.Errorf("the view (-want +got):\n%s", diff)
	}

	l.Apply(predictor.RunEnded{
		Run: "r", State: predictor.RunSucceeded, Result: []byte(`{"accuracy":0.97}`),
		At: after(20),
	})
	ended := view(t, l, "r")
	if ended.State != predictor.RunSucceeded || ended.Actual.Seconds != 20 ||
		string(ended.Result) != `{"accuracy":0.97}` || !ended.EndedAt.Equal(after(20)) {
		t.Errorf("the ended run: %+v", ended)
	}
	if ended.Stages[0].Running != 0 || ended.Stages[0].Slots[predictor.Function] != 0 {
		t.Errorf("an ended run has attempts or slots: %+v", ended.Stages[0])
	}
}

func TestWhatIsDoubledCountsOnce(t *testing.T) {
	t.Parallel()
	begun := predictor.AttemptStarted{Run: "r", Stage: score, Task: "t0", Attempt: 1, Venue: predictor.Pool, At: after(2)}
	ended := predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: after(20)}
	for _, c := range []struct {
		name                   string
		events                 []predictor.Event
		running, done, attempt int
		state                  predictor.RunState
	}{
		{"a start", []predictor.Event{started("r"), begun, begun}, 1, 0, 0, predictor.RunRunning},
		{"a Record", []predictor.Event{
			started("r"), begun, record(0, 1, predictor.Pool, predictor.Succeeded),
			record(0, 1, predictor.Pool, predictor.Succeeded),
		}, 0, 1, 1, predictor.RunRunning},
		{
			"a task that two attempts finished",
			[]predictor.Event{
				started("r"),
				record(0, 1, predictor.Pool, predictor.Succeeded), record(0, 2, predictor.Pool, predictor.Succeeded),
			},
			0, 1, 2,
			predictor.RunRunning,
		},
		{"a start after its Record", []predictor.Event{
			started("r"), record(0, 1, predictor.Pool, predictor.Succeeded),
			begun,
		}, 0, 1, 1, predictor.RunRunning},
		{
			"an attempt whose host died without a Record",
			[]predictor.Event{started("r"), begun, attempt(begun, 2)},
			1, 0, 0,
			predictor.RunRunning,
		},
		{
			"the start of a run after its end",
			[]predictor.Event{started("r"), ended, started("r")},
			0, 0, 0,
			predictor.RunSucceeded,
		},
		{"the end of a run", []predictor.Event{
			started("r"), ended,
			predictor.RunEnded{Run: "r", State: predictor.RunFailed, At: after(21)},
		}, 0, 0, 0, predictor.RunSucceeded},
		{"a Record a little after the end", []predictor.Event{
			started("r"), begun, ended, record(0, 1, predictor.Pool, predictor.Succeeded),
			record(0, 1, predictor.Pool, predictor.Succeeded),
		}, 0, 1, 1, predictor.RunSucceeded},
		{"events before the start", []predictor.Event{begun, started("r")}, 1, 0, 0, predictor.RunRunning},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := view(t, apply(c.events...), "r")
			stage := ledger.StageView{}
			if len(got.Stages) > 0 {
				stage = got.Stages[0]
			}
			if stage.Running != c.running || stage.Done != c.done || stage.Attempts != c.attempt || got.State != c.state ||
				got.Pipeline != "digits" {
				t.Errorf("%d run, %d done in %d attempts, %s of %q; want %d, %d, %d, %s of digits",
					stage.Running, stage.Done, stage.Attempts, got.State, got.Pipeline, c.running, c.done, c.attempt, c.state)
			}
		})
	}
}

func attempt(begun predictor.AttemptStarted, number int) predictor.AttemptStarted {
	begun.Attempt = number
	return begun
}

func TestATaskThatAVenueRefusedIsScheduledOnce(t *testing.T) {
	t.Parallel()
	l := apply(
		started("r"), predictor.Scheduled{Run: "r", Stage: score, Tasks: 2, At: after(1)},
		record(0, 1, predictor.Function, predictor.Refused),
		predictor.Scheduled{Run: "r", Stage: score, Tasks: 1, PoolOnly: true, At: after(2)},
	)
	if got := view(t, l, "r").Stages[0].Scheduled; got != 2 {
		t.Errorf("%d tasks are scheduled, want 2", got)
	}
}

func TestARunIDThatStartsAgainBeginsANewAccount(t *testing.T) {
	t.Parallel()
	again := started("r")
	again.At = after(100)
	l := apply(started("r"), record(0, 1, predictor.Pool, predictor.Succeeded),
		predictor.RunEnded{Run: "r", State: predictor.RunFailed, Error: "boom", At: after(50)}, again)
	if got := view(t, l, "r"); got.State != predictor.RunRunning || got.Error != "" || len(got.Stages) != 0 ||
		len(l.Runs(ledger.Query{}).Runs) != 1 {
		t.Errorf("the second run of the ID: %+v", got)
	}
}

func TestRunsAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	l := ledger.New()
	for i := range 5 {
		run := started(fmt.Sprint("r", i))
		if i == 3 {
			run.Pipeline = "other"
		}
		l.Apply(run)
	}
	l.Apply(predictor.RunEnded{Run: "r1", State: predictor.RunSucceeded, At: after(1)})
	for _, c := range []struct {
		query ledger.Query
		want  []string
	}{
		{ledger.Query{}, []string{"r4", "r3", "r2", "r1", "r0"}},
		{ledger.Query{Limit: 2}, []string{"r4", "r3"}},
		{ledger.Query{State: predictor.RunRunning}, []string{"r4", "r3", "r2", "r0"}},
		{ledger.Query{Pipeline: "digits", Limit: 3}, []string{"r4", "r2", "r1"}},
		{ledger.Query{Pipeline: "none"}, nil},
	} {
		var got []string
		for _, run := range l.Runs(c.query).Runs {
			got = append(got, run.Run)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.query, got, c.want)
		}
	}
	if _, known := l.Run("nobody"); known {
		t.Error("an unknown run is known")
	}
}

func TestDecisionsAreThoseAboutTheRunWhileItRan(t *testing.T) {
	t.Parallel()
	l := apply(started("r"), started("s"))
	add := func(id string, at float64, run, build string) {
		stage := score
		stage.Build = build
		l.Decided(predictor.Decision{ID: id, At: after(at), Stage: stage, Run: run})
	}
	add("before", -1, "", "b1")
	add("own", 1, "r", "b1")
	add("own", 1, "r", "b1") // delivered twice
	add("of another run", 2, "s", "b1")
	add("shared", 3, "", "b1")
	add("of another build", 4, "", "b2")
	l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: after(5)})
	add("after", 6, "", "b1")
	ids := func(run string, limit int) (found []string) {
		var about *ledger.RunView
		if run != "" {
			of, _ := l.Run(run)
			about = &of
		}
		for _, d := range l.Decisions(about, limit) {
			found = append(found, d.ID)
		}
		return found
	}
	if diff := cmp.Diff([]string{"own", "shared"}, ids("r", 0)); diff != "" {
		t.Errorf("decisions about r (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"shared", "of another build", "after"}, ids("", 3)); diff != "" {
		t.Errorf("the latest three (-want +got):\n%s", diff)
	}
}

func TestResultsThatWereCutAreStillJSON(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{`{"a":1}`: `{"a":1}`, `{"a":`: `"{\"a\":"`, "": ""} {
		l := apply(started("r"), predictor.RunEnded{
			Run: "r", State: predictor.RunSucceeded, Result: []byte(given),
			At: after(1),
		})
		got := view(t, l, "r")
		if string(got.Result) != want {
			t.Errorf("result %q is kept as %q, want %q", given, got.Result, want)
		}
		if _, err := json.Marshal(got); err != nil {
			t.Errorf("result %q: %v", given, err)
		}
	}
}

func TestMemoryStaysBounded(t *testing.T) {
	l := ledger.New()
	for i := range 1500 {
		id := fmt.Sprint("run-", i)
		l.Apply(predictor.RunStarted{Run: id, At: after(float64(i))})
		for task := range 20 {
			line := record(task, 1, predictor.Pool, predictor.Succeeded)
			line.Run = id
			l.Apply(line)
		}
		l.Apply(predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(float64(i) + 0.5)})
		for d := range 10 {
			l.Decided(predictor.Decision{ID: fmt.Sprint(i, ".", d), Run: id, At: after(float64(i))})
		}
	}
	if runs := l.Runs(ledger.Query{}).Runs; len(runs) != 1000 || runs[0].Run != "run-1499" {
		t.Errorf("%d runs are kept, the newest %s; want 1000 and run-1499", len(runs), runs[0].Run)
	}
	if decisions := l.Decisions(nil, 0); len(decisions) != 5000 || decisions[4999].ID != "1499.9" {
		t.Errorf("%d decisions are kept, want the latest 5000", len(decisions))
	}
	before := heap()
	l.Apply(predictor.RunStarted{Run: "large", At: after(2000)})
	for task := range 10_000 {
		line := record(task, 1, predictor.Pool, predictor.Succeeded)
		line.Run = "large"
		l.Apply(line)
	}
	// about 200 bytes for an attempt, and the keys that tell doubled Records apart
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("a run of 10,000 tasks takes %d KiB, want at most 4096", grown>>10)
	}
	runtime.KeepAlive(l)
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestTheOrderOfRecordsDoesNotChangeTheSums(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var lines []predictor.Event
		for range rapid.IntRange(0, 40).Draw(t, "records") {
			lines = append(lines, record(
				rapid.IntRange(0, 9).Draw(t, "task"), rapid.IntRange(1, 3).Draw(t, "attempt"),
				predictor.Pool, rapid.SampledFrom([]predictor.Outcome{
					predictor.Succeeded, predictor.Failed,
					predictor.OutOfMemory,
				}).Draw(t, "outcome"),
			))
		}
		// Records of one attempt agree: only the first counts.
		lines = slices.CompactFunc(sortedByAttempt(lines), func(a, b predictor.Event) bool {
			return attemptOf(a) == attemptOf(b)
		})
		shuffled := rapid.Permutation(append(slices.Clone(lines), lines...)).Draw(t, "order")
		first, _ := apply(append([]predictor.Event{started("r")}, lines...)...).Run("r")
		second, _ := apply(append([]predictor.Event{started("r")}, shuffled...)...).Run("r")
		if diff := cmp.Diff(first, second, cmpopts.EquateApprox(1e-9, 0)); diff != "" {
			t.Fatalf("in order and out of order (-in +out):\n%s", diff)
		}
		if first.Totals.Tasks[predictor.Pool] > first.Totals.Attempts {
			t.Fatalf("more tasks than attempts: %+v", first.Totals)
		}
	})
}

func attemptOf(event predictor.Event) string {
	line, _ := event.(predictor.Record)
	return fmt.Sprint(line.Task, "/", line.Attempt)
}

func sortedByAttempt(lines []predictor.Event) []predictor.Event {
	return slices.SortedStableFunc(slices.Values(lines), func(a, b predictor.Event) int {
		return slices.Compare([]byte(attemptOf(a)), []byte(attemptOf(b)))
	})
}

func TestThePoolCostIsTheLargerShareOfTheHost(t *testing.T) {
	t.Parallel()
	host := predictor.Host{Capacity: quantity.Size{CPU: 4000, Memory: 8 * quantity.GiB}, PricePerHour: quantity.USD}
	for _, c := range []struct {
		name string
		size quantity.Size
		held time.Duration
		want quantity.Money
	}{
		{"a core of four for an hour", quantity.Size{CPU: 1000, Memory: quantity.GiB}, time.Hour, quantity.USD / 4},
		{
			"half of the memory for half an hour",
			quantity.Size{CPU: 1000, Memory: 4 * quantity.GiB},
			30 * time.Minute,
			quantity.USD / 4,
		},
		{"never more than the host", quantity.Size{CPU: 9000}, time.Hour, quantity.USD},
		{"nothing for a clock that stepped back", quantity.Size{CPU: 1000}, -time.Hour, 0},
	} {
		if got := ledger.PoolCost(host, c.size, c.held); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := ledger.PoolCost(predictor.Host{}, quantity.Size{CPU: 1000}, time.Hour); got != 0 {
		t.Errorf("a host without a price costs %v", got)
	}
}

func BenchmarkApply(b *testing.B) {
	l := apply(started("r"))
	lines := make([]predictor.Event, 10_000)
	for i := range lines {
		lines[i] = record(i, 1, predictor.Pool, predictor.Succeeded)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		l.Apply(lines[i%len(lines)])
		i++
	}
}

func ExampleLedger() {
	l := ledger.New()
	l.Apply(started("r"))
	l.Apply(predictor.Scheduled{Run: "r", Stage: score, Tasks: 2, At: after(1)})
	l.Apply(record(0, 1, predictor.Pool, predictor.Succeeded))
	l.Apply(record(1, 1, predictor.Function, predictor.Succeeded))
	l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: after(12)})
	run, _ := l.Run("r")
	fmt.Printf("%s in %.0f s: %d tasks at the pool, %d at functions, %.0f s of run time\n",
		run.State, run.Actual.Seconds, run.Totals.Tasks[predictor.Pool], run.Totals.Tasks[predictor.Function],
		run.Totals.RunSeconds)
	// Output: succeeded in 12 s: 1 tasks at the pool, 1 at functions, 8 s of run time
}
