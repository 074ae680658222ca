package ledgerstore

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"modernc.org/sqlite"
	sqlitecode "modernc.org/sqlite/lib"
)

// Path is where the ledger of a state directory lies.
func Path(stateDir string) string { return filepath.Join(stateDir, "ledger.db") }

// replace puts the damaged file, which is closed, aside and opens a new one. The caller holds writing.
func (s *Store) replace(ctx context.Context, damage error) error {
	aside := fmt.Sprintf("%s.damaged-%d", s.path, time.Now().UnixMilli())
	s.options.Logger.ErrorContext(ctx,
		"the ledger is damaged: it is put aside, and what the stream still has is taken in again",
		"path", s.path, "aside", aside, "error", damage)
	if err := putAside(s.path, aside); err != nil {
		return fmt.Errorf("put the damaged ledger aside: %w", err)
	}
	s.mu.Lock()
	s.replaced = fmt.Errorf("it was damaged, and is made anew of what the stream of events still has; what was left of "+
		"it is in %s: %w", aside, damage)
	s.mu.Unlock()
	return s.open(ctx)
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

// connectFile opens the file with one writer and some readers. It finds out whether it is whole; whether each page of
// it is, only where it was not closed.
func (s *Store) connectFile(ctx context.Context) (db, readers *sql.DB, err error) {
	if s.path == "" {
		if db, err = sql.Open("sqlite", ":memory:"); err != nil {
			return nil, nil, err
		}
		db.SetMaxOpenConns(1)
		return db, db, nil
	}
	ended := endedWell(s.path)
	name := "file:" + (&url.URL{Path: s.path}).EscapedPath() +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_pragma=synchronous(normal)&_txlock="
	if db, err = sql.Open("sqlite", name+"immediate"); err != nil {
		return nil, nil, err
	}
	db.SetMaxOpenConns(1)
	if readers, err = sql.Open("sqlite", name+"deferred"); err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	readers.SetMaxOpenConns(3) // one may read the book
	if err = whole(s.path); err == nil {
		err = keepPrivate(s.path)
	}
	if err == nil && !ended {
		err = check(ctx, db)
	}
	if err != nil {
		return nil, nil, errors.Join(err, closeBoth(db, readers))
	}
	return db, readers, nil
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

// copyOf keeps a copy of a file of an older schema beside it. In PostgreSQL a migration is one transaction, and copies
// are its keepers' affair.
func (s *Store) copyOf(ctx context.Context, db *sql.DB, schema int) error {
	if schema == 0 || s.path == "" {
		return nil
	}
	copied := fmt.Sprintf("%s.schema-%d", s.path, schema)
	if err := os.Remove(copied); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep a copy of schema %d: %w", schema, err)
	}
	if _, err := db.ExecContext(ctx, `VACUUM INTO $1`, copied); err != nil {
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
