package ledgerstore_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/ledgerstore/postgrestest"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// openAt opens the ledger at a URL.
func openAt(t *testing.T, at string) *ledgerstore.Store {
	t.Helper()
	store, err := ledgerstore.OpenPostgres(t.Context(), func() (string, error) { return at, nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestServersThatStartAtOnceMakeOneLedger(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	at := postgrestest.Start(t).Schema("ledger")
	var opened errgroup.Group
	var mu sync.Mutex
	var stores []*ledgerstore.Store
	for range 6 {
		opened.Go(func() error {
			store, err := ledgerstore.OpenPostgres(t.Context(), func() (string, error) { return at, nil }, nil)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			stores = append(stores, store)
			return nil
		})
	}
	err := opened.Wait()
	for _, store := range stores {
		shut(t, store)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// guarded is a URL for the user of that name.
func guarded(at, password string) string {
	return strings.Replace(at, "spillway@", "guarded:"+password+"@", 1)
}

// TestADatabaseThatCannotHaveTheLedgerIsRefusedAtOnce also looks that no refusal repeats a password.
func TestADatabaseThatCannotHaveTheLedgerIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	server := postgrestest.Start(t)
	server.Guard("guarded", "sesame")
	server.Exec("CREATE SCHEMA theirs")
	server.Exec("GRANT USAGE ON SCHEMA theirs TO guarded")
	server.Exec("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C'")
	newer := server.Schema("newer")
	shut(t, openAt(t, newer))
	server.Exec("UPDATE newer.meta SET value = 99 WHERE name = 'schema'")
	socket := server.URL("")
	for name, c := range map[string]struct{ at, want, do string }{
		"no URL":           {"host=localhost password=sesame", "cannot be read", "postgres://USER"},
		"a broken URL":     {"postgres://me:ses%ame@localhost/db", "cannot be read", "postgres://USER"},
		"a broken port":    {"postgres://me:sesame@localhost:port/db", "cannot be read", "postgres://USER"},
		"a wrong setting":  {"postgres://me:sesame@localhost/db?sslmode=perhaps", "not known", "libpq"},
		"a host elsewhere": {"postgres://me:sesame@db.example.com/db", "how its host is known", "sslmode=verify-full"},
		"one behind a near one": {
			"postgres://me:sesame@localhost,db.example.com/db", "how its host is known", "sslmode=verify-full",
		},
		"nobody listens":    {"postgres://me:sesame@127.0.0.1:1/db", "connection refused", "is it running"},
		"no such database":  {strings.Replace(socket, "/postgres?", "/nowhere?", 1), "nowhere", "CREATE DATABASE"},
		"a wrong password":  {guarded(socket, "sesame2"), "password", "correct user and"},
		"no rights":         {guarded(server.URL("theirs"), "sesame"), "denied", "GRANT CREATE"},
		"no schema":         {server.URL("nowhere"), "schema", "search_path"},
		"another encoding":  {strings.Replace(socket, "/postgres?", "/latin?", 1), "LATIN1", "ENCODING 'UTF8'"},
		"of a newer engine": {newer, "newer engine", "start that engine"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := ledgerstore.OpenPostgres(t.Context(), func() (string, error) { return c.at, nil }, nil)
			if err == nil {
				shut(t, store)
				t.Fatal("it is taken")
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.do) {
				t.Errorf("got %q, want what was wrong (%q) and what to do (%q)", err, c.want, c.do)
			}
			if strings.Contains(err.Error(), "sesame") || strings.Contains(err.Error(), "ses%ame") {
				t.Errorf("%q repeats the password", err)
			}
		})
	}
}

// TestADatabaseIsLookedAtAndLeftAsItIs looks at one without a ledger, with one, and at two that cannot have one.
func TestADatabaseIsLookedAtAndLeftAsItIs(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	server := postgrestest.Start(t)
	server.Guard("guarded", "sesame")
	at := server.Schema("ledger")
	server.Exec("GRANT USAGE ON SCHEMA ledger TO guarded")
	look := func(at string) string {
		found, err := ledgerstore.Probe(t.Context(), func() (string, error) { return at, nil })
		if err != nil {
			return err.Error()
		}
		return found
	}
	for range 2 {
		if got := look(at); !strings.Contains(got, "no ledger yet, and its tables can be made") {
			t.Errorf("an empty one: %s", got)
		}
	}
	if got := look(guarded(at, "sesame")); !strings.Contains(got, "may make no tables") {
		t.Errorf("one without rights: %s", got)
	}
	if got := look(guarded(at, "wrong")); !strings.Contains(got, "correct user and") || strings.Contains(got, "\n") {
		t.Errorf("a wrong password: %s", got)
	}
	shut(t, openAt(t, at))
	if got := look(at); !strings.Contains(got, "a ledger of schema ") {
		t.Errorf("one with a ledger: %s", got)
	}
}

// TestAPasswordMayChangeWhileTheLedgerIsKept asks for the URL again with each connection.
func TestAPasswordMayChangeWhileTheLedgerIsKept(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	server := postgrestest.Start(t)
	server.Guard("guarded", "old")
	server.Exec("CREATE SCHEMA AUTHORIZATION guarded")
	password := "old"
	store, err := ledgerstore.OpenPostgres(t.Context(), func() (string, error) {
		return guarded(server.URL("guarded"), password), nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, store)
	server.Exec("ALTER ROLE guarded PASSWORD 'new'")
	server.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guarded'")
	password = "new"
	for tries := 0; ; tries++ { // the first finds its connection closed
		if err = store.Take(t.Context(), linesOf(1, spending()...)); err == nil || tries == 3 {
			break
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// keep keeps a ledger of a stream until the test ends, whatever becomes of its database.
func keep(t *testing.T, store *ledgerstore.Store, js jetstream.JetStream) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- store.Keep(ctx, js, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Keep ended with %v", err)
		}
		shut(t, store)
	})
}

// TestADatabaseThatIsAwayForAWhileLosesNothing ends the server in the middle of what is told, in good order and as a
// power cut would.
func TestADatabaseThatIsAwayForAWhileLosesNothing(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	for name, end := range map[string]func(*postgrestest.Server){
		"ended": (*postgrestest.Server).Stop, "killed": (*postgrestest.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := postgrestest.Start(t)
			server.Stop()
			server.Restart("fsync=on")
			js := streamOf(t)
			store := openAt(t, server.Schema("ledger"))
			keep(t, store, js)
			tell := func(first, count int) (last uint64) {
				for i := first; i < first+count; i++ {
					last = publish(t, js, line("r", "score", fmt.Sprint("t", i), predictor.Function, "fn", 0, 10, cent))
				}
				return last
			}
			publish(t, js, run("r"))
			reach(t, store, tell(0, 50))
			told := make(chan uint64, 1)
			go func() { told <- tell(50, 400) }()
			end(server)
			last := <-told
			failing := store.Reach(t.Context(), last)
			for ; failing == nil || store.Cursor() >= last; failing = store.Reach(t.Context(), last) {
				last = publish(t, js, line("r", "score", fmt.Sprint("late", last), predictor.Function, "fn", 0, 10, 0))
			}
			if !strings.Contains(failing.Error(), "not kept now") {
				t.Errorf("while it is away: %v", failing)
			}
			if _, err := store.Bill(t.Context(), ledgerstore.Request{Now: after(20)}); err == nil {
				t.Error("a bill is answered without its database")
			}
			server.Restart("fsync=on")
			reach(t, store, last)
			got := billOf(t, store, ledger.BillQuery{}, after(20))
			if want := 450 * cent; got.Attempts != want || len(got.Incomplete) != 0 {
				t.Errorf("the bill is %+v, want %s and nothing missing", got, want)
			}
		})
	}
}

// TestADatabaseThatTakesNothingSaysSo has one that only lets read, as a standby does and one whose disk is full.
func TestADatabaseThatTakesNothingSaysSo(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	server := postgrestest.Start(t)
	at := server.Schema("ledger")
	shut(t, openAt(t, at))
	server.Stop()
	server.Restart("default_transaction_read_only=on")
	store := openAt(t, at)
	defer shut(t, store)
	err := store.Take(t.Context(), linesOf(1, spending()...))
	if err == nil || !strings.Contains(err.Error(), "it lets nobody write now") {
		t.Errorf("got %v, want that nobody can write", err)
	}
	if err := store.Reach(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "it lets nobody write now") {
		t.Errorf("who waits is told %v, want that nobody can write", err)
	}
	server.Stop()
	server.Restart()
	for range 2 { // the first finds its connection closed
		err = store.Take(t.Context(), linesOf(1, spending()...))
	}
	if err != nil {
		t.Error(err)
	}
}

// TestNobodyWaitsForAWriteWhoAsksForNoBill has another transaction hold up one that takes messages in, as a network
// that is broken does.
func TestNobodyWaitsForAWriteWhoAsksForNoBill(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	at := postgrestest.Start(t).Schema("ledger")
	store := openAt(t, at)
	defer shut(t, store)
	take(t, store, linesOf(1, run("r"))...)
	db := postgrestest.Connect(t, at)
	defer db.Close() //nolint:errcheck // its transaction is over
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), "LOCK TABLE meta, runs IN SHARE ROW EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	taken := make(chan error, 1)
	go func() { taken <- store.Take(t.Context(), linesOf(2, run("s"))) }()
	for waiting := 0; waiting == 0; {
		if err := tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM pg_locks WHERE NOT granted").
			Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	if got := store.Cursor(); got != 1 || store.Failure() != nil {
		t.Errorf("it is at %d, failing with %v; want 1, and nil", got, store.Failure())
	}
	if part, err := store.Runs(t.Context(), ledger.Query{}); err != nil || len(part.Runs) != 1 {
		t.Errorf("%d runs are listed, %v; want 1", len(part.Runs), err)
	}
	select {
	case err := <-taken:
		t.Errorf("it was taken in meanwhile: %v", err)
	default:
	}
	if err := errors.Join(tx.Rollback(), <-taken); err != nil {
		t.Error(err)
	}
}

// ledAt opens a ledger that several servers have.
func ledAt(t *testing.T, at string, deposed func(uint64)) *ledgerstore.Store {
	t.Helper()
	store, err := ledgerstore.OpenPostgres(t.Context(), func() (string, error) { return at, nil },
		&ledgerstore.Options{Led: true, Deposed: deposed})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// TestTheServerThatLeadsWritesTheLedger has two servers follow one stream. The second leads after the first, which does
// not know it yet and goes on to try; then it knows, and follows.
func TestTheServerThatLeadsWritesTheLedger(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	at := postgrestest.Start(t).Schema("ledger")
	js := streamOf(t)
	var deposed atomic.Uint64
	first, second := ledAt(t, at, deposed.Store), ledAt(t, at, func(term uint64) { t.Errorf("deposed by term %d", term) })
	keep(t, first, js)
	keep(t, second, js)
	events := append(spending(), held("h", 180, 240, 60*cent))
	last := publish(t, js, events...)
	if err := second.RemoveRun(t.Context(), "r"); !errors.Is(err, ledgerstore.ErrStandby) {
		t.Errorf("before anybody leads: %v, want %v", err, ledgerstore.ErrStandby)
	}
	if first.Cursor() != 0 {
		t.Errorf("the ledger is at %d though nobody leads", first.Cursor())
	}
	first.Lead(3)
	query := ledger.BillQuery{By: ledger.ByHost}
	want := apply(t, events...).bill(t, query, after(240))
	for _, store := range []*ledgerstore.Store{first, second} {
		reach(t, store, last)
		if diff := cmp.Diff(want, billOf(t, store, query, after(240))); diff != "" {
			t.Errorf("-of one +of two:\n%s", diff)
		}
	}
	second.Lead(4)
	remember := func(store *ledgerstore.Store) error {
		return store.Remember(t.Context(), map[string]streams.Mark{"s": {Last: 7}})
	}
	if err := remember(second); err != nil {
		t.Fatal(err)
	}
	if err := remember(first); !errors.Is(err, ledgerstore.ErrDeposed) || deposed.Load() != 4 {
		t.Errorf("the first, after the second has led: %v, told of term %d; want %v, and term 4", err, deposed.Load(),
			ledgerstore.ErrDeposed)
	}
	last = publish(t, js, line("s", "score", "later", predictor.Function, "fn", 240, 250, cent))
	reach(t, second, last)
	first.Lead(0)
	last = publish(t, js, line("s", "score", "last", predictor.Function, "fn", 240, 250, cent))
	for _, store := range []*ledgerstore.Store{first, second} {
		reach(t, store, last)
		got := billOf(t, store, query, after(250))
		if got.Attempts != want.Attempts+2*cent || len(got.Incomplete) != 0 {
			t.Errorf("the bill is %+v, want two cents more than %s, and nothing missing", got, want.Attempts)
		}
	}
	second.Lead(0)
	first.Lead(5)
	reach(t, first, publish(t, js, line("s", "score", "again", predictor.Function, "fn", 240, 250, cent)))
	if got := billOf(t, first, query, after(250)); got.Attempts != want.Attempts+3*cent || len(got.Incomplete) != 0 {
		t.Errorf("when the first leads again the bill is %+v, want three cents more than %s", got, want.Attempts)
	}
}

// TestNoTableIsReadAsAWhole does all that a server does with a ledger of some size, and asks PostgreSQL how often it
// has read all rows of a table. Only a bill of all times reads all days; and hours are forgotten by 500 names at a
// time, which is a large part of this table.
func TestNoTableIsReadAsAWhole(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	server := postgrestest.Start(t)
	at := server.Schema("ledger")
	store, err := ledgerstore.OpenPostgres(t.Context(), func() (string, error) { return at, nil },
		&ledgerstore.Options{Attempts: 9000})
	if err != nil {
		t.Fatal(err)
	}
	var lines []loop.Line
	tell := func(at time.Time, event predictor.Event) {
		lines = append(lines, loop.Line{
			Sequence: uint64(len(lines) + 1), Stored: at, Message: wire.Message{Event: event},
		})
	}
	const runs, tasks, apart = 2000, 5, 6000.0
	for i := range runs {
		id, from := fmt.Sprint("r", i), float64(i)*apart
		tell(after(from), predictor.RunStarted{Run: id, Pipeline: fmt.Sprint("p", i%20), App: "app", At: after(from)})
		tell(after(from), held("h", from, from+apart, cent))
		for task := range tasks {
			at := from + 10*float64(task)
			tell(after(at), line(id, fmt.Sprint("s", task), strconv.Itoa(task), predictor.Pool, "h", at, at+10, cent/5))
		}
		tell(after(from+60), predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(from + 60)})
	}
	for part := range 10 {
		take(t, store, lines[part*len(lines)/10:(part+1)*len(lines)/10]...)
	}
	shut(t, store) // its connections tell what they have counted
	server.Exec("ANALYZE")
	server.Exec("SELECT pg_stat_reset()")

	store, err = ledgerstore.OpenPostgres(t.Context(), func() (string, error) { return at, nil },
		&ledgerstore.Options{Attempts: 9000})
	if err != nil {
		t.Fatal(err)
	}
	now, day := after(runs*apart), 24*time.Hour
	for _, by := range dimensions {
		for _, query := range []ledger.BillQuery{
			{By: by, Run: "r77"},
			{By: by, Since: now.Add(-9 * day), Until: now.Add(-2 * day)},
			{By: by, Since: now.Add(-100 * time.Minute)},
		} {
			billOf(t, store, query, now)
		}
	}
	for _, query := range []ledger.Query{
		{Limit: 20},
		{Limit: 20, Pipeline: "p3"},
		{Limit: 20, State: predictor.RunRunning},
		{Limit: 20, Since: now.Add(-time.Hour)},
	} {
		for range 2 {
			part, err := store.Runs(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			query.After = part.End
		}
	}
	if _, _, err := store.Run(t.Context(), "r5"); err != nil {
		t.Error(err)
	}
	if _, _, _, err := store.Told(t.Context(), "r5"); err != nil {
		t.Error(err)
	}
	if _, err := store.Oldest(t.Context()); err != nil {
		t.Error(err)
	}
	lines = lines[:0]
	tell(now, run("new"))
	tell(now, line("new", "score", "t0", predictor.Pool, "h", runs*apart, runs*apart+10, cent))
	tell(now, endOf("new", runs*apart+20))
	for i := range lines {
		lines[i].Sequence += store.Cursor()
	}
	take(t, store, lines...)
	if err := store.RemoveRun(t.Context(), "new"); err != nil {
		t.Error(err)
	}
	shut(t, store)

	db := postgrestest.Connect(t, at)
	defer db.Close() //nolint:errcheck // it was only read
	for _, table := range []string{"spent", "sums", "runs"} {
		var scans, rows int
		if err := db.QueryRowContext(t.Context(), `SELECT seq_scan, seq_tup_read FROM pg_stat_user_tables
			WHERE schemaname = 'ledger' AND relname = $1`, table).Scan(&scans, &rows); err != nil {
			t.Fatal(err)
		}
		if scans > 0 {
			t.Errorf("table %s was read as a whole %d times, %d rows", table, scans, rows)
		}
	}
}

func TestALedgerIsCopiedThereAndBack(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	server := postgrestest.Start(t)
	dir := t.TempDir()
	store := open(t, filepath.Join(dir, "ledger.db"), &ledgerstore.Options{Attempts: 20})
	defer shut(t, store)
	var events []predictor.Event
	for i := range 600 {
		id, from := fmt.Sprint("r", i), float64(i)*3000
		events = append(events, predictor.RunStarted{Run: id, Pipeline: "ä", App: "app", At: after(from)},
			held("h", from, from+3000, 60*cent),
			line(id, "score", "t0", predictor.Pool, "h", from, from+200, cent/7),
			predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(from + 300)})
	}
	take(t, store, linesOf(1, events...)...)
	there := openAt(t, server.Schema("there"))
	defer shut(t, there)

	// One that is cut off leaves nothing, and is begun again.
	cut, cancel := context.WithCancel(t.Context())
	if _, err := ledgerstore.Copy(cut, store, there, func(string, int64) { cancel() }); err == nil {
		t.Fatal("a copy that is cut off succeeds")
	}
	for _, already := range []bool{false, true} {
		copied, err := ledgerstore.Copy(t.Context(), store, there, nil)
		if err != nil {
			t.Fatal(err)
		}
		if copied.Already != already || copied.Sequence != store.Cursor() || copied.Spent != 600*(cent/7) {
			t.Errorf("%+v, want %s up to %d", copied, 600*(cent/7), store.Cursor())
		}
	}
	back := open(t, filepath.Join(dir, "back.db"), nil)
	defer shut(t, back)
	if _, err := ledgerstore.Copy(t.Context(), there, back, nil); err != nil {
		t.Fatal(err)
	}
	more := linesOf(uint64(len(events))+1, line("r599", "score", "t1", predictor.Function, "fn", 0, 1, cent))
	for _, copied := range []*ledgerstore.Store{store, there, back} {
		take(t, copied, more...)
	}
	for _, by := range dimensions {
		want := billOf(t, store, ledger.BillQuery{By: by}, after(2e6))
		for _, copied := range []*ledgerstore.Store{there, back} {
			if diff := cmp.Diff(want, billOf(t, copied, ledger.BillQuery{By: by}, after(2e6))); diff != "" {
				t.Errorf("by %s, -original +%s:\n%s", by, copied, diff)
			}
		}
	}
	take(t, there, linesOf(uint64(len(events))+2, run("another"))...)
	if _, err := ledgerstore.Copy(t.Context(), store, there, nil); !errors.Is(err, ledgerstore.ErrNotEmpty) {
		t.Errorf("over another ledger: %v, want %v", err, ledgerstore.ErrNotEmpty)
	}
}

// TestStreamsOfTwoStacksAreNotTakenForOne has a second stack, whose stream begins anew, take the ledger of one that
// goes on: that one says so, and neither takes the other's numbers for its own.
func TestStreamsOfTwoStacksAreNotTakenForOne(t *testing.T) {
	t.Parallel()
	ledgerstore.OfFiles(t)
	at := postgrestest.Start(t).Schema("ledger")
	one, other := streamOf(t), streamOf(t)
	first, second := openAt(t, at), openAt(t, at)
	stop := follow(t, first, one)
	reach(t, first, publish(t, one, spending()...))
	keep(t, second, other)
	publish(t, other, line("o", "score", "t0", predictor.Function, "fn", 0, 10, cent))
	for { // it may have to find out first, which looks like failing
		bill, err := second.Bill(t.Context(), ledgerstore.Request{BillQuery: ledger.BillQuery{Run: "o"}, Now: after(250)})
		if err == nil && bill.Attempts == cent {
			break
		}
		if !wait.For(t.Context(), 10*time.Millisecond) {
			t.Fatal("the second has not taken the ledger over")
		}
	}
	last := publish(t, one, line("s", "score", "later", predictor.Function, "fn", 240, 250, cent))
	for {
		err := first.Reach(t.Context(), last)
		if err == nil {
			t.Fatal("what only the first stack tells is taken for told")
		}
		if errors.Is(err, ledgerstore.ErrShared) {
			break
		}
		if !wait.For(t.Context(), 10*time.Millisecond) {
			t.Fatal(err)
		}
	}
	reach(t, second, publish(t, other, line("o", "score", "t1", predictor.Function, "fn", 0, 10, cent)))
	got := billOf(t, second, ledger.BillQuery{Run: "o"}, after(250))
	if got.Attempts != 2*cent || len(got.Incomplete) != 0 {
		t.Errorf("the bill of the second is %+v, want two cents, and nothing missing", got)
	}
	stop()
	shut(t, first)
}
