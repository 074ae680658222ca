package slot_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/slot/slottest"
)

func openJournal(tb testing.TB, dir, instance string) *slot.Journal {
	tb.Helper()
	j, err := slot.OpenJournal(dir, predictor.Pool, "h", instance, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	return j
}

func files(tb testing.TB, dir string) (names []string) {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		tb.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// TestTheNextSelfGivesBackWhatTheFormerOneHadInHand leaves an attempt in hand, as a process does that is killed, and
// opens its journal again.
func TestTheNextSelfGivesBackWhatTheFormerOneHadInHand(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	dir := filepath.Join(t.TempDir(), "attempts")
	former, records := openJournal(t, dir, "a"), &kept{}
	begun, end := make(chan struct{}), make(chan struct{})
	w := start(t, c, func(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
		journal := former
		if _, known := records.first(); known {
			journal = nil
		}
		a, err := slot.Begin(ctx, task, input, journal, time.Now())
		if err != nil {
			return wire.Result{}, err
		}
		if a.Number == 1 {
			a.Risk(ctx, 40)
			close(begun)
			<-end // the former self never comes to the end of it
		}
		ending := slot.Ending{Outcome: predictor.Succeeded}
		return a.End(ctx, slot.Durable{Recorder: records}, a.Record(predictor.Pool, "h", ending), ending, input)
	})
	set(t, w, 2, false)
	a := f.Submit(t, stage.Queue(), task("score-1"), "in")
	<-begun
	if err := os.WriteFile(filepath.Join(dir, "torn"), []byte("h\x01\x00{\"v\":1,\"tok"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := former.Close(false); err != nil { // as after attempts that did not return
		t.Error(err)
	}
	next := openJournal(t, dir, "b")
	next.GiveBack(t.Context(), c, records)
	if result, err := a.Wait(t); err != nil || string(result.Output) != `"in"` || result.Cost != 40 {
		t.Errorf("result: got %s for %s, %v, want that of the second attempt, with what the first has cost", result.Output,
			result.Cost, err)
	}
	var lost *temporal.ApplicationError
	failures := a.Failures()
	if len(failures) != 1 || !errors.As(failures[0], &lost) || lost.Type() != wire.LostError ||
		lost.NextRetryDelay() > time.Second {
		t.Errorf("failures: got %v, want one lost attempt whose task is put back at once", failures)
	}
	var detail slot.Failure
	if err := lost.Details(&detail); err != nil || detail.Spent != 40 {
		t.Errorf("the failure says that %s is spent (%v), want 40", detail.Spent, err)
	}
	record, _ := records.first()
	if record.Cost != 40 {
		t.Errorf("the lost attempt cost %s, want 40", record.Cost)
	}
	if record.Outcome != predictor.Lost || record.Cause != predictor.CauseHostLost || record.Task != "score-1" ||
		record.Attempt != 1 ||
		record.Host != "h" || record.Venue != predictor.Pool || record.ScheduledAt.IsZero() || record.At.IsZero() {
		t.Errorf("Record of the lost attempt: got %+v", record)
	}
	if got := files(t, dir); !slices.Equal(got, []string{"b"}) {
		t.Errorf("files once all was given back: got %v, want only that of the next self", got)
	}
	if err := next.Close(true); err != nil {
		t.Error(err)
	}
	close(end)
}

// TestAnAttemptThatEndedWithItsProcessIsBilledForWhatItCanHaveTaken leaves one in hand that costs a picodollar for each
// nanosecond: not for as long as it might have gone on.
func TestAnAttemptThatEndedWithItsProcessIsBilledForWhatItCanHaveTaken(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	dir := filepath.Join(t.TempDir(), "attempts")
	former, records := openJournal(t, dir, "a"), &kept{}
	begun, end := make(chan struct{}), make(chan struct{})
	before := time.Now()
	w := start(t, c, func(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
		journal := former
		if _, known := records.first(); known {
			journal = nil
		}
		a, err := slot.Begin(ctx, task, input, journal, time.Now())
		if err != nil {
			return wire.Result{}, err
		}
		if a.Number == 1 {
			a.Accrue(ctx, func(lasted time.Duration) quantity.Money { return quantity.Money(lasted) })
			a.Began(before)
			close(begun)
			<-end // the former self never comes to the end of it
		}
		ending := slot.Ending{Outcome: predictor.Succeeded}
		return a.End(ctx, slot.Durable{Recorder: records}, a.Record(predictor.Function, "h", ending), ending, input)
	})
	set(t, w, 2, false)
	a := f.Submit(t, stage.Queue(), task("score-1"), "in")
	<-begun
	if err := former.Close(false); err != nil {
		t.Error(err)
	}
	lived := time.Since(before)
	next := openJournal(t, dir, "b")
	next.GiveBack(t.Context(), c, records)
	result, err := a.Wait(t)
	record, _ := records.first()
	const beat = 2 * time.Second
	if cost := time.Duration(record.Cost); err != nil || cost <= 0 || cost > lived+beat || result.Cost != record.Cost {
		t.Errorf("the lost attempt is billed for %v (its run for %v), %v; want at most the %v that it lived and a heartbeat",
			cost, time.Duration(result.Cost), err, lived)
	}
	if lasted := record.Usage.Wall; lasted <= 0 || lasted > lived {
		t.Errorf("the lost attempt went on for %v, want at most the %v that it lived", lasted, lived)
	}
	if !strings.Contains(record.Error, "it ended with that process and is billed for") {
		t.Errorf("the Record says %q, want for how long it is billed", record.Error)
	}
	if err := next.Close(true); err != nil {
		t.Error(err)
	}
	close(end)
}

// TestWhatOnlyWaitedIsNotToldAsComputed leaves an attempt that waits for room, and one that had waited before it ran.
func TestWhatOnlyWaitedIsNotToldAsComputed(t *testing.T) {
	t.Parallel()
	const waited = time.Hour // before it was begun
	for name, tt := range map[string]struct{ goes, began bool }{
		"it waits": {}, "it has begun": {true, true}, "it was about to begin, and rests": {goes: true},
	} {
		began := tt.began
		f, c := slottest.Start(t)
		dir := filepath.Join(t.TempDir(), "attempts")
		former, records := openJournal(t, dir, "a"), &kept{}
		begun, end := make(chan struct{}), make(chan struct{})
		w := start(t, c, func(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
			journal, taken := former, time.Now()
			if _, known := records.first(); known {
				journal = nil
			} else {
				taken = taken.Add(-2 * waited)
			}
			a, err := slot.Begin(ctx, task, input, journal, taken)
			if err != nil {
				return wire.Result{}, err
			}
			if a.Number == 1 {
				if tt.goes {
					a.Began(taken.Add(waited))
					a.Risk(ctx, 40) // which writes down for how long it has run
				}
				if tt.goes && !began {
					a.Accrue(ctx, func(time.Duration) quantity.Money { return 50 })
					a.Rests()
				}
				close(begun)
				<-end
			}
			ending := slot.Ending{Outcome: predictor.Succeeded}
			return a.End(ctx, slot.Durable{Recorder: records}, a.Record(predictor.Pool, "h", ending), ending, input)
		})
		set(t, w, 2, false)
		a := f.Submit(t, stage.Queue(), task("score-1"), "in")
		<-begun
		if err := former.Close(false); err != nil {
			t.Error(err)
		}
		next := openJournal(t, dir, "b")
		next.GiveBack(t.Context(), c, records)
		if _, err := a.Wait(t); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		record, _ := records.first()
		least, ran := 2*waited, time.Duration(0)
		if began {
			least, ran = waited, waited
		}
		if began != (record.Cost == 40) || !began && record.Cost != 0 {
			t.Errorf("%s: it is told to have cost %s", name, record.Cost)
		}
		if record.Outcome != predictor.Lost || record.Queue < least || record.Queue > least+10*time.Minute ||
			record.Usage.Wall < ran || record.Usage.Wall > ran+ran/4 {
			t.Errorf("%s: it is told to have waited for %v and run for %v; want %v and %v", name, record.Queue,
				record.Usage.Wall, least, ran)
		}
		if said := strings.Contains(record.Error, "waited to begin"); said == began {
			t.Errorf("%s: the Record says %q", name, record.Error)
		}
		if err := next.Close(true); err != nil {
			t.Error(err)
		}
		close(end)
	}
}

// TestAnAttemptThatHasItsRecordGetsNoOther ends attempts before their journal is opened again: what was answered needs
// no giving back, and no second Record.
func TestAnAttemptThatHasItsRecordGetsNoOther(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	dir := filepath.Join(t.TempDir(), "attempts")
	former, records := openJournal(t, dir, "a"), &kept{}
	w := start(t, c, func(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
		a, err := slot.Begin(ctx, task, input, former, time.Now())
		if err != nil {
			return wire.Result{}, err
		}
		ending := slot.Ending{Outcome: predictor.Succeeded}
		return a.End(ctx, slot.Durable{Recorder: records}, a.Record(predictor.Pool, "h", ending), ending, input)
	})
	set(t, w, 1, false)
	for i := range 3 {
		if _, err := f.Submit(t, stage.Queue(), task(fmt.Sprint("score-", i)), "in").Wait(t); err != nil {
			t.Fatal(err)
		}
	}
	openJournal(t, dir, "b").GiveBack(t.Context(), c, records)
	if got := records.outcomes(); !slices.Equal(got,
		[]predictor.Outcome{predictor.Succeeded, predictor.Succeeded, predictor.Succeeded}) {
		t.Errorf("Records: got %v, want the three of the attempts themselves", got)
	}
}

// TestALostTaskIsTakenAgainSoonHoweverOftenItWasLost: Temporal's own pause doubles with each attempt.
func TestALostTaskIsTakenAgainSoonHoweverOftenItWasLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ending slot.Ending
		own    bool
	}{
		{slot.Ending{Outcome: predictor.Lost}, true},
		{slot.Ending{Outcome: predictor.Lost, Cause: predictor.CauseVenue}, false}, // it may be so again at once
		{slot.Ending{Outcome: predictor.Lost, Cause: predictor.CauseHostMemory}, false},
		{slot.Ending{Outcome: predictor.Failed}, false},
	} {
		_, err := slot.Conclude(task("score-1"), 40, wire.Heartbeat{}, c.ending)
		var failed *temporal.ApplicationError
		if !errors.As(err, &failed) || (failed.NextRetryDelay() > 0) != c.own || failed.NextRetryDelay() > time.Second {
			t.Errorf("%+v: got %v with a delay of %v, want one of its own: %v", c.ending, err, failed.NextRetryDelay(), c.own)
		}
	}
}

// kept keeps Records.
type kept struct {
	mu      sync.Mutex
	records []predictor.Record
}

func (k *kept) Record(_ context.Context, record predictor.Record) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.records = append(k.records, record)
	return nil
}

func (k *kept) Tell(predictor.Event) {}

func (k *kept) first() (record predictor.Record, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.records) == 0 {
		return predictor.Record{}, false
	}
	return k.records[0], true
}

func (k *kept) outcomes() (outcomes []predictor.Outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, record := range k.records {
		outcomes = append(outcomes, record.Outcome)
	}
	return outcomes
}
