package ledgerstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlitecode "modernc.org/sqlite/lib"

	"github.com/spillway-ml/spillway/predictor/ledger/spend"
)

// ErrNewer says that a newer engine has written the ledger.
var ErrNewer = errors.New("a newer engine has written it")

// maxAttempts is how many attempts are kept one by one. Beyond it those of the runs that ended first are summed up by
// the hour, as soon as their minutes are closed.
const maxAttempts = 250_000

// Options configures a Store. The zero value is the default.
type Options struct {
	// Attempts is how many attempts are kept one by one; 0 means 250,000.
	Attempts int
	// Logger takes warnings; nil discards them.
	Logger *slog.Logger
}

// Store keeps who spent what. Its methods are safe for concurrent use.
type Store struct {
	options Options
	path    string

	// writing is held by whoever changes the book or reads it from the file, before mu: so nobody who only looks waits
	// while it is read.
	writing sync.Mutex

	mu       sync.RWMutex
	db       *sql.DB     // guarded by mu: has one connection, since SQLite has one writer at a time
	readers  *sql.DB     // guarded by mu: see what was written when they began, and hold no writer up
	usable   bool        // guarded by mu: the file is open
	failure  error       // guarded by mu: why the ledger is not kept now; nil while it is
	replaced error       // guarded by mu: that a damaged file was put aside, until somebody was told
	book     *spend.Book // guarded by mu: the minutes that are not closed; nil when it is to be read again
	attempts int         // guarded by mu: kept one by one
	cursor   uint64      // guarded by mu
	stored   time.Time   // guarded by mu: when the message at cursor was stored
	// hoursFrom and runsFrom are guarded by mu: from when on hours are known, and what runs that are forgotten have spent;
	// in nanoseconds since 1970.
	hoursFrom, runsFrom int64
	moved               chan struct{} // guarded by mu: closed when cursor moves
}

// Open opens the ledger in the file at path, and makes it where there is none. Of one that an older engine has written
// it keeps a copy beside it. One that is damaged it puts aside, and begins a new one: Keep then takes in again what the
// stream still has. An empty path is a ledger in memory. A nil options is the default.
//
// It fails with ErrNewer for one that a newer engine has written, and when ctx ends. A file that cannot be opened
// otherwise, as on a full disk, is no reason for an engine not to start: Keep tries again, and until then bills answer
// with the error.
func Open(ctx context.Context, path string, options *Options) (*Store, error) {
	s := &Store{path: path, moved: make(chan struct{})}
	if options != nil {
		s.options = *options
	}
	if s.options.Attempts <= 0 {
		s.options.Attempts = maxAttempts
	}
	s.options.Logger = cmp.Or(s.options.Logger, slog.New(slog.DiscardHandler))
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.openFile(ctx)
	if err != nil && (errors.Is(err, ErrNewer) || ctx.Err() != nil) {
		return nil, err
	}
	if err != nil {
		s.options.Logger.ErrorContext(ctx, "the ledger cannot be opened; it is tried again", "path", path, "error", err)
	}
	s.failure = err
	return s, nil
}

// Close closes the file.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.usable {
		return nil
	}
	s.failure = errClosed
	return s.closeFile()
}

// errClosed says that the ledger is used after Close.
var errClosed = errors.New("the ledger is closed")

// openFile opens the file, with a new one in the place of one that is damaged. The caller holds mu.
func (s *Store) openFile(ctx context.Context) error {
	err := s.open(ctx)
	if damaged(err) {
		err = s.replace(ctx, err)
	}
	if err != nil {
		return fmt.Errorf("open the ledger %s: %w", s.path, err)
	}
	return nil
}

// replace puts the damaged file, which is closed, aside and opens a new one. The caller holds mu.
func (s *Store) replace(ctx context.Context, damage error) error {
	aside := fmt.Sprintf("%s.damaged-%d", s.path, time.Now().UnixMilli())
	s.options.Logger.ErrorContext(ctx,
		"the ledger is damaged: it is put aside, and what the stream still has is taken in again",
		"path", s.path, "aside", aside, "error", damage)
	if err := putAside(s.path, aside); err != nil {
		return fmt.Errorf("put the damaged ledger aside: %w", err)
	}
	s.replaced = fmt.Errorf("it was damaged, and is made anew of what the stream of events still has; what was "+
		"left of it "+
		"is in %s: %w", aside, damage)
	return s.open(ctx)
}

// restore opens a file that is not open, and puts one aside in which damage was found.
func (s *Store) restore(ctx context.Context) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.usable && damaged(s.failure):
		if err := s.closeFile(); err != nil { // what is damaged may not close as it should
			s.options.Logger.WarnContext(ctx, "close the damaged ledger", "path", s.path, "error", err)
		}
		err = s.replace(ctx, s.failure)
	case !s.usable:
		err = s.openFile(ctx)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	s.failure = nil
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

// closeFile closes the file. The caller holds mu.
func (s *Store) closeFile() error {
	s.usable, s.book = false, nil
	if s.readers == s.db {
		return s.db.Close()
	}
	return errors.Join(s.readers.Close(), s.db.Close())
}

// reader is what bills are read from.
func (s *Store) reader() *sql.DB {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.readers
}

// open opens the file as it is. The caller holds mu.
func (s *Store) open(ctx context.Context) (err error) {
	ended := endedWell(s.path)
	if err := s.connect(); err != nil {
		return err
	}
	s.usable = true
	defer func() {
		if err != nil {
			err = errors.Join(err, s.closeFile())
		}
	}()
	if s.path != "" {
		if err := whole(s.path); err != nil {
			return err
		}
		if err := keepPrivate(s.path); err != nil {
			return err
		}
	}
	if !ended {
		if err := check(ctx, s.db); err != nil {
			return err
		}
	}
	schema, err := schemaOf(ctx, s.db)
	if err != nil {
		return err
	}
	newest := len(migrations)
	if schema > newest {
		return fmt.Errorf("%w: it has schema %d, this engine reads up to %d; start that engine, or move the file away: "+
			"what the stream of events still has is then taken in again", ErrNewer, schema, newest)
	}
	if schema < newest {
		if err := s.copyOf(ctx, schema); err != nil {
			return err
		}
		if err := migrate(ctx, s.db, schema); err != nil {
			return err
		}
	}
	return s.load(ctx)
}

// endedWell reports whether whoever wrote the file last has closed it: SQLite then removes its write-ahead log.
func endedWell(path string) bool {
	_, err := os.Stat(path + "-wal")
	return path == "" || errors.Is(err, fs.ErrNotExist)
}

// check reads the whole file, which takes seconds for 250,000 attempts: damage that is not looked for is met when it is
// read, and handled then.
func check(ctx context.Context, db *sql.DB) error {
	var found string
	if err := db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&found); err != nil {
		return err
	}
	if found != "ok" {
		return fmt.Errorf("%w: %s", errDamaged, found)
	}
	return nil
}

// connect prepares one writer and some readers; it does not look at the file.
func (s *Store) connect() (err error) {
	if s.path == "" {
		if s.db, err = sql.Open("sqlite", ":memory:"); err != nil {
			return err
		}
		s.db.SetMaxOpenConns(1)
		s.readers = s.db
		return nil
	}
	name := "file:" + (&url.URL{Path: s.path}).EscapedPath() +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_pragma=synchronous(normal)&_txlock="
	if s.db, err = sql.Open("sqlite", name+"immediate"); err != nil {
		return err
	}
	s.db.SetMaxOpenConns(1)
	if s.readers, err = sql.Open("sqlite", name+"deferred"); err != nil {
		return errors.Join(err, s.db.Close())
	}
	s.readers.SetMaxOpenConns(3) // one may read the book
	return nil
}

// keepPrivate makes the file, where it is missing, so that nobody but its owner reads it; SQLite gives what it makes
// beside it the same rights.
func keepPrivate(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(file.Chmod(0o600), file.Close())
}

// copyOf keeps a copy of a database of an older schema beside it.
func (s *Store) copyOf(ctx context.Context, schema int) error {
	if schema == 0 || s.path == "" {
		return nil
	}
	copied := fmt.Sprintf("%s.schema-%d", s.path, schema)
	if err := os.Remove(copied); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep a copy of schema %d: %w", schema, err)
	}
	if _, err := s.db.ExecContext(ctx, `VACUUM INTO $1`, copied); err != nil {
		return fmt.Errorf("keep a copy of schema %d: %w", schema, err)
	}
	s.options.Logger.InfoContext(ctx, "the ledger is of an earlier schema; a copy of it is kept", "schema", schema,
		"copy", copied)
	return os.Chmod(copied, 0o600)
}

// errDamaged says that the file is no whole database.
var errDamaged = errors.New("the file is damaged")

func damaged(err error) bool {
	if errors.Is(err, errDamaged) {
		return true
	}
	failed, ok := errors.AsType[*sqlite.Error](err)
	return ok && (failed.Code()&0xff == sqlitecode.SQLITE_CORRUPT || failed.Code()&0xff == sqlitecode.SQLITE_NOTADB)
}

// whole reports a file that is shorter than its header says (https://sqlite.org/fileformat.html): of a last page that
// is cut SQLite takes the rest for zeros. Where there is a write-ahead log, the file may be about to grow.
func whole(path string) error {
	if log, err := os.Stat(path + "-wal"); path == "" || err == nil && log.Size() > 0 {
		return nil
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it was only read
	header := make([]byte, 100)
	read, err := io.ReadFull(file, header)
	if read == 0 && errors.Is(err, io.EOF) {
		return nil // new
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	page := int64(binary.BigEndian.Uint16(header[16:]))
	if page == 1 {
		page = 1 << 16
	}
	if size := page * int64(binary.BigEndian.Uint32(header[28:])); info.Size() < size {
		return fmt.Errorf("%w: it has %d of %d bytes", errDamaged, info.Size(), size)
	}
	return nil
}

// putAside renames the file and what lies beside it.
func putAside(path, aside string) error {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Rename(path+suffix, aside+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Path is where the ledger of a state directory lies.
func Path(stateDir string) string { return filepath.Join(stateDir, "ledger.db") }

// load reads how far the ledger is.
func (s *Store) load(ctx context.Context) error {
	cursor, err := meta(ctx, s.db, metaCursor)
	if err != nil {
		return err
	}
	stored, err := meta(ctx, s.db, metaStored)
	if err != nil {
		return err
	}
	s.cursor, s.stored = uint64(cursor), spend.Time(stored)
	if s.hoursFrom, err = meta(ctx, s.db, metaHours); err != nil {
		return err
	}
	if s.runsFrom, err = meta(ctx, s.db, metaRuns); err != nil {
		return err
	}
	attempts, err := meta(ctx, s.db, metaAttempts)
	if err == nil && attempts == 0 { // or an earlier engine did not count them
		err = s.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM spent WHERE task_id <> ''`).Scan(&attempts)
	}
	s.attempts = int(attempts)
	return err
}

// prepare reads the book, where that was not done since the file was opened: it takes most of a second for the attempts
// of a busy week. Neither the start of an engine waits for it nor who asks for anything but a bill.
func (s *Store) prepare(ctx context.Context) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.RLock()
	db, wanted := s.readers, s.usable && s.failure == nil && s.book == nil
	s.mu.RUnlock()
	if !wanted {
		return nil
	}
	book, err := readBook(ctx, db)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usable && s.readers == db { // it was not closed meanwhile
		s.book = book
	}
	return nil
}

// readBook makes the book of the minutes that are not closed.
func readBook(ctx context.Context, db *sql.DB) (book *spend.Book, err error) {
	closed, err := meta(ctx, db, metaClosed)
	if err != nil {
		return nil, err
	}
	book = spend.Reopen(closed)
	rows, err := db.QueryContext(ctx, `SELECT host, from_ns, to_ns, price_pd FROM present WHERE to_ns > $1
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
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return book, eachHeld(ctx, db, closed, book.Hold)
}

// Cursor is the sequence of the last message that was taken in; 0 before the first.
func (s *Store) Cursor() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.cursor
}

// Attempts is how many attempts are kept one by one.
func (s *Store) Attempts() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.attempts
}

// Reach waits until all messages up to a sequence were taken in; it returns why ctx ended before, or why the ledger is
// not kept now.
func (s *Store) Reach(ctx context.Context, sequence uint64) error {
	for {
		s.mu.RLock()
		cursor, moved, failure := s.cursor, s.moved, s.failure
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
