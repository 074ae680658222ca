package runner

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/procfs"
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
		table, _ := procfs.Table() // else they are killed at the next look
		for pid, p := range table {
			if p.Parent == os.Getpid() && pid != program {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have been forked since the others were
				_, _ = unix.Wait4(pid, nil, 0, nil)
			}
		}
	}
}

// signalAll sends a signal to the program and all that it has started, and returns how many there were besides the
// program.
func signalAll(program int, signal syscall.Signal) (others int) {
	found := procfs.Below(os.Getpid())
	for _, pid := range found {
		_ = syscall.Kill(pid, signal) // it may be gone
		if pid != program {
			others++
		}
	}
	return others
}

// peak is the most memory that a process of the program took.
func peak(state *os.ProcessState) quantity.Bytes {
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return quantity.Bytes(usage.Maxrss) * quantity.KiB
}
