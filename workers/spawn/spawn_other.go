//go:build !linux

package spawn

import (
	"runtime"
	"syscall"
)

// AllowedCPUs returns the numbers of the CPUs this process may use, in ascending order.
func AllowedCPUs() ([]int, error) {
	cpus := make([]int, runtime.NumCPU())
	for i := range cpus {
		cpus[i] = i
	}
	return cpus, nil
}

// serve starts children until Close. This system pins no thread.
func (s *Spawner) serve(_ []int, pinned chan<- error) {
	defer close(s.ended)
	pinned <- nil
	s.answer()
}

// setParentDeathSignal does nothing: only Linux and FreeBSD have the signal.
func setParentDeathSignal(*syscall.SysProcAttr) {}
