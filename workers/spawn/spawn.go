// Package spawn starts child processes on a chosen set of CPUs that die with this process, and has what such a child is
// given and leaves.
//
// Both promises rest on one rule of Linux: a child inherits the CPU set of the thread that forks it, and its
// parent-death signal fires when that thread ends. A [Spawner] therefore owns one OS thread, pins it once, forks
// every child from it and keeps it until [Spawner.Close]. A child is on its CPUs from its first instruction, so a
// runtime that counts CPUs when it starts (Go's GOMAXPROCS, OpenMP) counts the right ones, and a host that is
// killed, even by SIGKILL, takes its children along.
//
// The parent-death signal reaches direct children only, and a child that executes a set-user-ID program loses it.
// Every child leads its own process group, so that its owner can signal it with all it started.
//
// On systems other than Linux children start on any CPU and outlive a killed parent.
package spawn

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"syscall"
)

// ErrClosed is returned by [Spawner.Start] after [Spawner.Close].
var ErrClosed = errors.New("the spawner is closed")

// Options configures a [Spawner]. The zero value places no limit on CPUs.
type Options struct {
	// CPUs are the numbers of the CPUs that children may use, as the kernel counts them. They must be among
	// [AllowedCPUs]; order and repetition do not matter. Nil or empty means every CPU this process may use.
	// Only Linux enforces it.
	CPUs []int
	// User is as whom children run; nil means as whom this process does.
	User *User
}

// A Spawner starts child processes. All its methods may be called concurrently. Close it when it is no longer
// needed: it holds an OS thread.
type Spawner struct {
	user     *User
	requests chan request
	closing  chan struct{}
	ended    chan struct{}
	once     sync.Once
}

// request is one call of Start on its way to the spawning thread.
type request struct {
	cmd   *exec.Cmd
	start func(*exec.Cmd) error
	done  chan error
}

// New returns a running Spawner. It refuses CPUs that this process may not use.
func New(opts Options) (*Spawner, error) {
	if err := CheckCPUs(opts.CPUs); err != nil {
		return nil, err
	}
	s := &Spawner{
		user:     opts.User,
		requests: make(chan request),
		closing:  make(chan struct{}),
		ended:    make(chan struct{}),
	}
	pinned := make(chan error, 1)
	go s.serve(slices.Clone(opts.CPUs), pinned)
	if err := <-pinned; err != nil {
		<-s.ended
		return nil, err
	}
	return s, nil
}

// Start starts cmd like [exec.Cmd.Start], in a new process group (unless cmd asks for a new session, which
// includes one) and, on Linux, with SIGKILL as its parent-death signal. The other fields of cmd.SysProcAttr are
// kept. The caller waits for cmd as usual.
func (s *Spawner) Start(cmd *exec.Cmd) error { return s.StartBy(cmd, (*exec.Cmd).Start) }

// StartBy is Start, but calls start where that calls cmd.Start: on the spawning thread, with cmd.SysProcAttr set. Start
// may change that thread while it runs and leaves it as it was; it may not take long, as no other child is started
// meanwhile.
func (s *Spawner) StartBy(cmd *exec.Cmd, start func(*exec.Cmd) error) error {
	r := request{cmd: cmd, start: start, done: make(chan error, 1)}
	select {
	case s.requests <- r:
		return <-r.done
	case <-s.closing:
		return fmt.Errorf("start %s: %w", cmd.Path, ErrClosed)
	}
}

// Close releases the spawning thread and waits until no Start is in progress. On Linux the end of the thread kills
// the children that still run, so an owner that wants them to finish waits for them first. Close may be called
// several times.
func (s *Spawner) Close() {
	s.once.Do(func() { close(s.closing) })
	<-s.ended
}

// answer starts children until Close. It runs on the spawning thread.
func (s *Spawner) answer() {
	for {
		select {
		case r := <-s.requests:
			r.cmd.SysProcAttr = attributes(r.cmd.SysProcAttr, s.user)
			r.done <- r.start(r.cmd)
		case <-s.closing:
			return
		}
	}
}

// attributes returns a copy of attr in which the child leads a process group, dies with its parent and runs as user,
// unless that is nil.
func attributes(attr *syscall.SysProcAttr, user *User) *syscall.SysProcAttr {
	var a syscall.SysProcAttr
	if attr != nil {
		a = *attr
	}
	if !a.Setsid { // a session leader already leads a group and may not change it
		a.Setpgid = true
	}
	if user != nil {
		a.Credential = user.credential()
	}
	setParentDeathSignal(&a)
	return &a
}

// CheckCPUs refuses CPUs that are not among those this process may use; none are all.
func CheckCPUs(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	allowed, err := AllowedCPUs()
	if err != nil {
		return err
	}
	for _, cpu := range cpus {
		if !slices.Contains(allowed, cpu) {
			return fmt.Errorf("cpu %d is not available to this process; choose among %v", cpu, allowed)
		}
	}
	return nil
}
