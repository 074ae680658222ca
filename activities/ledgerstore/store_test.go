package ledgerstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t tester, path string, options *ledgerstore.Options) *ledgerstore.Store {
	t.Helper()
	store, err := ledgerstore.OpenAnywhere(context.Background(), path, options)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func shut(t tester, store *ledgerstore.Store) {
	t.Helper()
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

func take(t tester, store *ledgerstore.Store, lines ...loop.Line) {
	t.Helper()
	if err := store.Take(context.Background(), lines); err != nil {
		t.Fatal(err)
	}
}

func billOf(t tester, store *ledgerstore.Store, query ledger.BillQuery, now time.Time) ledger.Bill {
	t.Helper()
	bill, err := store.Bill(context.Background(), ledgerstore.Request{BillQuery: query, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return bill
}

// linesOf are events as they lie in a stream, from a sequence on.
func linesOf(first uint64, events ...predictor.Event) (lines []loop.Line) {
	for i, event := range events {
		lines = append(lines, loop.Line{
			Sequence: first + uint64(i), Stored: event.When(), Message: wire.Message{Event: event},
		})
	}
	return lines
}

// TestABillIsTheSameHoweverOftenTheEngineStarts closes and opens the file at any message, and takes in again what was
// taken in before.
func TestABillIsTheSameHoweverOftenTheEngineStarts(t *testing.T) {
	t.Parallel()
	dir, tries := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		tries++
		path := filepath.Join(dir, strconv.Itoa(tries))
		lines := linesOf(1, append(drawSpending(t), held("late", 9*86400, 9*86400+60, cent))...)
		whole := open(t, "", nil)
		defer shut(t, whole)
		take(t, whole, lines...)
		for from, parts := 0, 0; from < len(lines); {
			store := open(t, path, nil)
			if got := store.Cursor(); got != uint64(from) {
				t.Fatalf("the ledger is at %d, want %d", got, from)
			}
			to := rapid.IntRange(from+1, len(lines)).Draw(t, "to")
			if parts++; parts == 4 {
				to = len(lines)
			}
			take(t, store, lines[rapid.IntRange(0, from).Draw(t, "again from"):to]...)
			shut(t, store)
			from = to
		}
		store := open(t, path, nil)
		defer shut(t, store)
		for _, by := range dimensions[:2] {
			query := ledger.BillQuery{By: by, Since: after(rapid.Float64Range(-10, 4000).Draw(t, "since"))}
			if diff := cmp.Diff(billOf(t, whole, query, after(4000)), billOf(t, store, query, after(4000))); diff != "" {
				t.Fatalf("by %s (-at once +in parts):\n%s", by, diff)
			}
		}
	})
}

func TestAWriteThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	store := open(t, filepath.Join(t.TempDir(), "ledger.db"), nil)
	defer shut(t, store)
	lines := linesOf(1, spending()...)
	take(t, store, lines[:5]...)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := store.Take(ended, lines[5:]); err == nil {
		t.Fatal("a write whose context has ended succeeds")
	}
	if got := store.Cursor(); got != 5 {
		t.Errorf("the ledger is at %d, want 5", got)
	}
	take(t, store, lines[5:]...)
	if got := billOf(t, store, ledger.BillQuery{}, after(180)); got.Total != 18*cent || got.Attempts != 6*cent ||
		len(got.Incomplete) != 0 {
		t.Errorf("the bill is %+v", got)
	}
}

// TestADamagedFileIsPutAsideAndWhatTheStreamHasIsTakenInAgain cuts the file short anywhere.
func TestADamagedFileIsPutAsideAndWhatTheStreamHasIsTakenInAgain(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	lines := linesOf(1, spending()...)
	for _, percent := range []int64{0, 10, 50, 99} {
		t.Run(fmt.Sprint(percent, "% is left"), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "ledger.db")
			store := open(t, path, nil)
			take(t, store, lines...)
			shut(t, store)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, info.Size()*percent/100); err != nil {
				t.Fatal(err)
			}
			store = open(t, path, nil)
			defer shut(t, store)
			if got := store.Cursor(); got != 0 {
				t.Errorf("the ledger begins at %d, want 0", got)
			}
			aside, err := filepath.Glob(path + ".damaged-*")
			if err != nil || len(aside) == 0 != (percent == 0) {
				t.Errorf("put aside are %v (%v), want what was left of the file", aside, err)
			}
			take(t, store, lines[5:]...) // the stream has lost the first
			got := billOf(t, store, ledger.BillQuery{}, after(180))
			if want := []ledger.Gap{{Until: lines[5].Stored}}; !cmp.Equal(want, got.Incomplete) {
				t.Errorf("it says that %v are not complete, want %v", got.Incomplete, want)
			}
			if got.Attempts != 6*cent {
				t.Errorf("the attempts cost %s, want %s", got.Attempts, 6*cent)
			}
			if later := billOf(t, store, ledger.BillQuery{Since: lines[5].Stored}, after(180)); len(later.Incomplete) != 0 {
				t.Errorf("a later bill is not complete either: %v", later.Incomplete)
			}
		})
	}
}

func TestALedgerOfANewerEngineIsRefusedAndLeftAsItIs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	shut(t, open(t, path, nil))
	db, err := ledgerstore.OpenRaw(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), `UPDATE meta SET value = 99 WHERE name = 'schema'`)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := ledgerstore.OpenAnywhere(t.Context(), path, nil); !errors.Is(err, ledgerstore.ErrNewer) {
			t.Errorf("got %v, want %v", err, ledgerstore.ErrNewer)
		}
	}
}

func TestAttemptsThatAreSummedUpCostTheSame(t *testing.T) {
	t.Parallel()
	const runs, tasks = 40, 5
	var events []predictor.Event
	for i := range runs {
		id, start := fmt.Sprint("r", i), float64(i)*1800
		events = append(events, predictor.RunStarted{Run: id, Pipeline: "p", App: "app", Build: "b1", At: after(start)},
			held("h", start, start+1800, 60*cent))
		for task := range tasks {
			events = append(events, line(id, "score", fmt.Sprint("t", task), predictor.Pool, "h", start+float64(task)*300,
				start+float64(task)*300+200, cent/7))
		}
		events = append(events, predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(start + 1800)})
	}
	events = append(events, held("h", 9*86400, 9*86400+60, 60*cent))
	whole, few := open(t, "", nil), open(t, "", &ledgerstore.Options{Attempts: 20})
	defer shut(t, whole)
	defer shut(t, few)
	lines := linesOf(1, events...)
	take(t, whole, lines...)
	take(t, few, lines...)
	take(t, few, linesOf(uint64(len(lines))+1, events[2], events[3])...) // told late
	for _, by := range dimensions {
		query := ledger.BillQuery{By: by}
		if diff := cmp.Diff(billOf(t, whole, query, after(900_000)), billOf(t, few, query, after(900_000))); diff != "" {
			t.Errorf("by %s (-one by one +summed up):\n%s", by, diff)
		}
	}
	if kept := few.Attempts(); kept > 20 {
		t.Errorf("%d attempts are kept one by one, want 20 at most", kept)
	}
}

func TestARunOfTheSameNameIsAnotherRun(t *testing.T) {
	t.Parallel()
	first := line("r", "score", "t0", predictor.Pool, "h", 0, 10, cent)
	second := line("r", "score", "t0", predictor.Pool, "h", 100, 110, cent)
	a := apply(t, run("r"), first, predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: after(20)})
	started := run("r")
	a.tell(t, started, first) // told again, with the end
	started.At = after(90)
	a.tell(t, started, second, second)
	if got := a.bill(t, ledger.BillQuery{}, after(200)); got.Attempts != 2*cent || got.Lines[0].Count != 2 {
		t.Errorf("the bill is %+v, want two attempts of a cent", got)
	}
}

func TestSumsBeyond64BitsAreCutAndNotWrong(t *testing.T) {
	t.Parallel()
	const most = quantity.Money(math.MaxInt64 / 2)
	var events []predictor.Event
	for i := range 5 {
		events = append(events, line("r", "score", fmt.Sprint("t", i), predictor.Function, "fn", 0, 10, most))
	}
	a := apply(t, events...)
	if got := a.bill(t, ledger.BillQuery{}, after(20)); got.Function != most || got.Lines[0].Count != 5 {
		t.Errorf("the bill is %+v, want all that an amount holds", got)
	}
}

// follow keeps a ledger of a stream until the returned function is called.
func follow(t *testing.T, store *ledgerstore.Store, js jetstream.JetStream) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- store.Keep(ctx, js, nil) }()
	return func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Keep ended with %v", err)
		}
	}
}

func TestTheLedgerFollowsTheStreamFromWhereItIs(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.Connect()
	if err := loop.EnsureStreams(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	store := open(t, path, nil)
	stop := follow(t, store, js)
	last := publish(t, js, append(spending(), predictor.Sampled{
		Run: "r", Stage: score, Task: "t0", Attempt: 1,
		At: after(1),
	})...)
	if err := store.Reach(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if got := billOf(t, store, ledger.BillQuery{}, after(180)); got.Total != 18*cent || len(got.Incomplete) != 0 {
		t.Errorf("the bill is %+v", got)
	}
	stop()
	shut(t, store)

	// While nobody followed it, the stream has lost some.
	lost := publish(t, js, line("s", "score", "t7", predictor.Pool, "h", 90, 100, cent))
	last = publish(t, js, line("s", "score", "t8", predictor.Pool, "h", 100, 110, cent))
	stream, err := js.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSequence(lost+1)); err != nil {
		t.Fatal(err)
	}
	store = open(t, path, nil)
	stop = follow(t, store, js)
	if err := store.Reach(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if got := billOf(t, store, ledger.BillQuery{}, time.Now()); got.Attempts != 7*cent || len(got.Incomplete) != 1 {
		t.Errorf("the bill is %+v, want a cent more and that something is missing", got)
	}
	stop()

	// Another stream, whose sequences begin again.
	if err := js.DeleteStream(t.Context(), wire.LoopStream); err != nil {
		t.Fatal(err)
	}
	if err := loop.EnsureStreams(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	stop = follow(t, store, js)
	publish(t, js, line("s", "score", "t9", predictor.Pool, "h", 110, 120, cent))
	for billOf(t, store, ledger.BillQuery{}, time.Now()).Attempts != 8*cent {
		if err := store.Reach(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	shut(t, store)
}
