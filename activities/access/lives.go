package access

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// EngineLives reports whether an engine holds the lock of the state directory dir, and refuses a directory that belongs
// to another user or that others can write to. Ask it before a token is sent to an address that is kept there: where no
// engine lives, anybody may listen at it by now.
func EngineLives(dir string) (bool, error) {
	root, err := openOwn(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = root.Close() }() // it was only read
	lock, err := root.OpenFile(LockFile, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look whether an engine runs on %s: %w", dir, err)
	}
	defer func() { _ = lock.Close() }() // which gives back what was taken
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look whether an engine runs on %s: %w", dir, err)
	}
	return false, nil
}
