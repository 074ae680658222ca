package ledgerstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// streamOf is the loop's stream on a server of the test's own.
func streamOf(t *testing.T) jetstream.JetStream {
	t.Helper()
	js := natstest.Start(t).Connect()
	if err := loop.EnsureStreams(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	return js
}

// publish tells events to the loop's stream, and returns the sequence of the last.
func publish(t *testing.T, js jetstream.JetStream, events ...predictor.Event) (last uint64) {
	t.Helper()
	for _, event := range events {
		kind, data, err := wire.EncodeEvent(event)
		if err != nil {
			t.Fatal(err)
		}
		ack, err := js.Publish(t.Context(), wire.FactSubject(kind), data)
		if err != nil {
			t.Fatal(err)
		}
		if kind != wire.KindSampled {
			last = ack.Sequence
		}
	}
	return last
}

// damage makes the tables of a ledger point behind the end of its file.
func damage(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=writable_schema(1)")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(t.Context(), `UPDATE sqlite_master SET rootpage = 99999 WHERE name IN ('spent', 'present');
		PRAGMA schema_version = 4711`)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// reach waits until a ledger that may fail meanwhile is so far.
func reach(t *testing.T, store *ledgerstore.Store, sequence uint64) {
	t.Helper()
	for {
		err := store.Reach(t.Context(), sequence)
		if err == nil {
			return
		}
		if !wait.For(t.Context(), 10*time.Millisecond) {
			t.Fatal(err)
		}
	}
}

func TestADamagedFileIsPutAsideWhileTheEngineLives(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	for name, billed := range map[string]bool{"a bill meets it": true, "a write meets it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := streamOf(t)
			path := filepath.Join(t.TempDir(), "ledger.db")
			store := open(t, path, nil)
			defer shut(t, store)
			alerts := make(chan error, 10)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- store.Keep(ctx, js, func(err error) { alerts <- err }) }()
			reach(t, store, publish(t, js, spending()...))
			damage(t, path)
			if billed {
				if _, err := store.Bill(t.Context(), ledgerstore.Request{Now: after(180)}); err == nil {
					t.Error("a bill of a damaged file is answered")
				}
			}
			reach(t, store, publish(t, js, line("s", "score", "t7", predictor.Function, "fn", 90, 100, cent)))
			got := billOf(t, store, ledger.BillQuery{}, after(180))
			if got.Attempts != 7*cent || got.Total != 19*cent || len(got.Incomplete) != 0 {
				t.Errorf("the bill is %+v, want all that the stream has", got)
			}
			if aside, err := filepath.Glob(path + ".damaged-*"); err != nil || len(aside) == 0 {
				t.Errorf("put aside are %v (%v), want the damaged file", aside, err)
			}
			if len(alerts) == 0 {
				t.Error("nobody was told")
			}
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("Keep ended with %v", err)
			}
		})
	}
}

func TestALedgerThatCannotBeOpenedYetIsOpenedLater(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	js := streamOf(t)
	last := publish(t, js, spending()...)
	dir := filepath.Join(t.TempDir(), "later")
	store := open(t, filepath.Join(dir, "ledger.db"), nil)
	defer shut(t, store)
	_, err := store.Bill(t.Context(), ledgerstore.Request{Now: after(180)})
	if !errors.Is(err, os.ErrNotExist) || !errors.Is(store.Reach(t.Context(), 1), os.ErrNotExist) {
		t.Errorf("a bill without a file: %v, want why it cannot be opened", err)
	}
	if err := store.Take(t.Context(), linesOf(1, spending()...)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("messages are taken in without a file: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer follow(t, store, js)()
	reach(t, store, last)
	if got := billOf(t, store, ledger.BillQuery{}, after(180)); got.Total != 18*cent {
		t.Errorf("the bill is %+v", got)
	}
}

// TestAnotherStreamIsTakenInAsAWhole is also what a power cut does: NATS loses its last messages, and gives their
// sequences to others before the ledger asks.
func TestAnotherStreamIsTakenInAsAWhole(t *testing.T) {
	t.Parallel()
	js := streamOf(t)
	store := open(t, filepath.Join(t.TempDir(), "ledger.db"), nil)
	defer shut(t, store)
	stop := follow(t, store, js)
	reach(t, store, publish(t, js, spending()...))
	stop()
	if err := js.DeleteStream(t.Context(), wire.LoopStream); err != nil {
		t.Fatal(err)
	}
	if err := loop.EnsureStreams(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	var other []predictor.Event
	for task := range 2 * len(spending()) {
		other = append(other, line("s", "score", fmt.Sprint("other", task), predictor.Function, "fn", 90, 100, cent))
	}
	last := publish(t, js, other...)
	defer follow(t, store, js)()
	reach(t, store, last)
	reach(t, store, publish(t, js, line("s", "score", "last", predictor.Function, "fn", 90, 100, cent)))
	got := billOf(t, store, ledger.BillQuery{}, time.Now())
	if want := 6*cent + quantity.Money(len(other)+1)*cent; got.Attempts != want {
		t.Errorf("the attempts cost %s, want %s: those of both streams", got.Attempts, want)
	}
	if len(got.Incomplete) != 0 {
		t.Errorf("%v are not complete, want nothing missing", got.Incomplete)
	}
}

// TestAStreamThatBeginsBeforeTheLedgerEndsLeavesNoGap: what is missing at its beginning was taken in.
func TestAStreamThatBeginsBeforeTheLedgerEndsLeavesNoGap(t *testing.T) {
	t.Parallel()
	store := open(t, "", nil)
	defer shut(t, store)
	lines := linesOf(1, held("h", 0, 60, cent), held("h", 60, 120, cent), held("h", 120, 180, cent))
	take(t, store, lines...)
	again := linesOf(9, held("h", 0, 30, cent))
	take(t, store, again...)
	if got := billOf(t, store, ledger.BillQuery{}, after(180)); len(got.Incomplete) != 0 {
		t.Errorf("%v are not complete, want nothing missing", got.Incomplete)
	}
}

// away is a JetStream that does not answer.
type away struct {
	jetstream.JetStream

	asked int
}

func (a *away) Stream(context.Context, string) (jetstream.Stream, error) {
	a.asked++
	return nil, context.DeadlineExceeded
}

func TestALedgerThatCannotBeKeptIsTriedAgainEverMoreSeldom(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	synctest.Test(t, func(t *testing.T) {
		store := open(t, "", nil)
		defer shut(t, store)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		js, told := &away{}, 0
		if err := store.Keep(ctx, js, func(error) { told++ }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Keep ended with %v", err)
		}
		if js.asked < 10 || js.asked > 30 || told != 1 {
			t.Errorf("tried %d times in ten minutes, and told %d times; want 20 or so, and once", js.asked, told)
		}
	})
}

func TestAClockThatIsYearsAheadSpoilsNoMinutes(t *testing.T) {
	t.Parallel()
	stored := func(at float64, lines []loop.Line) []loop.Line {
		for i := range lines {
			lines[i].Stored = after(at)
		}
		return lines
	}
	const years = 4 * 365 * 86400
	path := filepath.Join(t.TempDir(), "ledger.db")
	store := open(t, path, nil)
	take(t, store, stored(60, linesOf(1, run("r"), held("h", 0, 60, 60*cent),
		held("wrong", years, years+60, 60*cent),
		line("r", "score", "t0", predictor.Pool, "wrong", years, years+60, cent/4)))...)
	shut(t, store)
	store = open(t, path, nil)
	defer shut(t, store)
	take(t, store, stored(120, linesOf(5, held("h", 60, 120, 60*cent), held("wrong", 60, 120, 60*cent),
		line("r", "score", "t1", predictor.Pool, "h", 60, 120, cent/4)))...)
	got := billOf(t, store, ledger.BillQuery{By: ledger.ByHost, Until: after(180)}, after(180))
	if got.Total != 4*cent || got.Attempts != cent/2 || got.Unused != 2*cent {
		t.Errorf("the bill is %+v, want four minutes of a cent, two of which are unused", got)
	}
}
