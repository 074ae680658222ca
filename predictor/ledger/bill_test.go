package ledger_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const cent = quantity.USD / 100

// line is a Record of an attempt that was admitted at from and ended at to, in seconds, and whose start took no time.
func line(
	run, stage, task string, venue predictor.Venue, host string, from, to float64, cost quantity.Money,
) predictor.Record {
	return predictor.Record{
		Run: run, Pipeline: "p-" + run, Stage: predictor.StageID{App: "app", Build: "b1", Name: stage}, Task: task,
		Attempt: 1, Venue: venue, Host: host,
		Outcome: predictor.Succeeded, ScheduledAt: after(from), At: after(to),
		Grant: quantity.Size{CPU: 1000, Memory: quantity.GiB}, Cost: cost,
		Usage: quantity.Usage{
			Wall: after(to).Sub(after(from)), CPU: after(to).Sub(after(from)) / 2,
			PeakMemory: quantity.GiB / 2,
		},
	}
}

func held(host string, from, to float64, perHour quantity.Money) predictor.HostHeld {
	return predictor.HostHeld{
		Host: host, Capacity: quantity.Size{CPU: 4000, Memory: 8 * quantity.GiB}, PricePerHour: perHour, From: after(from),
		At: after(to),
	}
}

func run(id string) predictor.RunStarted {
	return predictor.RunStarted{Run: id, Pipeline: "p-" + id, App: "app", Build: "b1", At: epoch}
}

// An engine that was down for an hour finds an attempt lost that ran for eight seconds before: it held nothing since.
func TestALostAttemptHeldItsGrantForAsLongAsItWasSeen(t *testing.T) {
	t.Parallel()
	lost := line("r", "train", "t0", predictor.Pool, "h", 100, 3700, 2*cent)
	lost.Outcome, lost.Queue, lost.Start, lost.Usage.Wall = predictor.Lost, time.Second, time.Second, 8*time.Second
	got := ledger.Charge(lost)[0]
	if got.Held != 9*time.Second || got.From != after(101).UnixNano() || got.To != after(110).UnixNano() {
		t.Errorf("it held for %v, from %d to %d; want 9 s from 101 s on", got.Held, got.From, got.To)
	}
	if got.Pool != 2*cent || got.Wasted != 2*cent || got.Counted != after(3700).UnixNano() {
		t.Errorf("got %+v, want all that it cost, counted when it was found", got)
	}
	lost.At = after(105) // a clock that was turned back
	if got := ledger.Charge(lost)[0]; got.Held < 0 || got.To > after(105).UnixNano() {
		t.Errorf("found before its end: held for %v until %d", got.Held, got.To)
	}
}

// TestWhatAGangCostsIsChargedOnceOnEachOfItsHosts: whatever a Record says of the parts of its cost, they are the other
// hosts', each once, and all come to its cost.
func TestWhatAGangCostsIsChargedOnceOnEachOfItsHosts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cost := quantity.Money(rapid.Int64Range(0, int64(100*quantity.USD)).Draw(t, "cost"))
		e := line("r", "train", "t0", predictor.Pool, "h0", 0, 60, cost)
		if rapid.Bool().Draw(t, "failed") {
			e.Outcome = predictor.Failed
		}
		hosts := map[string]bool{"h0": true}
		for range rapid.IntRange(0, 5).Draw(t, "members") {
			one := predictor.HostShare{
				Host: rapid.SampledFrom([]string{"h0", "h1", "h2", "h3", ""}).Draw(t, "host"),
				Cost: quantity.Money(rapid.Int64Range(-1, int64(60*quantity.USD)).Draw(t, "part")),
				Held: time.Duration(rapid.Int64Range(-1, int64(2*time.Minute)).Draw(t, "held")),
			}
			e.Members = append(e.Members, one)
			if one.Host != "" {
				hosts[one.Host] = true
			}
		}
		var pool, wasted quantity.Money
		attempts := 0
		for _, span := range ledger.Charge(e) {
			if !hosts[span.Host] || span.Pool < 0 || span.Wasted < 0 || span.From >= span.To {
				t.Fatalf("a span is of %q, and there are %v: %+v", span.Host, hosts, span)
			}
			delete(hosts, span.Host)
			pool, wasted, attempts = pool+span.Pool, wasted+span.Wasted, attempts+span.Attempts
		}
		if pool != cost || attempts != 1 || len(hosts) > 0 || e.Outcome == predictor.Failed && wasted != cost {
			t.Fatalf("%s of %s are charged, %s as wasted, of %d attempts; not of %v", pool, cost, wasted, attempts, hosts)
		}
	})
}

func TestAHostThatLeftItsGangEarlyHeldNothingAfterwards(t *testing.T) {
	t.Parallel()
	e := line("r", "train", "t0", predictor.Pool, "h0", 0, 60, 3*cent)
	e.Members = []predictor.HostShare{{Host: "h1", Cost: cent, Held: 20 * time.Second}, {Host: "h2", Cost: cent}}
	all := ledger.Charge(e)
	for i, want := range []time.Duration{60 * time.Second, 20 * time.Second, 60 * time.Second} {
		if got := all[i]; got.Held != want || time.Duration(got.To-got.From) != want || got.Pool != cent {
			t.Errorf("%s: held for %s, over %s, for %s; want %s and a cent", got.Host, got.Held,
				time.Duration(got.To-got.From), got.Pool, want)
		}
	}
}

func TestStaticSizesArePricedAsThePoolWouldHaveBeen(t *testing.T) {
	t.Parallel()
	big := line("r", "score", "t1", predictor.Pool, "h", 0, 360, 9*cent)
	big.Usage.PeakMemory = 2 * quantity.GiB
	killed := line("r", "score", "t0", predictor.Pool, "h", 0, 36, cent)
	killed.Outcome, killed.Usage.PeakMemory = predictor.OutOfMemory, quantity.GiB
	spilled := line("r", "score", "t2", predictor.Function, "fn", 0, 180, 4*cent)
	l := apply(run("r"), killed, big, spilled)
	if got := view(t, l, "r").Static; got.Known || got.Cost != 0 || got.Actual != 14*cent {
		t.Errorf("without a price: %+v", got)
	}
	l.Apply(held("h", 0, 300, 0))
	if got := view(t, l, "r").Static; got.Known {
		t.Errorf("of a host without a price: %+v", got)
	}
	l.Apply(held("h", 300, 600, 400*cent))
	// The peak of 2 GiB and a tenth is 2.2 of 8 GiB, and half a core of four is less: 0.275 of 400 cents an hour. The
	// killed attempt would not have been made, the others would have held it for 9 minutes.
	want := ledger.Static{
		Actual: 14 * cent, Known: true, Cost: 16*cent + cent/2 + 14, // the size is rounded up to a byte
		Sizes: map[string]quantity.Size{"score": {CPU: 500, Memory: (2*quantity.GiB*11 + 9) / 10}},
	}
	if diff := cmp.Diff(want, view(t, l, "r").Static, cmpopts.EquateApprox(1e-9, 0)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	l.Apply(predictor.Scheduled{
		Run: "r", Stage: score, Tasks: 3, Declared: quantity.Size{CPU: 1000, Memory: quantity.GiB},
		At: after(1),
	})
	want = ledger.Static{
		Actual: 14 * cent, Known: true, Cost: 16 * cent, Short: 2, // a quarter of the host, for 9.6 minutes
		Sizes: map[string]quantity.Size{"score": {CPU: 1000, Memory: quantity.GiB}},
	}
	if diff := cmp.Diff(want, view(t, l, "r").Static); diff != "" {
		t.Errorf("of a declared size (-want +got):\n%s", diff)
	}
}

// TestARunThatGoesOnCostsWhatItsAttemptsHave has an attempt that ended, one that holds a fourth of a host, and one at
// functions, of which nothing is known before its end.
func TestARunThatGoesOnCostsWhatItsAttemptsHave(t *testing.T) {
	t.Parallel()
	l := ledger.New()
	begun := func(task string, venue predictor.Venue, at float64) predictor.AttemptStarted {
		return predictor.AttemptStarted{
			Run: "r", Stage: predictor.StageID{App: "app", Build: "b1", Name: "train"}, Task: task, Attempt: 1, Venue: venue,
			Host: "h", Grant: quantity.Size{CPU: 1000, Memory: quantity.GiB}, At: after(at),
		}
	}
	for _, event := range []predictor.Event{
		run("r"), held("h", 0, 10, 4*quantity.USD),
		predictor.Scheduled{Run: "r", Stage: begun("t0", "", 0).Stage, Tasks: 3, At: after(0)},
		begun("t0", predictor.Pool, 0), line("r", "train", "t0", predictor.Pool, "h", 0, 5, cent),
		begun("t1", predictor.Pool, 10), begun("t2", predictor.Function, 10),
	} {
		l.Apply(event)
	}
	for _, c := range []struct{ at, hours float64 }{{10, 0}, {10 + 36, 0.01}, {10 + 360, 0.1}} {
		view, _ := l.Run("r")
		l.Accrue(&view, after(c.at))
		want := cent + quantity.USD.Times(c.hours)
		if view.Totals.Cost != want || view.Stages[0].Cost != want || view.Actual.Cost != want {
			t.Errorf("at %v s: %s, of its stage %s, want %s", c.at, view.Totals.Cost, view.Stages[0].Cost, want)
		}
	}
	l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunCancelled, At: after(500)})
	view, _ := l.Run("r")
	if l.Accrue(&view, after(1000)); view.Totals.Cost != cent {
		t.Errorf("a run that is over costs %s, want %s", view.Totals.Cost, cent)
	}
}

// TestWhatAGangCostsByNowDoesNotWrap: whatever is told of what its hosts cost, a run that goes on costs no less than
// nothing.
func TestWhatAGangCostsByNowDoesNotWrap(t *testing.T) {
	t.Parallel()
	begun := predictor.AttemptStarted{
		Run: "r", Stage: score, Task: "t0", Attempt: 1, Venue: predictor.Pool, Host: "h0", At: after(0),
	}
	for range 3 {
		begun.Members = append(begun.Members, predictor.HostShare{Host: "h1", PerHour: math.MaxInt64})
	}
	l := apply(run("r"), begun)
	view := view(t, l, "r")
	l.Accrue(&view, after(3600))
	if most := quantity.Money(math.MaxInt64 / 2); view.Totals.Cost != most || view.Actual.Cost != most ||
		view.Stages[0].Cost != most {
		t.Errorf("it costs %s, %s and %s", view.Totals.Cost, view.Actual.Cost, view.Stages[0].Cost)
	}
}
