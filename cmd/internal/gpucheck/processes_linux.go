package gpucheck

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/workers/procfs"
)

// adopt makes this process the parent of all that lose theirs below it, so that nothing that a step started is lost
// from sight.
func adopt() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of what steps leave: %w", err)
	}
	return nil
}

// endAll kills every process below this one but those to spare and what is below them, and waits until they are gone.
// It returns those that do not end.
func endAll(spare []int) (stuck []int, err error) {
	self := os.Getpid()
	var left []int
	for deadline := time.Now().Add(patience); ; {
		left = procfs.Below(self)
		for _, pid := range spare {
			below := append(procfs.Below(pid), pid)
			left = slices.DeleteFunc(left, func(p int) bool { return slices.Contains(below, p) })
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)               // it may have ended
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // and be no child of this one yet
		}
		if len(left) == 0 {
			return nil, nil
		}
		if time.Now().After(deadline) {
			return left, fmt.Errorf("processes %v do not end, %s after they were killed", left, patience)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// patience is how long a killed process may take to be gone: the driver takes its time with the memory of a GPU.
const patience = 15 * time.Second
