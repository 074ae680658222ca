package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// lockPoll is how often a lock that another process holds is tried again: flock(2) cannot be waited for with a context.
const lockPoll = 50 * time.Millisecond

// errLocked says that another process, or another part of this one, holds a lock.
var errLocked = errors.New("it is locked")

// lockMode says whether others may hold a lock as well.
type lockMode int

const (
	shared    lockMode = syscall.LOCK_SH
	exclusive lockMode = syscall.LOCK_EX
)

// tryLock opens the file name, which it makes where needed, and locks it; the lock ends when the file is closed, also
// by the end of the process. The error is errLocked when it is held otherwise.
//
// Whoever holds the lock exclusively may delete the file; so a lock counts only when the file still has its name
// afterwards.
func tryLock(name string, mode lockMode) (*os.File, error) {
	for {
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open a lock: %w", err)
		}
		if err := syscall.Flock(int(file.Fd()), int(mode)|syscall.LOCK_NB); err != nil {
			_ = file.Close()
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, errLocked
			}
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		held, err := file.Stat()
		if err == nil {
			var named os.FileInfo
			if named, err = os.Stat(name); err == nil && os.SameFile(held, named) {
				return file, nil
			}
		}
		_ = file.Close()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
	}
}

// waitLock is tryLock that waits until the lock is free or ctx ends.
func waitLock(ctx context.Context, name string, mode lockMode) (*os.File, error) {
	again := time.NewTicker(lockPoll)
	defer again.Stop()
	for {
		file, err := tryLock(name, mode)
		if !errors.Is(err, errLocked) {
			return file, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s: %w", name, context.Cause(ctx))
		}
	}
}

// lockSuffix ends the names of lock files.
const lockSuffix = ".lock"

// Sweep deletes the workspaces below root that no living process holds. It returns how many it deleted; an error tells
// of those that it could not, after the others. It may run while workspaces are made. A root that does not exist has
// none.
func Sweep(ctx context.Context, root string) (int, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for workspaces that were left: %w", err)
	}
	swept := 0
	var failures []error
	for _, entry := range entries {
		// A workspace is made after its lock and deleted before it, so each has one.
		name, found := strings.CutSuffix(entry.Name(), lockSuffix)
		if !found || !strings.HasPrefix(name, workspacePrefix) {
			continue
		}
		dir := filepath.Join(root, name)
		lock, err := tryLock(dir+lockSuffix, exclusive)
		if errors.Is(err, errLocked) {
			continue
		}
		if err == nil {
			err = discard(ctx, dir, lock)
		}
		if err != nil {
			failures = append(failures, err)
			continue
		}
		swept++
	}
	return swept, errors.Join(failures...)
}
