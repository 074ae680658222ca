package ledgerstore

import (
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
	db      *sql.DB // has one connection: SQLite has one writer at a time
	readers *sql.DB // see what was written when they began, and hold no writer up

	mu       sync.RWMutex
	book     *spend.Book   // guarded by mu: the minutes that are not closed; nil when it is to be read again
	attempts int           // guarded by mu: kept one by one
	cursor   uint64        // guarded by mu
	stored   time.Time     // guarded by mu: when the message at cursor was stored
	moved    chan struct{} // guarded by mu: closed when cursor moves
}

// Open opens the ledger in the file at path, and makes it where there is none. It wraps ErrNewer for one that a newer
// engine has written. Of one that an older engine has written it keeps a copy beside it. One that is damaged it puts
// aside, and begins a new one: Keep then takes in again what the stream still has. An empty path is a ledger in memory.
// A nil options is the default.
func Open(ctx context.Context, path string, options *Options) (*Store, error) {
	s := &Store{path: path, moved: make(chan struct{})}
	if options != nil {
		s.options = *options
	}
	if s.options.Attempts <= 0 {
		s.options.Attempts = maxAttempts
	}
	if s.options.Logger == nil {
		s.options.Logger = slog.New(slog.DiscardHandler)
	}
	err := s.open(ctx)
	if damaged(err) {
		aside := fmt.Sprintf("%s.damaged-%d", path, time.Now().UnixMilli())
		s.options.Logger.WarnContext(ctx,
			"the ledger is damaged: it is put aside, and what the stream still has is taken in again",
			"path", path, "aside", aside, "error", err)
		if err := putAside(path, aside); err != nil {
			return nil, fmt.Errorf("put the damaged ledger aside: %w", err)
		}
		err = s.open(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("open the ledger %s: %w", path, err)
	}
	return s, nil
}

// Close closes the file.
func (s *Store) Close() error {
	if s.readers == s.db {
		return s.db.Close()
	}
	return errors.Join(s.readers.Close(), s.db.Close())
}

func (s *Store) open(ctx context.Context) (err error) {
	if err := whole(s.path); err != nil {
		return err
	}
	if err := s.connect(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	var found string
	if err := s.db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&found); err != nil {
		return err
	}
	if found != "ok" {
		return fmt.Errorf("%w: %s", errDamaged, found)
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

// connect opens the file for one writer and some readers.
func (s *Store) connect() (err error) {
	if s.path == "" {
		if s.db, err = sql.Open("sqlite", ":memory:"); err != nil {
			return err
		}
		s.db.SetMaxOpenConns(1)
		s.readers = s.db
		return nil
	}
	if err := keepPrivate(s.path); err != nil {
		return err
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
	s.readers.SetMaxOpenConns(2)
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
	s.cursor, s.stored = uint64(cursor), timeOf(stored)
	if err := s.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM spent WHERE task_id <> ''`).Scan(&s.attempts); err != nil {
		return err
	}
	s.book, err = s.readBook(ctx)
	return err
}

// readBook makes the book of the minutes that are not closed.
func (s *Store) readBook(ctx context.Context) (book *spend.Book, err error) {
	closed, err := meta(ctx, s.db, metaClosed)
	if err != nil {
		return nil, err
	}
	book = spend.Reopen(closed)
	rows, err := s.db.QueryContext(ctx, `SELECT host, from_ns, to_ns, price_pd FROM present WHERE to_ns > $1
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
	spans, err := s.db.QueryContext(ctx, selectSpans+`WHERE to_ns > $1 AND venue = 'pool' AND task_id <> ''`, closed)
	if err != nil {
		return nil, err
	}
	defer spans.Close() //nolint:errcheck // Err tells
	for spans.Next() {
		span, err := scanSpan(spans)
		if err != nil {
			return nil, err
		}
		book.Hold(span)
	}
	return book, spans.Err()
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

// Reach waits until all messages up to a sequence were taken in; it returns why ctx ended before.
func (s *Store) Reach(ctx context.Context, sequence uint64) error {
	for {
		s.mu.RLock()
		cursor, moved := s.cursor, s.moved
		s.mu.RUnlock()
		if cursor >= sequence {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("the ledger is at %d of %d: %w", cursor, sequence, ctx.Err())
		}
	}
}

func timeOf(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds).UTC()
}
