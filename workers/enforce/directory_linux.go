package enforce

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// directory is the path of a cgroup: a directory whose files are the kernel's knobs and gauges.
type directory string

func (d directory) file(name string) string { return filepath.Join(string(d), name) }

// has reports whether the kernel offers the file.
func (d directory) has(name string) bool {
	_, err := os.Lstat(d.file(name))
	return err == nil
}

// write sets a file of the cgroup.
func (d directory) write(name, value string) error {
	file, err := os.OpenFile(d.file(name), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("set %s to %q: %w%s", d.file(name), value, err, hint(err))
	}
	_, err = file.WriteString(value)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("set %s to %q: %w%s", d.file(name), value, err, hint(err))
	}
	return nil
}

// writeIfPresent sets a file that older kernels or smaller configurations lack.
func (d directory) writeIfPresent(name, value string) error {
	if !d.has(name) {
		return nil
	}
	return d.write(name, value)
}

// hint tells what to do about an error of a cgroup's file; it is the end of a sentence.
func hint(err error) string {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return "; run in a cgroup that this user may write (systemd: Delegate=yes), or choose mode none"
	case errors.Is(err, unix.EBUSY):
		return "; the group uses more than that, or still has processes"
	case errors.Is(err, unix.EINVAL):
		return "; the kernel refuses the value: see the limits of the cgroups above it"
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV):
		return "; the group is gone, or its controller is not enabled"
	}
	return ""
}

// text returns the content of a file.
func (d directory) text(name string) ([]byte, error) {
	text, err := os.ReadFile(d.file(name))
	if err != nil {
		return nil, fmt.Errorf("read a cgroup: %w%s", err, hint(err))
	}
	return text, nil
}

// words returns the words of a file; none when it cannot be read.
func (d directory) words(name string) []string {
	text, err := os.ReadFile(d.file(name))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

// number reads a file that holds one number; "max" is unlimited.
func (d directory) number(name string) (int64, error) {
	text, err := d.text(name)
	if err != nil {
		return 0, err
	}
	n, err := parseNumber(text)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", d.file(name), err)
	}
	return n, nil
}

// readPeak reads an open file that holds one number of bytes; 0 when it holds none any more.
func readPeak(file *os.File) quantity.Bytes {
	text := make([]byte, 32)
	n, _ := file.ReadAt(text, 0) // ends with io.EOF; what cannot be parsed is no peak
	peak, err := parseNumber(text[:n])
	if err != nil {
		return 0
	}
	return quantity.Bytes(peak)
}

// unlimited is what parseNumber makes of "max". The kernel's own numbers for it, close to 2^63, count as unlimited too.
const unlimited = 1 << 62

// parseNumber reads a number as the kernel writes it, with spaces around; "max" is unlimited.
func parseNumber(text []byte) (int64, error) {
	text = bytes.TrimSpace(text)
	if string(text) == "max" {
		return unlimited, nil
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the kernel's number %q: %w", text, err)
	}
	return n, nil
}

// value returns the number after key in a file of "key number" lines; 0 when there is none.
func value(text []byte, key string) int64 {
	for line := range bytes.Lines(text) {
		rest, found := bytes.CutPrefix(line, []byte(key+" "))
		if !found {
			continue
		}
		n, err := parseNumber(rest)
		if err != nil {
			return 0
		}
		return n
	}
	return 0
}

// forksRefused counts the processes and threads that were not started for pids.max, in v1 as in v2; 0 before Linux 4.8,
// which does not tell, and without the controller. It is the pids.max of this cgroup alone only in v2 since Linux 6.11;
// elsewhere that of those around it counts, too: https://docs.kernel.org/admin-guide/cgroup-v2.html ("pids.events").
func (d directory) forksRefused() int64 {
	text, err := os.ReadFile(d.file("pids.events"))
	if err != nil {
		return 0
	}
	return value(text, "max")
}

// peakProcesses is the most processes and threads that the cgroup had at once; 0 where the kernel does not tell.
func (d directory) peakProcesses() int {
	n, err := d.number("pids.peak")
	if err != nil {
		return 0
	}
	return int(n)
}

// parsePIDs reads one process ID per line. Zero, which stands for a process outside this PID namespace, is left out,
// and so is self: the thread that forks is in the group for a moment and must not be killed with it.
func parsePIDs(text []byte, self int) []int {
	var pids []int
	for line := range bytes.Lines(text) {
		if pid, err := strconv.Atoi(string(bytes.TrimSpace(line))); err == nil && pid > 0 && pid != self {
			pids = append(pids, pid)
		}
	}
	return pids
}

// pids lists the processes of the cgroup, without this one.
func (d directory) pids() ([]int, error) {
	text, err := d.text("cgroup.procs")
	if err != nil {
		return nil, err
	}
	return parsePIDs(text, os.Getpid()), nil
}

// memoryLimit converts the kernel's limit; 0 for none. In v1 the largest number of pages stands for none.
func memoryLimit(n int64) quantity.Bytes {
	if n <= 0 || n >= unlimited {
		return 0
	}
	return quantity.Bytes(n)
}

// removeEmpty removes a cgroup that has no process. The kernel may need a moment after the last one has gone.
func (d directory) removeEmpty() error {
	err := unix.Rmdir(string(d))
	for try := 0; errors.Is(err, unix.EBUSY) && try < 100; try++ {
		time.Sleep(time.Duration(try) * time.Millisecond / 10)
		err = unix.Rmdir(string(d))
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove cgroup %s: %w%s", d, err, hint(err))
	}
	return nil
}

// make makes the cgroup.
func (d directory) make() error {
	if err := os.Mkdir(string(d), 0o755); err != nil {
		return fmt.Errorf("make a cgroup: %w%s", err, hint(err))
	}
	return nil
}

// writable reports why this process cannot make groups in d; empty when it can.
func (d directory) writable(files ...string) string {
	for _, path := range append([]string{string(d)}, paths(d, files)...) {
		if err := unix.Access(path, unix.W_OK); err != nil {
			return fmt.Sprintf("%s cannot be written: %v%s", path, err, hint(err))
		}
	}
	return ""
}

func paths(d directory, files []string) []string {
	paths := make([]string, len(files))
	for i, name := range files {
		paths[i] = d.file(name)
	}
	return paths
}

// killAll kills processes; those that are gone do not matter.
func killAll(pids []int) error {
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}

// killFrozen kills the processes of a cgroup. They are frozen first, if they freeze soon, so that none forks away
// between being listed and being killed, and thawed to die.
func killFrozen(freeze func(frozen bool) (done bool, err error), pids func() ([]int, error)) error {
	for range 20 {
		if done, err := freeze(true); done || err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	all, err := pids()
	err = errors.Join(err, killAll(all))
	_, thawErr := freeze(false)
	return errors.Join(err, thawErr)
}

// missing returns what of want is not in have.
func missing(want, have []string) []string {
	var lacks []string
	for _, name := range want {
		if !slices.Contains(have, name) {
			lacks = append(lacks, name)
		}
	}
	return lacks
}
