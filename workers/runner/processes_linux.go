package runner

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// startOf starts a program so that all that it starts can be found: what loses its parent becomes a child of this
// process. It stays in the process group of the function, by which the environment is ended and its memory watched.
func startOf(cmd *exec.Cmd) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	return cmd.Start()
}

// endAll kills the program and all that it has started, and waits until they are gone: what was forked meanwhile, too.
func endAll(program int) {
	for {
		left := signalAll(program, syscall.SIGKILL)
		if left == 0 {
			return
		}
		// Those whose parent has died are children of this process, and nobody else waits for them.
		for _, pid := range children(os.Getpid()) {
			if pid != program {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have been forked since the others were
				_, _ = unix.Wait4(pid, nil, 0, nil)
			}
		}
	}
}

// signalAll sends a signal to the program and all that it has started, and returns how many there were besides the
// program.
func signalAll(program int, signal syscall.Signal) (others int) {
	found := descendants(os.Getpid())
	for _, pid := range found {
		_ = syscall.Kill(pid, signal) // it may be gone
		if pid != program {
			others++
		}
	}
	return others
}

// descendants are the processes below one, in any order.
func descendants(of int) (found []int) {
	parents := parents()
	for waiting := []int{of}; len(waiting) > 0; {
		parent := waiting[0]
		waiting = waiting[1:]
		for pid, its := range parents {
			if its == parent && !slices.Contains(found, pid) {
				found, waiting = append(found, pid), append(waiting, pid)
			}
		}
	}
	return found
}

// children are the processes that one has started, or that came to it.
func children(of int) (found []int) {
	for pid, parent := range parents() {
		if parent == of {
			found = append(found, pid)
		}
	}
	return found
}

// parents are the parents of all processes that can be seen. See proc_pid_stat(5): after the command in parentheses
// come the state and the parent.
func parents() map[int]int {
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	found := make(map[int]int, len(names))
	for _, name := range names {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it is gone
		}
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		pid, wrong := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if len(fields) < 2 || wrong != nil {
			continue
		}
		if parent, err := strconv.Atoi(string(fields[1])); err == nil {
			found[pid] = parent
		}
	}
	return found
}

// peak is the most memory that a process of the program took.
func peak(state *os.ProcessState) quantity.Bytes {
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return quantity.Bytes(usage.Maxrss) * quantity.KiB
}
