package ledgerstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const oneDay = 24 * time.Hour

// past is a store with a clock of its own, which tells what happens.
type past struct {
	*Store

	t        *testing.T
	sequence uint64
}

func openPast(t *testing.T, path string, attempts int) *past {
	t.Helper()
	s, err := OpenAnywhere(t.Context(), path, &Options{Attempts: attempts})
	if err != nil {
		t.Fatal(err)
	}
	p := &past{Store: s, t: t, sequence: s.Cursor()}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// tell tells of events at a time.
func (p *past) tell(stored time.Time, events ...predictor.Event) {
	p.t.Helper()
	for _, event := range events {
		p.sequence++
		line := loop.Line{Sequence: p.sequence, Stored: stored, Message: wire.Message{Event: event}}
		if err := p.Take(p.t.Context(), []loop.Line{line}); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *past) forget(now time.Time, hours time.Duration) {
	p.t.Helper()
	if err := p.Forget(p.t.Context(), now, hours); err != nil {
		p.t.Fatal(err)
	}
}

// known lists the runs that are known.
func (p *past) known() (runs []string) {
	p.t.Helper()
	err := p.EachRun(p.t.Context(), time.Time{}, func(run string, _, _, _ time.Time) error {
		runs = append(runs, run)
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
	slices.Sort(runs)
	return runs
}

func (p *past) bill(query ledger.BillQuery, now time.Time) ledger.Bill {
	p.t.Helper()
	bill, err := p.Bill(p.t.Context(), Request{BillQuery: query, Now: now})
	if err != nil {
		p.t.Fatal(err)
	}
	return bill
}

// count counts rows.
func (p *past) count(from string) (count int) {
	p.t.Helper()
	if err := p.db.QueryRowContext(p.t.Context(), "SELECT COUNT(*) FROM "+from).Scan(&count); err != nil {
		p.t.Fatal(err)
	}
	return count
}

var start = time.Date(2026, 11, 1, 9, 0, 0, 0, time.UTC)

func began(run string, at time.Time) predictor.RunStarted {
	return predictor.RunStarted{Run: run, Pipeline: "p", App: "app", Build: "b", At: at}
}

func ended(run string, at time.Time) predictor.RunEnded {
	return predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: at}
}

// attempt is a Record of an attempt that ended at a time.
func attempt(run, task, host string, wall time.Duration, at time.Time) predictor.Record {
	return predictor.Record{
		Run: run, Pipeline: "p", Stage: predictor.StageID{App: "app", Build: "b", Name: "train"}, Task: task, Attempt: 1,
		Venue: predictor.Pool, Host: host, Outcome: predictor.Succeeded, At: at, ScheduledAt: at.Add(-wall),
		Grant: quantity.Size{CPU: 1000, Memory: quantity.GiB}, Usage: quantity.Usage{Wall: wall},
		Cost: quantity.Money(1_000_003) * quantity.Money(wall/time.Second),
	}
}

// TestOnlyRunsThatEndedAYearAgoAreForgotten tells of runs, and of something else more than a year later, by a clock
// that is right and by one that is wrong for a moment.
func TestOnlyRunsThatEndedAYearAgoAreForgotten(t *testing.T) {
	t.Parallel()
	p := openPast(t, "", 0)
	p.tell(start, began("goes on", start), began("over", start), ended("over", start.Add(time.Hour)),
		began("attempts", start), attempt("attempts", "t", "h", time.Minute, start), ended("attempts", start.Add(time.Hour)))
	// A message that is stored by a clock that is years ahead forgets nothing: by which time things age, another says.
	p.tell(start.Add(4000*oneDay), began("by a clock that is ahead", start.Add(4000*oneDay)))
	p.tell(start.Add(2*oneDay), began("young", start.Add(oneDay)), ended("young", start.Add(2*oneDay)))
	all := []string{"attempts", "by a clock that is ahead", "goes on", "over", "young"}
	if diff := cmp.Diff(all, p.known()); diff != "" {
		t.Errorf("after a message by a clock that is years ahead (-want +got):\n%s", diff)
	}
	for _, at := range []struct {
		now  time.Duration
		want []string
	}{
		{364 * oneDay, all},
		{366 * oneDay, []string{"attempts", "by a clock that is ahead", "goes on", "young"}},
		{5000 * oneDay, []string{"attempts", "by a clock that is ahead", "goes on"}},
	} {
		p.forget(start.Add(at.now), 0)
		if diff := cmp.Diff(at.want, p.known()); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", at.now, diff)
		}
	}
}

// TestBillsOfWholeDaysAreTheSameWithoutHours takes in what happened in some weeks, forgets hours at random moments, and
// compares bills of whole days with those of a store that keeps all hours.
func TestBillsOfWholeDaysAreTheSameWithoutHours(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 7))
		path := filepath.Join(t.TempDir(), "ledger.db")
		all, p := openPast(t, "", 40), openPast(t, path, 40)
		begun := start.Truncate(oneDay)
		now := begun
		for number := range 700 {
			now = now.Add(time.Duration(r.Int64N(int64(2 * time.Hour))))
			event := drawEvent(r, number, now)
			all.tell(now, event)
			p.tell(now, event)
			if r.IntN(40) == 0 {
				p.forget(now, time.Duration(r.IntN(20))*oneDay)
			}
		}
		if before, after := all.count("spent WHERE task_id = ''"), p.count("spent WHERE task_id = ''"); after >= before {
			t.Errorf("seed %d: %d hours are left of %d", seed, after, before)
		}
		for range 60 {
			query := ledger.BillQuery{By: []ledger.Dimension{
				ledger.ByRun, ledger.ByPipeline, ledger.ByStage, ledger.ByVenue, ledger.ByHost,
			}[r.IntN(5)], Run: []string{"", "", fmt.Sprint("r", r.IntN(14))}[r.IntN(3)]}
			query.Since = begun.Add(time.Duration(r.IntN(int(now.Sub(begun)/time.Hour))) * time.Hour)
			query.Until = query.Since.Add(time.Duration(r.IntN(200)) * time.Hour)
			got := p.bill(query, now)
			query.Since, query.Until = got.Since, got.Until // whole days, where hours are not known
			want := all.bill(query, now)
			if got.HoursSince = (time.Time{}); !cmp.Equal(want, got) {
				t.Fatalf("seed %d: a bill %+v (-want +got):\n%s", seed, query, cmp.Diff(want, got))
			}
		}
	}
}

// TestABillOfTimesBeforeHoursTakesInWholeDays asks for a part of a day of which no hours are known.
func TestABillOfTimesBeforeHoursTakesInWholeDays(t *testing.T) {
	t.Parallel()
	p := openPast(t, "", 1)
	for hour := range 40 { // across midnight
		at := start.Add(time.Duration(hour) * time.Hour)
		p.tell(at, attempt("r", strconv.Itoa(hour), "h", time.Hour, at))
	}
	p.tell(start.Add(2*oneDay), began("r", start), ended("r", start.Add(2*oneDay)))
	now := start.Add(50 * oneDay)
	p.tell(now, began("late", now), attempt("late", "1", "h", time.Hour, now), attempt("late", "2", "h", time.Hour, now))
	if p.count("spent WHERE task_id = ''") == 0 {
		t.Fatal("nothing was summed up by the hour")
	}
	day := start.Truncate(oneDay)
	of := func(since, until time.Duration) ledger.Bill {
		return p.bill(ledger.BillQuery{Since: day.Add(since), Until: day.Add(until)}, now)
	}
	first, second, both := of(0, oneDay), of(oneDay, 2*oneDay), of(0, 2*oneDay)
	p.forget(now, LeastHours)
	if rows := p.count("spent WHERE task_id = ''"); rows != 0 {
		t.Errorf("%d hours are left", rows)
	}
	for name, c := range map[string]struct{ want, got ledger.Bill }{
		"the first day": {first, of(0, oneDay)}, "the second": {second, of(oneDay, 2*oneDay)},
		"both": {both, of(0, 2*oneDay)},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" || c.got.Total == 0 {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	part := of(12*time.Hour, oneDay+13*time.Hour)
	if !part.Since.Equal(day) || !part.Until.Equal(day.Add(2*oneDay)) || part.HoursSince.IsZero() ||
		part.Total != both.Total {
		t.Errorf("a part of two days is %+v, want the whole of them, and that it says so", part)
	}
	if of(49*oneDay, 51*oneDay).HoursSince != (time.Time{}) {
		t.Error("of times of which hours are known it is said that they are not")
	}
}

// TestWhatARunHasSpentIsForgottenWithIt asks for bills by run and by pipeline once a run is forgotten.
func TestWhatARunHasSpentIsForgottenWithIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	p := openPast(t, path, 1)
	p.tell(start, began("goes on", start), attempt("goes on", "1", "", time.Minute, start), began("over", start),
		attempt("over", "1", "", time.Minute, start), attempt("over", "2", "", time.Minute, start), ended("over", start))
	now := start.Add(400 * oneDay)
	p.tell(now, predictor.HostHeld{Host: "h", From: now.Add(-time.Minute), At: now, PricePerHour: 60}) // closes minutes
	p.tell(now, attempt("goes on", "2", "", time.Minute, now))
	before := p.bill(ledger.BillQuery{By: ledger.ByPipeline}, now)
	for range 2 {
		p.forget(now, 0)
		if diff := cmp.Diff(before, p.bill(ledger.BillQuery{By: ledger.ByPipeline}, now)); diff != "" {
			t.Errorf("by pipeline (-before +after):\n%s", diff)
		}
		bill := p.bill(ledger.BillQuery{By: ledger.ByRun}, now)
		if len(bill.Incomplete) != 1 || len(bill.Lines) != 1 && len(bill.Lines) != 2 || bill.Lines[0].Name != "goes on" {
			t.Errorf("by run: %+v, want what goes on, and that it is not complete", bill)
		}
		if bill := p.bill(ledger.BillQuery{By: ledger.ByRun, Since: now.Add(-oneDay)}, now); len(bill.Incomplete) != 0 {
			t.Errorf("the last day by run is said not to be complete: %+v", bill.Incomplete)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	again := openPast(t, path, 1) // and knows it after a restart
	again.tell(now, began("new", now))
	if bill := again.bill(ledger.BillQuery{By: ledger.ByRun}, now); len(bill.Incomplete) != 1 {
		t.Errorf("after a restart, by run: %+v, want that it is not complete", bill)
	}
}

// TestTheGrowthOfAYearIsMeasured tells what the hours and the days of 50 pipelines of 10 stages on 5 kinds of hosts
// take, where a run of each uses all of them in every hour.
func TestTheGrowthOfAYearIsMeasured(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("measures only with SPILLWAY_MEASURE=1")
	}
	const pipelines, stages, kinds, hours = 50, 10, 5, 48
	path := filepath.Join(t.TempDir(), "ledger.db")
	p := openPast(t, path, 1)
	day := start.Truncate(oneDay)
	size := func() int64 {
		if p.server == nil {
			if _, err := p.db.ExecContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
				t.Fatal(err)
			}
		}
		return SizeOf(t, path)
	}
	var lines []loop.Line
	tell := func(at time.Time, event predictor.Event) {
		p.sequence++
		lines = append(lines, loop.Line{Sequence: p.sequence, Stored: at, Message: wire.Message{Event: event}})
		if len(lines) == 1000 {
			if err := p.Take(t.Context(), lines); err != nil {
				t.Fatal(err)
			}
			lines = lines[:0]
		}
	}
	for hour := range hours {
		at := day.Add(time.Duration(hour) * time.Hour)
		for kind := range kinds {
			tell(at, predictor.HostHeld{
				Host: fmt.Sprint("h", kind), From: at, At: at.Add(time.Hour), PricePerHour: quantity.USD,
				Capacity: quantity.Size{CPU: 4000, Memory: quantity.GiB},
			})
		}
		for pipeline := range pipelines {
			run := fmt.Sprintf("pipeline-%d-%d", pipeline, hour)
			tell(at, predictor.RunStarted{Run: run, Pipeline: fmt.Sprint("pipeline-", pipeline), App: "app", Build: "b", At: at})
			for stage := range stages {
				for kind := range kinds {
					e := attempt(run, fmt.Sprint(stage, "-", kind), fmt.Sprint("h", kind), time.Minute, at.Add(30*time.Minute))
					e.Stage.Name, e.Pipeline = fmt.Sprint("stage-", stage), fmt.Sprint("pipeline-", pipeline)
					tell(at, e)
				}
			}
			tell(at, ended(run, at.Add(40*time.Minute)))
		}
	}
	later := day.Add(40 * oneDay)
	for range 1001 + pipelines*hours/settleRuns*1000 { // so that all runs are settled
		tell(later, predictor.HostHeld{Host: "late", From: later, At: later.Add(time.Second)})
	}
	whole := size()
	hourRows, dayRows := p.count("spent WHERE task_id = ''"), p.count("sums WHERE all_runs = 1")
	ofRuns := p.count("sums WHERE all_runs = 0")
	begun := time.Now()
	p.forget(later.Add(oneDay), LeastHours)
	took := time.Since(begun)
	vacuum := "VACUUM"
	if p.server != nil {
		vacuum = "VACUUM FULL"
	}
	if _, err := p.db.ExecContext(t.Context(), vacuum); err != nil {
		t.Fatal(err)
	}
	left := size()
	t.Logf("two days: %d rows of hours, %d of days by run, %d of days over all runs, %d attempts left, in %d MiB; "+
		"forgetting the hours took %s and left %d MiB, %d rows of hours", hourRows, ofRuns, dayRows, p.Attempts(), whole>>20,
		took, left>>20, p.count("spent WHERE task_id = ''"))
	t.Logf("a year: hours %d GiB, days by run and over all runs %d GiB", (whole-left)*365/2>>30, left*365/2>>30)
}
