package enforce

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/procfs"
)

const (
	// niceness is the priority of processes that nothing holds: they yield to the owner, which must go on heartbeating.
	niceness = 5
	// killFirst is their oom_score_adj: when the host runs out of memory, it kills one of them and not the owner.
	killFirst = "500"
)

// processTree makes groups in mode None: the descendants of children, as /proc shows them.
type processTree struct{}

func (processTree) group(string) (control, error) {
	return &processGroup{roots: make(map[int]int64), members: make(map[int]procfs.Stat)}, nil
}

func (processTree) limit() quantity.Size        { return quantity.Size{} }
func (processTree) close(context.Context) error { return nil }

// processGroup follows the processes that Start started, and their descendants. One that leaves its process group and
// session while its parent ends is lost, when that happens between two looks.
type processGroup struct {
	mu      sync.Mutex
	roots   map[int]int64       // when the started processes were born
	members map[int]procfs.Stat // as they were at the last look
	gone    time.Duration       // CPU time of members that have ended
	peak    quantity.Bytes      // the highest of one root by the kernel's count, since the reset
}

func (g *processGroup) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	pid := cmd.Process.Pid
	if p, there := procfs.Read(pid); there {
		g.roots[pid], g.members[pid] = p.Born, p
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
	table, err := procfs.Table()
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	found := descendants(table, g.roots, g.members, os.Getpid())
	for pid, before := range g.members {
		if now, lives := found[pid]; !lives || now.Born != before.Born {
			g.gone += before.CPU
		}
	}
	for pid := range g.roots {
		if _, lives := found[pid]; !lives {
			delete(g.roots, pid)
			continue
		}
		g.peak = max(g.peak, procfs.Peak(pid))
	}
	g.members = found
	return nil
}

// descendants picks from the table the processes that belong to roots: those that were members before, are in the
// process group or the session of a root, or have a parent that belongs. Self never does.
func descendants(
	table map[int]procfs.Stat, roots map[int]int64, before map[int]procfs.Stat, self int,
) map[int]procfs.Stat {
	found := make(map[int]procfs.Stat)
	for pid, p := range table {
		old, known := before[pid]
		_, inGroup := roots[p.Group]
		_, inSession := roots[p.Session]
		if pid != self && (known && old.Born == p.Born || inGroup || inSession || roots[pid] == p.Born && p.Born > 0) {
			found[pid] = p
		}
	}
	for grown := true; grown; {
		grown = false
		for pid, p := range table {
			_, has := found[pid]
			_, child := found[p.Parent]
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
		r.usage.CPU += p.CPU
		r.usage.Memory += p.Resident
		if !p.Ended() {
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
	_, there := procfs.Read(pid)
	return there
}

func (g *processGroup) kill() error {
	pids, err := g.pids()
	if err != nil {
		return err
	}
	return killAll(pids)
}

func (g *processGroup) pids() ([]int, error) {
	if err := g.look(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var pids []int
	for pid, p := range g.members {
		if !p.Ended() {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func (*processGroup) remove() error { return nil }
