package function

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

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
func peakResident(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return kb << 10
		}
	}
	return 0
}

// processTable measures process groups. It remembers which processes belong to none of them, so that a sample
// costs one listing of /proc and a read for each process of ours, not for each process of the machine. A process
// that is not ours can only become ours by starting, with a number that a listing in between has shown unused.
type processTable struct {
	pageBytes int64
	foreign   map[int]struct{}
}

func newProcessTable() *processTable {
	return &processTable{pageBytes: int64(os.Getpagesize()), foreign: make(map[int]struct{})}
}

// resident returns the sum of the resident bytes of each process group in groups that has a process.
func (t *processTable) resident(groups map[int]*environment) map[int]int64 {
	sums := make(map[int]int64, len(groups))
	foreign := make(map[int]struct{}, len(t.foreign))
	for _, pid := range processes() {
		_, leader := groups[pid] // its group is set between fork and exec, so a sample may have come too early
		if _, known := t.foreign[pid]; known && !leader {
			foreign[pid] = struct{}{}
			continue
		}
		pgid, pages, ok := groupAndPages(pid)
		if !ok {
			continue
		}
		if _, ours := groups[pgid]; ours {
			sums[pgid] += pages * t.pageBytes
		} else if !leader {
			foreign[pid] = struct{}{}
		}
	}
	t.foreign = foreign
	return sums
}

// processes returns the numbers of all processes.
func processes() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1) // a partial listing is as good as an early one
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// groupAndPages returns the process group and the resident pages of a process. See proc_pid_stat(5): after the
// command in parentheses come state, ppid, pgrp and, as the 24th field of all, rss.
func groupAndPages(pid int) (pgid int, pages int64, ok bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, false
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 22 {
		return 0, 0, false
	}
	pgid, err1 := strconv.Atoi(string(fields[2]))
	pages, err2 := strconv.ParseInt(string(fields[21]), 10, 64)
	return pgid, pages, err1 == nil && err2 == nil
}
