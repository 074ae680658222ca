package ledgerstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/predictor/ledger/spend"
)

// ErrNewer says that a newer engine has written the ledger.
var ErrNewer = errors.New("a newer engine has written it")

// ErrShared says that two stacks, each with a stream of events of its own, keep one ledger.
var ErrShared = errors.New("another stack keeps this ledger from a stream of events of its own, whose numbers are " +
	"others; give each stack a database, or a schema by search_path in the URL, and start this one again")

// maxAttempts is how many attempts are kept one by one. Beyond it those of the runs that ended first are summed up by
// the hour, as soon as their minutes are closed.
const maxAttempts = 250_000

// Options configures a Store. The zero value is the default.
type Options struct {
	// Attempts is how many attempts are kept one by one; 0 means 250,000.
	Attempts int
	// Led says that several servers have the ledger, of which one writes: the one that Lead has told its term. False is a
	// ledger of one server.
	Led bool
	// Deposed is told the term of the ledger where it is later than the one that Lead was told: another server has written
	// since. It does not block. Nil tells nobody.
	Deposed func(term uint64)
	// Logger takes warnings; nil discards them.
	Logger *slog.Logger
}

// Store keeps who spent what. Its methods are safe for concurrent use.
//
// Its locks are taken in the order of the fields. What is asked of a database may take as long as the way to it is
// broken: meanwhile nobody waits who asks for no bill and changes nothing.
type Store struct {
	options Options
	path    string  // of the file; empty for a ledger in memory, and for one in PostgreSQL
	server  *server // nil for a file
	dialect dialect

	writing sync.Mutex // held by whoever changes what is kept, opens or closes it, or reads the book

	minutes sync.RWMutex // held by whoever looks at the book, and exclusively while messages are taken in
	book    *spend.Book  // guarded by minutes: the minutes that are not closed; nil when it is to be read again

	mu       sync.RWMutex
	db       *sql.DB       // guarded by mu: has one connection, since SQLite has one writer at a time
	readers  *sql.DB       // guarded by mu: see what was written when they began, and hold no writer up
	usable   bool          // guarded by mu: the database is open
	failure  error         // guarded by mu: why the ledger is not kept now; nil while it is
	replaced error         // guarded by mu: that a damaged file was put aside, until somebody was told
	at       progress      // guarded by mu
	term     uint64        // guarded by mu: in which this server leads; 0 while it does not
	turns    int           // guarded by mu: how often term has changed
	stream   int64         // guarded by mu: when the stream that is followed was made; 0 of none
	claimed  int64         // guarded by mu: that of the stream that was taken in last; 0 before the first
	moved    chan struct{} // guarded by mu: closed when the cursor moves
}

// progress is how far a ledger is.
type progress struct {
	cursor   uint64    // the sequence of the last message that was taken in; 0 before the first
	stored   time.Time // when that was stored
	attempts int       // kept one by one
	// hoursFrom and runsFrom are from when on hours are known, and what runs that are forgotten have spent; in nanoseconds
	// since 1970.
	hoursFrom, runsFrom int64
	stream              int64  // when the stream was made that was taken in; 0 where that is not known
	term                uint64 // of the server that wrote last, of those that lead; 0 where none did
}

// Open opens the ledger in the file at path, and makes it where there is none. Of one that an older engine has written
// it keeps a copy beside it. One that is damaged it puts aside, and begins a new one: Keep then takes in again what the
// stream still has. An empty path is a ledger in memory. A nil options is the default.
//
// It fails with ErrNewer for one that a newer engine has written, and when ctx ends. A file that cannot be opened
// otherwise, as on a full disk, is no reason for an engine not to start: Keep tries again, and until then bills answer
// with the error.
func Open(ctx context.Context, path string, options *Options) (*Store, error) {
	s := newStore(options)
	s.path, s.dialect = path, sqliteDialect
	err := s.openPlace(ctx)
	if err != nil && (errors.Is(err, ErrNewer) || ctx.Err() != nil) {
		return nil, err
	}
	if err != nil {
		s.options.Logger.ErrorContext(ctx, "the ledger cannot be opened; it is tried again", "path", path, "error", err)
	}
	s.failure = err
	return s, nil
}

func newStore(options *Options) *Store {
	s := &Store{moved: make(chan struct{})}
	if options != nil {
		s.options = *options
	}
	if s.options.Attempts <= 0 {
		s.options.Attempts = maxAttempts
	}
	s.options.Logger = cmp.Or(s.options.Logger, slog.New(slog.DiscardHandler))
	return s
}

// String names where the ledger is, for messages: it has no secret.
func (s *Store) String() string {
	switch {
	case s.server != nil:
		return s.server.String()
	case s.path == "":
		return "in memory"
	default:
		return s.path
	}
}

// Failure is why the ledger is not kept now; nil while it is.
func (s *Store) Failure() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.failure
}

// Close closes the database.
func (s *Store) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if _, err := s.readable(); err != nil {
		return nil // it is not open
	}
	return s.closePlace(errClosed)
}

// errClosed says that the ledger is used after Close.
var errClosed = errors.New("the ledger is closed")

// openPlace opens the database, with a new file in the place of one that is damaged. The caller holds writing, unless
// nobody else has the store.
func (s *Store) openPlace(ctx context.Context) error {
	err := s.open(ctx)
	if damaged(err) {
		err = s.replace(ctx, err)
	}
	if err != nil {
		return fmt.Errorf("open the ledger %s: %w", s, explain(err))
	}
	return nil
}

// restore opens a database that is not open, and puts a file aside in which damage was found.
func (s *Store) restore(ctx context.Context) (err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.RLock()
	usable, failure := s.usable, s.failure
	s.mu.RUnlock()
	switch {
	case usable && damaged(failure):
		if err := s.closePlace(failure); err != nil { // what is damaged may not close as it should
			s.options.Logger.WarnContext(ctx, "close the damaged ledger", "path", s.path, "error", err)
		}
		err = s.replace(ctx, failure)
	case errors.Is(failure, errClosed):
		return failure
	case !usable:
		err = s.openPlace(ctx)
	case failure != nil && s.server != nil: // what was committed last is not known where the answer was lost
		err = s.lookAgain(ctx)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = nil
	return nil
}

// lookAgain finds out how far the ledger is, once the server can be reached again. The caller holds writing.
func (s *Store) lookAgain(ctx context.Context) error {
	db, err := s.readable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	at, err := readProgress(ctx, db)
	if err != nil {
		return fmt.Errorf("reach the ledger %s: %w", s, explain(err))
	}
	s.follows(at)
	return nil
}

// suspect notes damage that was met in what was read from a file, while that is still the ledger's: it is put aside
// before the next messages are taken in.
func (s *Store) suspect(from *sql.DB, damage error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usable && s.readers == from {
		s.failure = damage
	}
}

// closePlace closes the database, for a reason. The caller holds writing.
func (s *Store) closePlace(reason error) error {
	s.minutes.Lock()
	s.book = nil
	s.minutes.Unlock()
	s.mu.Lock()
	s.usable, s.failure = false, reason
	db, readers := s.db, s.readers
	s.mu.Unlock()
	return closeBoth(db, readers)
}

// closeBoth closes the writer and the readers, which a ledger in memory has as one.
func closeBoth(db, readers *sql.DB) error {
	if readers == db {
		return db.Close()
	}
	return errors.Join(readers.Close(), db.Close())
}

// reader is what bills are read from.
func (s *Store) reader() *sql.DB {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.readers
}

// open opens the database as it is. The caller holds writing.
func (s *Store) open(ctx context.Context) (err error) {
	connect := s.connectFile
	if s.server != nil {
		connect = s.server.connect
	}
	db, readers, err := connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeBoth(db, readers))
		}
	}()
	schema, err := schemaOf(ctx, db, s.dialect)
	if err != nil {
		return err
	}
	if newest := len(migrations); schema < newest {
		if err := s.copyOf(ctx, db, schema); err != nil {
			return err
		}
		if schema, err = migrate(ctx, db, s.dialect); err != nil {
			return err
		}
		s.options.Logger.InfoContext(ctx, "the ledger has the newest schema now", "ledger", s.String(), "schema", schema)
	}
	if err := checkSchema(schema); err != nil {
		return err
	}
	at, err := load(ctx, db)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.db, s.readers, s.usable, s.at = db, readers, true, at
	return nil
}

// load reads how far a ledger is. Attempts that an earlier engine did not count are counted.
func load(ctx context.Context, db *sql.DB) (at progress, err error) {
	at, err = readProgress(ctx, db)
	if err != nil || at.attempts > 0 {
		return at, err
	}
	err = db.QueryRowContext(ctx, `SELECT COUNT(*) FROM spent WHERE task_id <> ''`).Scan(&at.attempts)
	if err != nil || at.attempts == 0 {
		return at, err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return at, err
	}
	if err := setMeta(ctx, tx, metaAttempts, int64(at.attempts)); err != nil {
		return at, errors.Join(err, tx.Rollback())
	}
	return at, tx.Commit()
}

// readProgress reads how far a ledger is.
func readProgress(ctx context.Context, from querier) (at progress, err error) {
	rows, err := from.QueryContext(ctx, `SELECT name, value FROM meta WHERE name IN ('`+metaCursor+`', '`+metaStored+
		`', '`+metaAttempts+`', '`+metaHours+`', '`+metaRuns+`', '`+metaStream+`', '`+metaTerm+`')`)
	if err != nil {
		return at, err
	}
	defer rows.Close() //nolint:errcheck // Err tells
	at.stored = spend.Time(0)
	for rows.Next() {
		var name string
		var value int64
		if err := rows.Scan(&name, &value); err != nil {
			return at, err
		}
		switch name {
		case metaCursor:
			at.cursor = uint64(value)
		case metaStored:
			at.stored = spend.Time(value)
		case metaAttempts:
			at.attempts = int(value)
		case metaHours:
			at.hoursFrom = value
		case metaRuns:
			at.runsFrom = value
		case metaStream:
			at.stream = value
		case metaTerm:
			at.term = uint64(value)
		}
	}
	return at, rows.Err()
}

// prepare reads the book, where that was not done since the database was opened: it takes most of a second for the
// attempts of a busy week. Neither the start of an engine waits for it nor who asks for anything but a bill.
func (s *Store) prepare(ctx context.Context) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.RLock()
	db, wanted := s.readers, s.usable && s.failure == nil && !s.standsBy()
	s.mu.RUnlock()
	s.minutes.RLock()
	wanted = wanted && s.book == nil
	s.minutes.RUnlock()
	if !wanted {
		return nil
	}
	book, err := readBook(ctx, db)
	if err != nil {
		return err
	}
	s.minutes.Lock()
	defer s.minutes.Unlock()
	s.book = book
	return nil
}

// readBook makes the book of the minutes that are not closed.
func readBook(ctx context.Context, from querier) (book *spend.Book, err error) {
	closed, err := meta(ctx, from, metaClosed)
	if err != nil {
		return nil, err
	}
	book = spend.Reopen(closed)
	rows, err := from.QueryContext(ctx, `SELECT host, from_ns, to_ns, price_pd FROM present WHERE to_ns > $1
		ORDER BY told`, closed)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		held, err := scanHeld(rows)
		if err != nil {
			return nil, err
		}
		book.Present(held)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	return book, eachHeld(ctx, from, closed, book.Hold)
}

// Cursor is the sequence of the last message that was taken in; 0 before the first.
func (s *Store) Cursor() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.at.cursor
}

// Attempts is how many attempts are kept one by one.
func (s *Store) Attempts() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.at.attempts
}

// Reach waits until all messages up to a sequence were taken in; it returns why ctx ended before, or why the ledger is
// not kept now.
func (s *Store) Reach(ctx context.Context, sequence uint64) error {
	for {
		s.mu.RLock()
		cursor, moved, failure := s.at.cursor, s.moved, s.failure
		s.mu.RUnlock()
		if cursor >= sequence {
			return nil
		}
		if failure != nil {
			return fmt.Errorf("the ledger is at %d of %d, and is not kept now: %w", cursor, sequence, failure)
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("the ledger is at %d of %d: %w", cursor, sequence, ctx.Err())
		}
	}
}

// wake wakes those who wait in Reach. The caller holds mu.
func (s *Store) wake() {
	close(s.moved)
	s.moved = make(chan struct{})
}
