package enforce

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// maxRecord bounds the lock file; the record of an owner has a few hundred bytes.
const maxRecord = 64 << 10

// owner is the exclusive right to a state directory's groups, which ends with the process: a lock on a file that tells
// where they are. The place cannot be derived from the name alone, as a service manager starts each owner in another
// cgroup.
type owner struct {
	file   *os.File
	self   identity
	record record // what the previous owner wrote
}

// record is the content of the lock file.
type record struct {
	// PID is the process that wrote it.
	PID int `json:"pid"`
	// Directories are the owner's cgroups, one in each hierarchy; empty after an orderly end.
	Directories []string `json:"directories"`
	// File is the file that it was written to: in a copy of the state directory it is that of the original. Zero in a
	// record of an earlier version.
	File identity `json:"file"`
}

// identity tells a file from its copies. One that is moved within its file system keeps it.
type identity struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// identify returns the identity of an open file; zero on a system that does not tell.
func identify(file *os.File) (identity, error) {
	info, err := file.Stat()
	if err != nil {
		return identity{}, fmt.Errorf("look at the lock of the groups: %w", err)
	}
	stat, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return identity{}, nil
	}
	return identity{uint64(stat.Dev), stat.Ino}, nil //nolint:unconvert // it is narrower elsewhere
}

// left returns the cgroups that a crashed owner left: those that were written down here, or that have the name of this
// state directory. Others are of a directory of which this one is a copy, and whose owner may live.
func (o *owner) left(name string) (own, others []string) {
	for _, directory := range o.record.Directories {
		if o.record.File == o.self || filepath.Base(directory) == name {
			own = append(own, directory)
		} else {
			others = append(others, directory)
		}
	}
	return own, others
}

// takeOwnership locks the file at path and reads what its last owner left.
func takeOwnership(path string) (*owner, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the groups: %w; the state directory must exist and be writable", err)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxRecord))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the lock of the groups: %w", err), file.Close())
	}
	self, err := identify(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	last, parseErr := parseRecord(text)
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = fmt.Errorf("%w: process %d, by %s; stop it or use another state directory", ErrOwned, last.PID, path)
		} else {
			err = fmt.Errorf("lock %s: %w; the state directory must be on a file system with flock", path, err)
		}
		return nil, errors.Join(err, file.Close())
	}
	if parseErr != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w; remove the cgroups named %s* and then this file", path, parseErr,
			namePrefix), file.Close())
	}
	return &owner{file: file, self: self, record: last}, nil
}

// parseRecord reads a lock file; an empty one is that of an owner without groups. What follows the record is the end of
// a longer one, whose owner was killed between writing a shorter one and cutting the file.
func parseRecord(text []byte) (record, error) {
	var r record
	if len(text) == 0 {
		return r, nil
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&r); err != nil {
		return record{}, fmt.Errorf("parse the record of groups: %w", err)
	}
	return r, nil
}

// note writes down where the owner's cgroups are, before they are made.
func (o *owner) note(directories []string) error {
	text, err := json.Marshal(record{PID: os.Getpid(), Directories: directories, File: o.self})
	if err != nil {
		return fmt.Errorf("encode the record of groups: %w", err)
	}
	if _, err := o.file.WriteAt(text, 0); err != nil {
		return fmt.Errorf("write down the groups: %w", err)
	}
	if err := o.file.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("write down the groups: %w", err)
	}
	return nil
}

// release lets another owner in. It unlocks the file and does not just close it: a process that another thread is just
// forking holds a copy of the file, and with it the lock, until it executes its program.
func (o *owner) release() error {
	if err := errors.Join(syscall.Flock(int(o.file.Fd()), syscall.LOCK_UN), o.file.Close()); err != nil {
		return fmt.Errorf("release the lock of the groups: %w", err)
	}
	return nil
}
