package spawn

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AllowedCPUs returns the numbers of the CPUs this process may use, in ascending order. It reads the CPU set of
// the process's first thread, which no Spawner changes.
func AllowedCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(unix.Getpid(), &set); err != nil {
		return nil, fmt.Errorf("read the cpus of this process: %w", err)
	}
	cpus := make([]int, 0, set.Count())
	for cpu := range int(unsafe.Sizeof(set)) * 8 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// serve owns the spawning thread: it pins it, reports on pinned, and starts children until Close. It returns
// without unlocking the thread, so that the thread ends with it instead of carrying its CPU set into other work.
func (s *Spawner) serve(cpus []int, pinned chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		s.serveElsewhere(cpus, pinned)
		return
	}
	defer close(s.ended)
	err := pin(cpus)
	if err == nil && s.user != nil {
		err = renounce()
	}
	pinned <- err
	if err == nil {
		s.answer()
	}
}

// serveElsewhere moves serve to another thread. The process's first thread is unfit: the runtime parks it for
// ever where it ends other threads, so its children would outlive Close, and its CPU set is what AllowedCPUs reads.
// The caller has locked the first thread, so the new goroutine cannot run on it.
func (s *Spawner) serveElsewhere(cpus []int, pinned chan<- error) {
	moved := make(chan error, 1)
	go s.serve(cpus, moved)
	err := <-moved
	runtime.UnlockOSThread()
	pinned <- err
}

// pin limits the calling thread to cpus; none means no limit.
func pin(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("use cpus %v for child processes: %w", cpus, err)
	}
	return nil
}

// renounce keeps the calling thread, and all that it forks, from gaining rights by executing a program.
func renounce() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep child processes from gaining rights: %w", err)
	}
	return nil
}

// setParentDeathSignal makes the kernel kill the child when the spawning thread ends.
func setParentDeathSignal(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
