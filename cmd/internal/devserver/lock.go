package devserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
)

// DirError says why a state directory cannot be used, and what to do.
type DirError struct {
	// Dir is the state directory.
	Dir string
	// PID is the process that uses it; 0 when it is not in use or the process is unknown.
	PID int
	// Err is the cause; it is ErrDirInUse when another server has the directory.
	Err error
}

// ErrDirInUse is the cause of a DirError when another server uses the directory.
var ErrDirInUse = errors.New("in use")

// Error implements error.
func (e *DirError) Error() string {
	switch {
	case !errors.Is(e.Err, ErrDirInUse):
		return fmt.Sprintf("state directory %s cannot be used: %v; make it writable or choose another with --state", e.Dir,
			e.Err)
	case e.PID == 0:
		return fmt.Sprintf("state directory %s is in use by another process; stop it or choose another with --state", e.Dir)
	default:
		return fmt.Sprintf("state directory %s is in use by process %d; stop it or choose another with --state", e.Dir, e.PID)
	}
}

// Unwrap returns the cause.
func (e *DirError) Unwrap() error { return e.Err }

// Lock makes a directory if it is missing and locks it, as servers do with theirs, until unlock is called or the
// process ends. Its errors are *DirError.
func Lock(dir string) (unlock func() error, err error) {
	lock, err := lockDir(dir, nil)
	if err != nil {
		return nil, err
	}
	return lock.unlock, nil
}

// dirLock is the right to use a state directory. The kernel takes it back when the process ends, however it ends, so a
// lock never outlives its owner.
type dirLock struct {
	file *os.File
}

// lockDir makes the directory dir if it is missing and locks it. Before anybody sees that it is locked, and while no
// other server has it, before is called, perhaps several times; nil does nothing. Its errors are *DirError, and what
// before returns.
func lockDir(dir string, before func() error) (*dirLock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &DirError{Dir: dir, Err: err}
	}
	f, err := os.OpenFile(filepath.Join(dir, access.LockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, &DirError{Dir: dir, Err: err}
	}
	if err := flock(f, before); err != nil {
		if failed, ok := errors.AsType[*beforeError](err); ok {
			return nil, errors.Join(failed.error, f.Close())
		}
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrDirInUse
		}
		return nil, errors.Join(&DirError{Dir: dir, PID: owner(f), Err: err}, f.Close())
	}
	l := &dirLock{file: f}
	if err := l.sign(); err != nil {
		return nil, errors.Join(&DirError{Dir: dir, Err: err}, f.Close())
	}
	return l, nil
}

// lockTries is how often a lock that another process has is asked for, with lockGap between: a command that looks
// whether an engine lives has it for a moment (access.EngineLives).
const (
	lockTries = 10
	lockGap   = 10 * time.Millisecond
)

// flock locks the file; its error is EWOULDBLOCK when another process keeps the lock, and a *beforeError when before
// fails.
//
// It is shared first, which keeps every other server out and looks to commands as if nobody had it
// (access.EngineLives). What before takes away is gone, then, for whoever sees that a server lives. A command that
// looked between a lock and such a removal showed its token at the address that a killed engine had left.
func flock(f *os.File, before func() error) error {
	try := func() error {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
			return err
		}
		if before != nil {
			if err := before(); err != nil {
				return &beforeError{err}
			}
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			// of two servers that begin at once, the first that is refused must not keep the other out
			return errors.Join(err, syscall.Flock(int(f.Fd()), syscall.LOCK_UN))
		}
		return nil
	}
	err := try()
	for range lockTries - 1 {
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			break
		}
		time.Sleep(lockGap)
		err = try()
	}
	return err
}

// beforeError is what kept a server from locking the directory, which is not the directory's.
type beforeError struct{ error }

// sign writes this process into the lock file, for whoever is refused.
func (l *dirLock) sign() error {
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err := l.file.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	return err
}

// owner is the process that signed the lock file, or 0 when it cannot be told.
func owner(f *os.File) int {
	var b [20]byte
	n, _ := f.ReadAt(b[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		return 0
	}
	return pid
}

// unlock frees the directory. The file stays: removing it would let two processes lock two files of one name. It is
// unlocked and not just closed: a process that another thread is just forking holds a copy of it, and with it the lock,
// until it executes its program.
func (l *dirLock) unlock() error {
	return errors.Join(l.file.Truncate(0), syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN), l.file.Close())
}
