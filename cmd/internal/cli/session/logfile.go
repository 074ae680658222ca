package session

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
)

// logLimit is the size in bytes that the engine's log does not grow beyond: it is put aside as spillway.log.1, in the
// place of what was put aside before.
const logLimit = 10 << 20

// logFile is the engine's log, which is put aside while it is written, so that the two files are at most twice the
// limit together, but for a line that is longer. A log that lies elsewhere by a link is left to whoever made the
// link. Its methods may be called concurrently.
type logFile struct {
	path  string
	limit int64

	mu   sync.Mutex
	file *os.File // guarded by mu
	size int64    // guarded by mu
}

// openLogFile opens or makes the log in the state directory.
func openLogFile(stateDir string, limit int64) (*logFile, error) {
	l := &logFile{path: filepath.Join(stateDir, "spillway.log"), limit: limit}
	info, err := os.Lstat(l.path)
	// Whose directory this is the engine looks at when it starts, which is later: a link is followed only if it is this
	// user's, in a directory where nobody else could have put it.
	follow := err == nil && safefile.Own(info) && safefile.Check(stateDir, false) == nil
	if err := l.open(follow); err != nil {
		return nil, err
	}
	return l, nil
}

// open opens the file at the path. The caller holds mu, or is the only one who knows l.
func (l *logFile) open(follow bool) error {
	flags := os.O_CREATE | os.O_APPEND | os.O_WRONLY | syscall.O_NONBLOCK
	if !follow {
		flags |= syscall.O_NOFOLLOW
	}
	file, err := os.OpenFile(l.path, flags, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	l.file, l.size = file, info.Size()
	return nil
}

// Write writes one line or several. What does not fit any more goes into a new file.
func (l *logFile) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(text)) > l.limit {
		l.putAside()
	}
	n, err := l.file.Write(text)
	l.size += int64(n)
	return n, err
}

// putAside begins a new file, where the path is that of the file that is written and no link. Where that fails, the
// log goes on in the old one, and is tried again when it has grown by another limit: a log that is too long is better
// than none. The caller holds mu.
func (l *logFile) putAside() {
	named, err := os.Lstat(l.path)
	opened, failed := l.file.Stat()
	if err != nil || failed != nil || !os.SameFile(named, opened) || os.Rename(l.path, l.path+".1") != nil {
		l.size = 0
		return
	}
	old := l.file
	if err := l.open(false); err != nil {
		l.file, l.size = old, 0
		err = errors.Join(err, os.Rename(l.path+".1", l.path))
		_, _ = io.WriteString(old, fmt.Sprintf("level=WARN msg=\"the log is not put aside\" error=%q\n", err))
		return
	}
	_ = old.Close() // all of it is written: nothing is buffered here
}

// Close closes the file.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

// OpenLog opens the log, spillway.log, in a state directory; the caller closes it.
func OpenLog(stateDir, level string) (*slog.Logger, io.Closer, error) {
	file, err := openLogFile(stateDir, logLimit)
	if err != nil {
		return nil, nil, fault.Advise(fmt.Errorf("open the log: %w", err),
			"choose a writable state directory with --state DIR")
	}
	var least slog.Level
	if err := least.UnmarshalText([]byte(strings.ToUpper(level))); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("log level: %w", err), file.Close())
	}
	return slog.New(slog.NewTextHandler(file, &slog.HandlerOptions{Level: least})), file, nil
}
