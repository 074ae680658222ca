package gpucheck

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// adopt makes this process the parent of all that lose theirs below it, so that nothing that a step started is lost
// from sight.
func adopt() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of what steps leave: %w", err)
	}
	return nil
}

// descendants are the processes below one, by number; those that ended and wait to be collected among them.
func descendants(of int) []int {
	parents := map[int]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		// The name, in parentheses, may hold anything; behind it are the state and the parent.
		_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
		if fields := strings.Fields(rest); len(fields) > 1 {
			if parent, err := strconv.Atoi(fields[1]); err == nil {
				parents[pid] = parent
			}
		}
	}
	var all []int
	for pid := range parents {
		for at, steps := pid, 0; steps < len(parents); steps++ {
			parent, known := parents[at]
			if !known {
				break
			}
			if parent == of {
				all = append(all, pid)
				break
			}
			at = parent
		}
	}
	slices.Sort(all)
	return all
}

// endAll kills every process below this one but those to spare and what is below them, and waits until they are gone.
// It returns those that do not end.
func endAll(spare []int) (stuck []int, err error) {
	self := os.Getpid()
	var left []int
	for deadline := time.Now().Add(patience); ; {
		left = descendants(self)
		for _, pid := range spare {
			below := append(descendants(pid), pid)
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
