package engine_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// temporary is a directory for temporary files that everybody may use, as /tmp is.
func temporary(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	if err := os.Chmod(dir, os.ModeSticky|0o777); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// short is a path without what differs from engine to engine, and from file to file of one directory.
func (e *testEngine) short(path string) string {
	for name, dir := range map[string]string{"STATE": e.state, "TMPDIR": e.temp} {
		if rest, below := strings.CutPrefix(path, dir+"/"); below {
			first, _, deeper := strings.Cut(rest, "/")
			if deeper && name == "STATE" {
				first += "/..."
			}
			return name + "/" + first
		}
	}
	return path
}

// leftOpen are what is to be had in the engine's directory for temporary files.
func (e *testEngine) leftOpen() (found []string) {
	e.t.Helper()
	entries, err := os.ReadDir(e.temp)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, entry := range entries {
		found = append(found, filepath.Join(e.temp, entry.Name()))
	}
	return found
}

// guardOfFile says what keeps another user from a file: its own mode, or that of a directory above it.
func guardOfFile(path, state string) string {
	if strings.HasSuffix(path, " (deleted)") {
		return "no name: a deleted file"
	}
	for at := path; at != "/"; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "no name: it is gone already"
		case err != nil:
			return "OPEN: " + err.Error()
		case !info.IsDir() && (info.Mode()&fs.ModeDevice != 0 || info.Mode()&fs.ModeNamedPipe != 0):
			return "no file: a device or a pipe"
		case info.Mode().Perm()&0o077 == 0 && info.IsDir():
			if at == state {
				return "directory: the state directory"
			}
			return "directory: one of its owner's alone"
		case info.Mode().Perm()&0o077 == 0:
			return "mode: its owner's alone"
		}
	}
	return "OPEN: a file that others can read"
}

// everyFileIsItsOwners checks that nobody else has any right to the state directory, which keeps others from all that
// is in it, and that what holds a credential is shut by itself as well.
func (e *testEngine) everyFileIsItsOwners() {
	e.t.Helper()
	info, err := os.Stat(e.state)
	if err != nil || info.Mode().Perm() != 0o700 {
		e.t.Errorf("the state directory: %v, %v; want that it is its owner's alone", info.Mode(), err)
	}
	err = filepath.WalkDir(filepath.Join(e.state, "keys"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := entry.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
			e.t.Errorf("%s: %v, %v; want no right of others", path, info.Mode(), err)
		}
		return nil
	})
	if err != nil {
		e.t.Error(err)
	}
}

// written is what a process has open for writing, of files with names.
func written(tb testing.TB, pid int) (found []string) {
	tb.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		info, gone := os.ReadFile(strings.Replace(link, "/fd/", "/fdinfo/", 1))
		if err != nil || gone != nil || strings.HasPrefix(target, "/sys/") || strings.HasPrefix(target, "/proc/") {
			continue // it was closed meanwhile, or is the kernel's
		}
		var position, flags uint64
		if _, err := fmt.Sscanf(string(info), "pos:\t%d\nflags:\t%o", &position, &flags); err == nil &&
			flags&syscall.O_ACCMODE != syscall.O_RDONLY {
			found = append(found, target)
		}
	}
	return found
}

// shared is what a process shares with others as memory that it writes to (proc_pid_maps(5)).
func shared(tb testing.TB, pid int) (found []string) {
	tb.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil // it has ended, or is another user's
	}
	for line := range strings.Lines(string(maps)) {
		if fields := strings.Fields(line); len(fields) > 5 && strings.HasPrefix(fields[1], "rw") &&
			strings.HasSuffix(fields[1], "s") {
			found = append(found, strings.Join(fields[5:], " "))
		}
	}
	return found
}
