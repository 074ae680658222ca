package enforce

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// niceness is the priority of processes that nothing holds: they yield to the owner, which must go on heartbeating.
	niceness = 5
	// killFirst is their oom_score_adj: when the host runs out of memory, it kills one of them and not the owner.
	killFirst = "500"
	// clockTick is the unit of times in /proc: USER_HZ is 100 on every Linux that Go runs on.
	// Source: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
	clockTick = time.Second / 100
)

// processTree makes groups in mode None: the descendants of children, as /proc shows them.
type processTree struct{}

func (processTree) group(string) (control, error) {
	return &processGroup{roots: make(map[int]int64), members: make(map[int]process)}, nil
}

func (processTree) limit() quantity.Size        { return quantity.Size{} }
func (processTree) close(context.Context) error { return nil }

// process is one line of the process table.
type process struct {
	pid, parent, group, session int
	born                        int64 // in clock ticks since the host started; with pid it names a process for ever
	ended                       bool  // waits to be collected
	cpu                         time.Duration
	resident                    quantity.Bytes
}

// processGroup follows the processes that Start started, and their descendants. One that leaves its process group and
// session while its parent ends is lost, when that happens between two looks.
type processGroup struct {
	mu      sync.Mutex
	roots   map[int]int64   // when the started processes were born
	members map[int]process // as they were at the last look
	gone    time.Duration   // CPU time of members that have ended
	peak    quantity.Bytes  // the highest of one root by the kernel's count, since the reset
}

func (g *processGroup) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	pid := cmd.Process.Pid
	if p, ok := readProcess(pid); ok {
		g.roots[pid], g.members[pid] = p.born, p
	}
	// Both are courtesies to the host; a process that is gone already needs neither.
	_ = unix.Setpriority(unix.PRIO_PROCESS, pid, niceness)
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(killFirst), 0)
	return nil
}

func (*processGroup) setCPU(quantity.Milli) (quantity.Milli, error) { return 0, nil }

func (*processGroup) setMemory(_, _ quantity.Bytes) (held quantity.Bytes, err error) { return 0, nil }

// look finds the members in the process table.
func (g *processGroup) look() error {
	table, err := processTable()
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	found := descendants(table, g.roots, g.members, os.Getpid())
	for pid, before := range g.members {
		if now, lives := found[pid]; !lives || now.born != before.born {
			g.gone += before.cpu
		}
	}
	for pid := range g.roots {
		if _, lives := found[pid]; !lives {
			delete(g.roots, pid)
			continue
		}
		if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
			g.peak = max(g.peak, quantity.Bytes(kilobytes(status, "VmHWM:"))*quantity.KiB)
		}
	}
	g.members = found
	return nil
}

// descendants picks from the table the processes that belong to roots: those that were members before, are in the
// process group or the session of a root, or have a parent that belongs. Self never does.
func descendants(table map[int]process, roots map[int]int64, before map[int]process, self int) map[int]process {
	found := make(map[int]process)
	for pid, p := range table {
		old, known := before[pid]
		_, inGroup := roots[p.group]
		_, inSession := roots[p.session]
		if pid != self && (known && old.born == p.born || inGroup || inSession || roots[pid] == p.born && p.born > 0) {
			found[pid] = p
		}
	}
	for grown := true; grown; {
		grown = false
		for pid, p := range table {
			_, has := found[pid]
			_, child := found[p.parent]
			if child && !has && pid != self {
				found[pid], grown = p, true
			}
		}
	}
	return found
}

func (g *processGroup) read() (reading, error) {
	if err := g.look(); err != nil {
		return reading{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	r := reading{peak: g.peak}
	r.usage.CPU = g.gone
	for _, p := range g.members {
		r.usage.CPU += p.cpu
		r.usage.Memory += p.resident
		if !p.ended {
			r.usage.Processes++
		}
	}
	return r, nil
}

// peakMemory returns 0: there is a peak for each process, none for all of them together.
func (*processGroup) peakMemory() quantity.Bytes { return 0 }

// resetPeak restarts the kernel's highest resident memory of each root.
func (g *processGroup) resetPeak() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !restartOwnPeaks(slices.Collect(maps.Keys(g.roots))) {
		return false
	}
	g.peak = 0
	return true
}

// restartOwnPeaks restarts the kernel's highest resident memory of each process, and tells whether it did for all.
// Source: https://man7.org/linux/man-pages/man5/proc_pid_clear_refs.5.html
func restartOwnPeaks(pids []int) bool {
	for _, pid := range pids {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil && readable(pid) {
			return false
		}
	}
	return true
}

func readable(pid int) bool {
	_, ok := readProcess(pid)
	return ok
}

func (g *processGroup) freeze(frozen bool) (bool, error) { return stopAll(g.pids, frozen) }

// stopAll stops or continues the processes that there are by signal, and tells whether all stopped ones have stopped.
func stopAll(processes func() ([]int, error), frozen bool) (bool, error) {
	pids, err := processes()
	if err != nil {
		return false, err
	}
	if !frozen {
		return true, signal(pids, unix.SIGCONT)
	}
	if err := signal(pids, unix.SIGSTOP); err != nil {
		return false, err
	}
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // gone
		}
		if state := afterName(stat); len(state) == 0 || !bytes.ContainsAny(state[:1], "TtZX") {
			return false, nil
		}
	}
	return true, nil
}

func (g *processGroup) kill() error {
	pids, err := g.pids()
	if err != nil {
		return err
	}
	return signal(pids, unix.SIGKILL)
}

func (g *processGroup) pids() ([]int, error) {
	if err := g.look(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var pids []int
	for pid, p := range g.members {
		if !p.ended {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func (*processGroup) remove() error { return nil }

// processTable reads all processes.
func processTable() (map[int]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	table := make(map[int]process)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			table[pid] = p
		}
	}
	return table, nil
}

// readProcess reads one process; ok is false when there is none.
func readProcess(pid int) (p process, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	return parseStat(pid, stat, quantity.Bytes(os.Getpagesize()))
}

// parseStat reads a line of /proc/PID/stat. The CPU time includes that of children that were waited for.
func parseStat(pid int, stat []byte, page quantity.Bytes) (p process, ok bool) {
	fields := bytes.Fields(afterName(stat))
	if len(fields) < 22 {
		return process{}, false
	}
	number := func(field int) int64 { // as the manual page counts them: the state is the third
		n, err := strconv.ParseInt(string(fields[field-3]), 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	return process{
		pid: pid, parent: int(number(4)), group: int(number(5)), session: int(number(6)),
		born: number(22), ended: fields[0][0] == 'Z' || fields[0][0] == 'X',
		cpu:      time.Duration(number(14)+number(15)) * clockTick,
		resident: quantity.Bytes(number(24)) * page,
	}, true
}

// afterName cuts what precedes the state in /proc/PID/stat: the name before it may hold spaces and parentheses.
func afterName(stat []byte) []byte {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return nil
	}
	return bytes.TrimSpace(stat[end+1:])
}

// kilobytes returns the number after key in /proc/PID/status; 0 when there is none.
func kilobytes(status []byte, key string) int64 {
	for line := range bytes.Lines(status) {
		if rest, found := bytes.CutPrefix(line, []byte(key)); found {
			n, err := parseNumber(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}
