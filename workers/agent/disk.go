package agent

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// A host whose disk is full ends every attempt at once, and has room for the next: without a word of that it would take
// all tasks of its stages and lose them. So it tells in its lease that it is full, and nothing is placed there until it
// has room again.

// isDiskFull reports whether the host has no room left: what could not begin for that is nobody's failed attempt,
// however often it happens.
func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// noRoom ends an attempt for which the disk has no room.
func (f *finish) noRoom(cause predictor.Cause, err error) {
	f.stopped, f.cause, f.reason, f.diskFull = predictor.Lost, cause, err.Error(), true
}

// disk is how much there is of a disk, and how much of that an ordinary user can still write.
type disk struct {
	size, free quantity.Bytes
	// files is how many files there can be, 0 where there is no bound, and freeFiles how many more.
	files, freeFiles uint64
}

// diskAt looks at the disk on which dir is.
func diskAt(dir string) (disk, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return disk{}, fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	block := quantity.Bytes(stat.Bsize)
	return disk{
		quantity.Bytes(stat.Blocks) * block, quantity.Bytes(stat.Bavail) * block, stat.Files, stat.Ffree,
	}, nil
}

const (
	// diskReserve is how much must be free of a disk that was full, at most, before the host takes tasks again; a
	// twentieth of a small one is enough, and of files a hundredth.
	diskReserve = quantity.GiB
	// diskPause is how long a host on which an attempt found no room counts as full at least: a quota is not seen, and
	// what one attempt had written is removed when it ends.
	diskPause = 10 * time.Second
)

// full says that there is too little room for attempts of any kind.
func (d disk) full() bool {
	return d.free < min(diskReserve, d.size/20) || d.freeFiles < d.files/100
}

// lookAtDisk notes whether the disk is full, and tells of a change. Only a host on which an attempt found no room looks
// whether it is, so one whose disk is nearly full and serves goes on.
func (a *Agent) lookAtDisk(foundNoRoom bool) {
	a.disk.Lock()
	defer a.disk.Unlock()
	now := a.now()
	if foundNoRoom {
		a.disk.until = now.Add(diskPause)
	} else if !a.diskFull.Load() {
		return
	}
	found, err := diskAt(a.commands.Root)
	full := now.Before(a.disk.until) || err == nil && found.full()
	if a.diskFull.Swap(full) == full {
		return
	}
	if full {
		a.logger.Warn("the disk is full: the host takes no tasks until there is room", "directory", a.commands.Root,
			"free", found.free.String())
	} else {
		a.logger.Info("the disk has room again", "directory", a.commands.Root, "free", found.free.String())
	}
	a.touch()
}
