package enforce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// sweep kills what is in the owner's cgroups at paths and below, and removes them. It is an error when ctx ends first,
// or when a path is not one of an owner's cgroups: the record may have been damaged, and what it names is killed.
func sweep(ctx context.Context, paths []string) error {
	for _, path := range paths {
		if err := checkOwned(path); err != nil {
			return err
		}
	}
	var last error
	err := poll(ctx, func() (bool, error) {
		var left []directory
		for _, path := range paths {
			below, err := innermostFirst(path)
			if err != nil {
				return false, err
			}
			left = append(left, below...)
		}
		last = sweepOnce(left)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// checkOwned refuses paths that are no cgroup of ours.
func checkOwned(path string) error {
	if !strings.HasPrefix(filepath.Base(path), namePrefix) {
		return fmt.Errorf("the cgroup %q is not named %s*, so it is not removed; correct the record", path, namePrefix)
	}
	var system unix.Statfs_t
	err := unix.Statfs(path, &system)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("look at cgroup %s: %w", path, err)
	case system.Type != unix.CGROUP_SUPER_MAGIC && system.Type != unix.CGROUP2_SUPER_MAGIC:
		return fmt.Errorf("%s is not a cgroup, so it is not removed; correct the record", path)
	}
	return nil
}

// innermostFirst lists a cgroup and all inside it, the inner ones before the outer; none when it is gone.
func innermostFirst(path string) ([]directory, error) {
	var all []directory
	err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENODEV):
			return nil // it went meanwhile
		case err != nil:
			return err
		case entry.IsDir():
			all = append(all, directory(path))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the cgroups in %s: %w", path, err)
	}
	slices.Reverse(all)
	return all, nil
}

// sweepOnce kills all processes in the cgroups and removes those that are empty; the error tells why some are left. In
// v1 a process is in several of them, so all are opened for dying (no more forks, no CPU limit, thawed) before the
// first is killed.
func sweepOnce(all []directory) error {
	for _, d := range all {
		for name, value := range map[string]string{
			"pids.max": "0", "cpu.cfs_quota_us": "-1", "freezer.state": "THAWED",
			"cpu.max": "max", "cgroup.freeze": "0", "cgroup.kill": "1",
		} {
			// What fails here shows in the removal.
			_ = d.writeIfPresent(name, value)
		}
	}
	var left error
	for _, d := range all {
		pids, err := d.pids()
		if err == nil {
			err = killAll(pids)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			left = errors.Join(left, err)
		}
	}
	for _, d := range all {
		if err := unix.Rmdir(string(d)); err != nil && !errors.Is(err, unix.ENOENT) {
			left = errors.Join(left, fmt.Errorf("remove cgroup %s: %w", d, err))
		}
	}
	return left
}
