// Package procfs reads what Linux tells of processes in /proc. On another system no process is there.
package procfs

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// clockTick is the unit of times in /proc: USER_HZ is 100 on every Linux that Go runs on.
// Source: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
const clockTick = time.Second / 100

// Stat is what /proc/PID/stat tells of a process.
type Stat struct {
	Parent, Group, Session int
	// State is a letter: R running, S and D asleep, T and t stopped, Z ended and not collected, X gone.
	State byte
	// Born is in clock ticks since the host started; with the number of the process it names it for ever.
	Born int64
	// CPU is the time that it has taken, without that of children that were waited for.
	CPU time.Duration
	// Resident is its memory now, with what it shares.
	Resident quantity.Bytes
}

// Ended reports whether the process only waits to be collected.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// Read reads one process; there is false when there is none.
func Read(pid int) (s Stat, there bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, false
	}
	return parse(text, quantity.Bytes(os.Getpagesize()))
}

// parse reads a line of /proc/PID/stat.
func parse(text []byte, page quantity.Bytes) (s Stat, ok bool) {
	fields := Fields(text)
	if len(fields) < 22 {
		return Stat{}, false
	}
	number := func(field int) int64 { // as the manual page counts them: the state is the third
		n, err := strconv.ParseInt(string(fields[field-3]), 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	return Stat{
		State: fields[0][0], Parent: int(number(4)), Group: int(number(5)), Session: int(number(6)), Born: number(22),
		CPU: time.Duration(number(14)+number(15)) * clockTick, Resident: quantity.Bytes(number(24)) * page,
	}, true
}

// Fields are those of a line of /proc/PID/stat from the third on, the state: the second is the name, which may hold
// spaces and parentheses.
func Fields(stat []byte) [][]byte {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return nil
	}
	return bytes.Fields(stat[end+1:])
}

// Numbers are the numbers of all processes that can be seen, in any order.
func Numbers() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close()
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, wrong := strconv.Atoi(name); wrong == nil {
			pids = append(pids, pid)
		}
	}
	if err != nil {
		return pids, fmt.Errorf("read the process table: %w", err)
	}
	return pids, nil
}

// Table reads all processes, by number.
func Table() (map[int]Stat, error) {
	pids, err := Numbers()
	if err != nil {
		return nil, err
	}
	table := make(map[int]Stat, len(pids))
	for _, pid := range pids {
		if s, there := Read(pid); there {
			table[pid] = s
		}
	}
	return table, nil
}

// Below are the processes that descend from one, in no order; those that have ended and wait to be collected are among
// them. Where the table cannot be read there are none.
func Below(ancestor int) (found []int) {
	table, err := Table()
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for pid, s := range table {
		children[s.Parent] = append(children[s.Parent], pid)
	}
	for waiting := []int{ancestor}; len(waiting) > 0; {
		next := children[waiting[0]]
		delete(children, waiting[0]) // numbers that were given anew while the table was read could go round
		found, waiting = append(found, next...), append(waiting[1:], next...)
	}
	return found
}

// Kilobytes is the amount behind a key of /proc/PID/status or /proc/meminfo, such as "VmHWM:"; 0 where there is none.
// Source: https://man7.org/linux/man-pages/man5/proc_pid_status.5.html
func Kilobytes(status []byte, key string) quantity.Bytes {
	for line := range bytes.Lines(status) {
		if rest, found := bytes.CutPrefix(line, []byte(key)); found {
			number, _, _ := strings.Cut(strings.TrimSpace(string(rest)), " ")
			n, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				return 0
			}
			return quantity.Bytes(n) * quantity.KiB
		}
	}
	return 0
}

// Peak is the most memory that a process has had at a time: the kernel's VmHWM, since its start or its last reset. It
// is 0 where the process is gone.
func Peak(pid int) quantity.Bytes {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	return Kilobytes(status, "VmHWM:")
}
