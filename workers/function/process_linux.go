package function

import (
	"os/exec"

	"github.com/spillway-ml/spillway/workers/procfs"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// await waits until the process of cmd has exited, calls sweep while the process's number still belongs to it, and
// collects it. It returns the error of cmd.Wait.
func await(cmd *exec.Cmd, sweep func()) error {
	spawn.AwaitExit(cmd.Process.Pid)
	sweep()
	return cmd.Wait()
}

// peakResident returns the kernel's peak of the resident bytes of one process, or 0 if it is gone.
func peakResident(pid int) int64 { return int64(procfs.Peak(pid)) }

// processTable measures process groups. It remembers which processes belong to none of them, so that a sample
// costs one listing of /proc and a read for each process of ours, not for each process of the machine. A process
// that is not ours can only become ours by starting, with a number that a listing in between has shown unused.
type processTable struct {
	foreign map[int]struct{}
}

func newProcessTable() *processTable {
	return &processTable{foreign: make(map[int]struct{})}
}

// resident returns the sum of the resident bytes of each process group in groups that has a process.
func (t *processTable) resident(groups map[int]*environment) map[int]int64 {
	sums := make(map[int]int64, len(groups))
	foreign := make(map[int]struct{}, len(t.foreign))
	pids, _ := procfs.Numbers() // a partial listing is as good as an early one
	for _, pid := range pids {
		_, leader := groups[pid] // its group is set between fork and exec, so a sample may have come too early
		if _, known := t.foreign[pid]; known && !leader {
			foreign[pid] = struct{}{}
			continue
		}
		p, there := procfs.Read(pid)
		if !there {
			continue
		}
		if _, ours := groups[p.Group]; ours {
			sums[p.Group] += int64(p.Resident)
		} else if !leader {
			foreign[pid] = struct{}{}
		}
	}
	t.foreign = foreign
	return sums
}
