package ledgerstore_test

import (
	"context"
	"encoding/csv"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var (
	epoch = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	score = predictor.StageID{App: "app", Build: "b1", Name: "score"}
)

func after(seconds float64) time.Time {
	return epoch.Add(time.Duration(seconds * float64(time.Second)))
}

// tester is a test, or one try of a property.
type tester interface {
	Cleanup(end func())
	Helper()
	Fatal(args ...any)
}

// accounts are a ledger and a store of the same events.
type accounts struct {
	ledger   *ledger.Ledger
	store    *ledgerstore.Store
	sequence uint64
}

// apply tells events to a ledger and a store in memory.
func apply(t tester, events ...predictor.Event) *accounts {
	t.Helper()
	store, err := ledgerstore.OpenAnywhere(context.Background(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, store) })
	a := &accounts{ledger: ledger.New(), store: store}
	a.tell(t, events...)
	return a
}

// tell tells more.
func (a *accounts) tell(t tester, events ...predictor.Event) {
	t.Helper()
	lines := make([]loop.Line, len(events))
	for i, event := range events {
		a.ledger.Apply(event)
		a.sequence++
		lines[i] = loop.Line{Sequence: a.sequence, Stored: event.When(), Message: wire.Message{Event: event}}
	}
	if err := a.store.Take(context.Background(), lines); err != nil {
		t.Fatal(err)
	}
}

func (a *accounts) bill(t tester, query ledger.BillQuery, now time.Time) ledger.Bill {
	t.Helper()
	bill, err := a.store.Bill(context.Background(), ledgerstore.Request{
		BillQuery: query, Now: now, Latest: a.ledger.Latest(), Accruing: a.ledger.Accruing(now),
	})
	if err != nil {
		t.Fatal(err)
	}
	return bill
}

const cent = quantity.USD / 100

// line is a Record of an attempt that was admitted at from and ended at to, in seconds, and whose start took no time.
func line(
	run, stage, task string, venue predictor.Venue, host string, from, to float64, cost quantity.Money,
) predictor.Record {
	return predictor.Record{
		Run: run, Pipeline: "p-" + run, Stage: predictor.StageID{App: "app", Build: "b1", Name: stage},
		Task: task, Attempt: 1, Venue: venue, Host: host, Outcome: predictor.Succeeded,
		ScheduledAt: after(from), At: after(to), Grant: quantity.Size{CPU: 1000, Memory: quantity.GiB}, Cost: cost,
		Usage: quantity.Usage{
			Wall: after(to).Sub(after(from)), CPU: after(to).Sub(after(from)) / 2, PeakMemory: quantity.GiB / 2,
		},
	}
}

func held(host string, from, to float64, perHour quantity.Money) predictor.HostHeld {
	return predictor.HostHeld{
		Host: host, Capacity: quantity.Size{CPU: 4000, Memory: 8 * quantity.GiB}, PricePerHour: perHour,
		From: after(from), At: after(to),
	}
}

func run(id string) predictor.RunStarted {
	return predictor.RunStarted{Run: id, Pipeline: "p-" + id, App: "app", Build: "b1", At: epoch}
}

// spending are two runs over two hosts and functions in three minutes.
func spending() []predictor.Event {
	failed := line("r", "score", "t2", predictor.Function, "fn", 60, 100, 5*cent)
	failed.Outcome = predictor.Failed
	return []predictor.Event{
		run("r"), run("s"),
		held("h", 0, 120, 60*cent), held("h", 120, 180, 60*cent), held("i", 0, 60, 600*cent),
		line("r", "prep", "t0", predictor.Pool, "h", 0, 60, cent/4),
		line("r", "score", "t1", predictor.Pool, "h", 60, 120, cent/4),
		failed,
		line("s", "score", "t0", predictor.Pool, "h", 60, 90, cent/2),
		predictor.Reused{
			Run: "s", Stage: predictor.StageID{App: "app", Build: "b1", Name: "prep"}, Tasks: 3, From: "r",
			Saved: cent, Wall: time.Minute, At: after(5),
		},
	}
}

func TestABillSaysWhoSpentWhat(t *testing.T) {
	t.Parallel()
	l := apply(t, append(spending(), spending()...)...) // doubled
	total := ledger.Bill{
		Since: epoch, Until: after(180), Attempts: 6 * cent, Pool: cent, Function: 5 * cent,
		Idle: 12 * cent, Unused: 11 * cent, Total: 18 * cent,
	}
	unused := ledger.Line{Idle: 11 * cent, Total: 11 * cent}
	quarter := cent / 4
	for _, c := range []struct {
		by   ledger.Dimension
		want []ledger.Line
	}{
		{ledger.ByStage, []ledger.Line{
			unused,
			{
				Name: "app/score", Count: 3, Tasks: 2, Held: 130 * time.Second, Pool: 3 * quarter, Function: 5 * cent,
				Idle: quarter, Total: 6 * cent, Wasted: 5 * cent,
			},
			{Name: "app/prep", Count: 1, Tasks: 1, Reused: 3, Held: time.Minute, Pool: quarter, Idle: 3 * quarter, Total: cent},
		}},
		{ledger.ByRun, []ledger.Line{
			unused,
			{
				Name: "r", Count: 3, Tasks: 2, Held: 160 * time.Second, Pool: cent / 2, Function: 5 * cent,
				Idle: 3*quarter + 1_666_666_667, Total: 6*cent + quarter + 1_666_666_667, Wasted: 5 * cent,
			},
			{
				Name: "s", Count: 1, Tasks: 1, Reused: 3, Held: 30 * time.Second, Pool: cent / 2, Idle: 833_333_333,
				Total: cent/2 + 833_333_333,
			},
		}},
		{ledger.ByHost, []ledger.Line{
			{Name: "i", Idle: 10 * cent, Total: 10 * cent},
			{Name: "fn", Count: 1, Held: 40 * time.Second, Function: 5 * cent, Total: 5 * cent, Wasted: 5 * cent},
			{Name: "h", Count: 3, Tasks: 3, Held: 150 * time.Second, Pool: cent, Idle: 2 * cent, Total: 3 * cent},
		}},
		{ledger.ByVenue, []ledger.Line{
			unused,
			{Name: "function", Count: 1, Held: 40 * time.Second, Function: 5 * cent, Total: 5 * cent, Wasted: 5 * cent},
			{Name: "pool", Count: 3, Tasks: 3, Held: 150 * time.Second, Pool: cent, Idle: cent, Total: 2 * cent},
		}},
	} {
		got := l.bill(t, ledger.BillQuery{By: c.by}, after(170))
		want := total
		want.By, want.Lines = c.by, c.want
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("by %s (-want +got):\n%s", c.by, diff)
		}
	}
	of := l.bill(t, ledger.BillQuery{By: ledger.ByPipeline, Run: "s"}, after(170))
	if len(of.Lines) != 1 || of.Lines[0].Name != "p-s" || of.Total != cent/2+833_333_333 || of.Unused != 0 {
		t.Errorf("the bill of one run: %+v", of)
	}
	half := l.bill(t, ledger.BillQuery{Since: after(75), Until: after(90), Pipeline: "p-s"}, after(170))
	if half.Pool != cent/4 || half.Lines[0].Held != 15*time.Second {
		t.Errorf("half of the time of the one attempt of s: %+v", half)
	}
}

// TestAGangIsOnTheBillOnEachOfItsHostsOnce: what other hosts hold for an attempt is theirs on the bill, while it goes
// on and once it has ended, told once or twice, and is idle on none of them.
func TestAGangIsOnTheBillOnEachOfItsHostsOnce(t *testing.T) {
	t.Parallel()
	training := line("r", "train", "t0", predictor.Pool, "h", 0, 60, 3*cent)
	training.Members = []predictor.HostShare{{Host: "i", Cost: cent}, {Host: "j", Cost: cent / 2}}
	begun := predictor.AttemptStarted{
		Run: "r", Stage: training.Stage, Task: "t0", Attempt: 1, Venue: predictor.Pool, Host: "h", Grant: training.Grant,
		Members: []predictor.HostShare{{Host: "i", PerHour: 60 * cent}, {Host: "j", PerHour: 30 * cent}}, At: after(0),
	}
	a := apply(t, run("r"), held("h", 0, 60, 60*cent), held("i", 0, 60, 60*cent), held("j", 0, 60, 60*cent), begun)
	costs := func(now float64) (pool, idle map[string]quantity.Money) {
		pool, idle = map[string]quantity.Money{}, map[string]quantity.Money{}
		for _, line := range a.bill(t, ledger.BillQuery{By: ledger.ByHost}, after(now)).Lines {
			pool[line.Name], idle[line.Name] = line.Pool, line.Idle
		}
		return pool, idle
	}
	pool, idle := costs(60)
	if pool["i"] != cent || pool["j"] != cent/2 || idle["i"] != 0 || idle["j"] != cent/2 {
		t.Errorf("while it goes on hosts cost %v, and %v idle", pool, idle)
	}
	a.tell(t, training, training)
	want := map[string]quantity.Money{"h": 3*cent - cent - cent/2, "i": cent, "j": cent / 2}
	if pool, idle = costs(120); !maps.Equal(pool, want) || idle["i"] != 0 || idle["j"] != cent/2 || idle["h"] != 0 {
		t.Errorf("hosts cost %v, and %v idle; want %v, and 0.5 cents of j", pool, idle, want)
	}
	total := a.bill(t, ledger.BillQuery{By: ledger.ByRun}, after(120))
	if total.Pool != 3*cent || total.Lines[0].Count != 1 || total.Lines[0].Tasks != 1 {
		t.Errorf("the bill is %+v, want 3 cents of one attempt", total)
	}
}

func TestAnAttemptThatGoesOnCountsUntilNow(t *testing.T) {
	t.Parallel()
	begun := predictor.AttemptStarted{
		Run: "r", Stage: score, Task: "t0", Attempt: 1, Venue: predictor.Pool, Host: "h",
		Grant: quantity.Size{CPU: 1000, Memory: quantity.GiB}, Queue: time.Second, At: after(60),
	}
	l := apply(t, run("r"), held("h", 0, 180, 60*cent), begun)
	for _, c := range []struct {
		now              time.Time
		pool, idle, free quantity.Money
	}{
		{after(60), 0, 3 * cent, 3 * cent},
		{after(120), cent / 4, 3*cent - cent/4, 2 * cent},
		{after(180), cent / 2, 3*cent - cent/2, cent},
	} {
		if got := l.bill(t, ledger.BillQuery{}, c.now); got.Pool != c.pool || got.Idle != c.idle || got.Unused != c.free ||
			got.Total != 3*cent {
			t.Errorf("at %v: %+v, want %v at the pool and %v idle, of which %v is unused", c.now, got, c.pool, c.idle, c.free)
		}
	}
	l.tell(t, line("r", "score", "t0", predictor.Pool, "h", 60, 120, cent/8))
	if got := l.bill(t, ledger.BillQuery{}, after(180)); got.Pool != cent/8 || got.Total != 3*cent {
		t.Errorf("once its Record is there: %+v, want what the Record says", got)
	}
}

// TestABillOfManyAttemptsThatGoOnLeavesOutThoseThatWereTold asks for more than fit into one query, of two runs one of
// which has started anew.
func TestABillOfManyAttemptsThatGoOnLeavesOutThoseThatWereTold(t *testing.T) {
	t.Parallel()
	const attempts = 25_000
	again := run("s")
	again.At = after(50)
	a := apply(t, run("r"), run("s"), predictor.RunEnded{Run: "s", State: predictor.RunSucceeded, At: after(40)}, again)
	var told []predictor.Event
	var going []ledger.Accruing
	for i := range attempts {
		owner := spend.Owner{Run: []string{"r", "s"}[i%2], Pipeline: "p", Stage: "app/score"}
		task := fmt.Sprint("t", i)
		going = append(going, ledger.Accruing{Task: task, Attempt: 1, Span: spend.Span{
			Owner: &owner, Venue: predictor.Pool, Host: "h", From: after(60).UnixNano(), To: after(120).UnixNano(),
			Counted: math.MaxInt64, Sums: spend.Sums{Pool: 2},
		}})
		if i%100 < 2 {
			told = append(told, line(owner.Run, "score", task, predictor.Pool, "h", 60, 110, 1))
		}
	}
	a.tell(t, told...)
	bill, err := a.store.Bill(t.Context(), ledgerstore.Request{Now: after(120), Accruing: going})
	if want := quantity.Money(2*attempts - len(told)); err != nil || bill.Pool != want {
		t.Errorf("the attempts cost %d, want %d (%v)", bill.Pool, want, err)
	}
}

// drawSpending draws events of three runs within an hour, with the order of a stream: starts first.
func drawSpending(t *rapid.T) []predictor.Event {
	events := append([]predictor.Event{run("r"), run("s"), run("u")},
		rapid.SliceOfN(rapid.Custom(func(t *rapid.T) predictor.Event {
			from := rapid.Float64Range(0, 3000).Draw(t, "from")
			to := from + rapid.Float64Range(0, 600).Draw(t, "length")
			host := rapid.SampledFrom([]string{"h", "i"}).Draw(t, "host")
			if rapid.Bool().Draw(t, "host held") {
				return held(host, from, to, 1_234_567_891)
			}
			id := rapid.SampledFrom([]string{"r", "s", "u"}).Draw(t, "run")
			e := line(id, rapid.SampledFrom([]string{"prep", "score"}).Draw(t, "stage"), "", predictor.Pool, host, from, to,
				quantity.Money(rapid.Int64Range(0, 200_000_000).Draw(t, "cost")))
			e.Venue = rapid.SampledFrom([]predictor.Venue{predictor.Pool, predictor.Function}).Draw(t, "venue")
			e.Outcome = rapid.SampledFrom([]predictor.Outcome{predictor.Succeeded, predictor.Failed}).Draw(t, "outcome")
			return e
		}), 0, 25).Draw(t, "events")...)
	for i, event := range events {
		if e, ok := event.(predictor.Record); ok {
			e.Task = fmt.Sprint("t", i)
			events[i] = e
		}
	}
	return events
}

var dimensions = []ledger.Dimension{ledger.ByRun, ledger.ByPipeline, ledger.ByStage, ledger.ByVenue, ledger.ByHost}

func TestTheLinesOfABillSumToItsTotalsInEveryDimension(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		events := drawSpending(t)
		l := apply(t, events...)
		var cost quantity.Money
		for _, event := range events {
			if e, ok := event.(predictor.Record); ok {
				cost += e.Cost
			}
		}
		whole := l.bill(t, ledger.BillQuery{By: ledger.ByRun}, after(4000))
		if whole.Attempts != cost {
			t.Fatalf("the attempts cost %d, the bill says %d", cost, whole.Attempts)
		}
		for _, line := range whole.Lines {
			if run, known := l.ledger.Run(line.Name); known && run.Actual.Cost != line.Pool+line.Function {
				t.Fatalf("run %s costs %d, its line %d", line.Name, run.Actual.Cost, line.Pool+line.Function)
			}
		}
		for _, by := range dimensions {
			bill := l.bill(t, ledger.BillQuery{By: by}, after(4000))
			var pool, function, idle, total quantity.Money
			for _, line := range bill.Lines {
				pool += line.Pool
				function += line.Function
				idle += line.Idle
				total += line.Total
			}
			if pool != bill.Pool || function != bill.Function || idle != bill.Idle || total != bill.Total {
				t.Fatalf("by %s the lines sum to %d, %d, %d and %d: %+v", by, pool, function, idle, total, bill)
			}
			bill.By, bill.Lines = whole.By, whole.Lines
			if diff := cmp.Diff(whole, bill); diff != "" {
				t.Fatalf("by run and by %s:\n%s", by, diff)
			}
		}
		again := apply(t, rapid.Permutation(append(slices.Clone(events), events...)).Draw(t, "order")...)
		got := again.bill(t, ledger.BillQuery{By: ledger.ByRun}, after(4000))
		if diff := cmp.Diff(whole, got); diff != "" {
			t.Fatalf("the order of events and what is doubled matters:\n%s", diff)
		}
	})
}

func TestTheBillsOfAdjacentWindowsSumToTheWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := apply(t, drawSpending(t)...)
		by := rapid.SampledFrom(dimensions).Draw(t, "by")
		cut := after(rapid.Float64Range(-10, 4000).Draw(t, "cut"))
		whole := l.bill(t, ledger.BillQuery{By: by}, after(4000))
		sum := map[string]ledger.Line{}
		for _, query := range []ledger.BillQuery{{By: by, Until: cut}, {By: by, Since: cut}} {
			for _, line := range l.bill(t, query, after(4000)).Lines {
				both := sum[line.Name]
				line.Count += both.Count
				line.Tasks += both.Tasks
				line.Held += both.Held
				line.Pool += both.Pool
				line.Function += both.Function
				line.Idle += both.Idle
				line.Total += both.Total
				line.Wasted += both.Wasted
				sum[line.Name] = line
			}
		}
		for _, line := range whole.Lines {
			if sum[line.Name] != line {
				t.Fatalf("cut at %v, %q: the parts sum to %+v, want %+v", cut, line.Name, sum[line.Name], line)
			}
		}
	})
}

func TestABillStaysExactWhenAttemptsAreNotKeptAnyMore(t *testing.T) {
	t.Parallel()
	l := apply(t)
	const runs, tasks = 1100, 4
	var events []predictor.Event
	for i := range runs {
		id := fmt.Sprint("r", i)
		start := float64(i) * 1800
		events = append(events, predictor.RunStarted{Run: id, Pipeline: "p", App: "app", Build: "b1", At: after(start)})
		for task := range tasks {
			from := start + float64(task)*450
			events = append(events, held("h", from, from+450, 60*cent),
				line(id, "score", fmt.Sprint("t", task), predictor.Pool, "h", from, from+225, cent/2))
		}
		events = append(events, predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(start + 1800)})
	}
	l.tell(t, events...)
	now := after(runs * 1800)
	bill := l.bill(t, ledger.BillQuery{By: ledger.ByRun}, now)
	if bill.Attempts != runs*tasks*cent/2 || bill.Total != runs*30*cent {
		t.Errorf("attempts cost %s of %s, want %s of %s", bill.Attempts, bill.Total, runs*tasks*cent/2, runs*30*cent)
	}
	// Of every 15 minutes, somebody holds something in minutes 0 to 3 (until 3:45) and 7 to 11 (from 7:30 until 11:15).
	if want := runs * tasks / 2 * 6 * cent; bill.Unused != want {
		t.Errorf("%s are unused, want %s", bill.Unused, want)
	}
	day := l.bill(t, ledger.BillQuery{By: ledger.ByStage, Since: now.Add(-24 * time.Hour)}, now)
	if day.Total != 24*60*cent || day.Attempts != 48*tasks*cent/2 || day.Lines[0].Count+day.Lines[1].Count != 48*tasks {
		t.Errorf("the last day costs %s, attempts %s: %+v", day.Total, day.Attempts, day.Lines)
	}
	first := l.bill(t, ledger.BillQuery{By: ledger.ByRun, Until: after(24 * 3600)}, now)
	if first.Total != 24*60*cent || first.Attempts != 48*tasks*cent/2 {
		t.Errorf("the first day costs %s, attempts %s: %+v", first.Total, first.Attempts, first.Lines)
	}
}

func TestABillIsWrittenAsCSVWithAllDigits(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := apply(t, spending()...).bill(t, ledger.BillQuery{By: ledger.ByRun, Run: "s"},
		after(180)).WriteCSV(&out); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(out.String())).ReadAll()
	want := [][]string{
		{
			"run", "attempts", "tasks", "reused", "held_seconds", "pool_usd", "function_usd", "idle_usd", "total_usd",
			"wasted_usd", "since", "until",
		},
		{
			"s", "1", "1", "3", "30", "0.005", "0", "0.000833333333", "0.005833333333", "0", "2026-11-20T09:00:05Z",
			"2026-11-20T09:03:00Z",
		},
	}
	if diff := cmp.Diff(want, rows); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
