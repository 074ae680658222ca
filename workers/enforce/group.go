package enforce

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// A Group is a set of processes that are held to one size together: a child and all that it starts. It may be used for
// one child after another. Its methods may be called concurrently; Kill and Remove keep the others waiting, except
// Usage and Pids.
type Group struct {
	name     string
	enforcer *Enforcer
	control  control

	mu      sync.Mutex // one change at a time
	held    quantity.Size
	unsure  bool // a change failed: the kernel may hold something else
	removed bool

	looking sync.Mutex
	peaks   peaks
}

// control is one group in the kernel's terms. All methods but read and pids are called one at a time.
type control interface {
	// start starts cmd so that it is inside from its first instruction.
	start(cmd *exec.Cmd) error
	// setCPU sets the CPU limit and returns what is held, 0 for nothing. A limit of 0 means none.
	setCPU(cpu quantity.Milli) (quantity.Milli, error)
	// setMemory moves the memory limit from held towards want, kills nothing, and returns what is held, 0 for nothing.
	setMemory(want, held quantity.Bytes) (quantity.Bytes, error)
	// read looks at the kernel's numbers.
	read() (reading, error)
	// peakMemory reads the kernel's own peak; 0 where it has none, or none any more.
	peakMemory() quantity.Bytes
	// resetPeak restarts the kernel's peak; false where it cannot.
	resetPeak() bool
	// kill sends all processes SIGKILL. Those that fork meanwhile may need another round.
	kill() error
	// pids lists the processes that have not ended.
	pids() ([]int, error)
	// remove removes the empty group.
	remove() error
}

// Name returns the group's name.
func (g *Group) Name() string { return g.name }

// Start starts cmd like [exec.Cmd.Start], inside the group from its first instruction. The other fields of
// cmd.SysProcAttr are kept.
//
// It forks on the calling goroutine's thread, so that a caller whose thread matters (for CPU sets, parent-death
// signals) locks it and calls Start there. In [Legacy] the thread itself is in the group meanwhile, at its CPU limit;
// the process's first thread, which may not enter, leaves that to another one.
func (g *Group) Start(cmd *exec.Cmd) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed {
		return fmt.Errorf("start %s in group %s: %w", cmd.Path, g.name, ErrClosed)
	}
	if err := g.control.start(cmd); err != nil {
		return fmt.Errorf("start %s in group %s: %w", cmd.Path, g.name, err)
	}
	return nil
}

// Resize sets the limits of CPU and memory, up or down, while processes run, and returns what is held really; a field
// is zero where nothing holds it, as in [None]. GPU fields are ignored.
//
// CPU takes effect within a few periods of 100 ms; less than [MinimumCPU] is raised to it. Memory is raised at once. It
// is never lowered below what the group uses: the kernel first reclaims what it can, and then the limit is the use and
// a little more, so what is held may be above what was asked for, but not above what was held. Less than
// [MinimumMemory] is raised to it.
//
// What is held already is not written again: a write of a CPU limit gives the group a new quota at once, so that one
// which is written often is none.
//
// Zero, negative amounts and those above [Enforcer.Limit] are refused with [ErrSize], and nothing changes. On another
// error the returned size is what is held as far as it is known.
func (g *Group) Resize(size quantity.Size) (held quantity.Size, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed {
		return quantity.Size{}, fmt.Errorf("resize group %s: %w", g.name, ErrClosed)
	}
	if err := validate(size, g.enforcer.limit); err != nil {
		return g.held, fmt.Errorf("resize group %s: %w", g.name, err)
	}
	var cpuErr, memoryErr error
	if want := max(size.CPU, MinimumCPU); g.unsure || want != g.held.CPU {
		var cpu quantity.Milli
		if cpu, cpuErr = g.control.setCPU(want); cpuErr == nil {
			g.held.CPU = cpu
		}
	}
	if want := max(size.Memory, MinimumMemory); g.unsure || want != g.held.Memory {
		var memory quantity.Bytes
		if memory, memoryErr = g.control.setMemory(want, g.held.Memory); memoryErr == nil {
			g.held.Memory = memory
		}
	}
	err = errors.Join(cpuErr, memoryErr)
	g.unsure = err != nil
	if err != nil {
		return g.held, fmt.Errorf("resize group %s to %s: %w", g.name, size, err)
	}
	return g.held, nil
}

// Usage returns what the group takes now. It also moves the peaks that only calls of Usage see; call it about once a
// second.
func (g *Group) Usage() (Usage, error) {
	g.looking.Lock()
	defer g.looking.Unlock()
	r, err := g.control.read()
	if err != nil {
		return Usage{}, fmt.Errorf("read the usage of group %s: %w", g.name, err)
	}
	return g.peaks.observe(r), nil
}

// ResetPeak makes the peaks and the counts of kills and refusals start from now. Call it between two users of the
// group.
func (g *Group) ResetPeak() error { return g.restart(g.peaks.reset) }

// ForgetPeak makes the peaks alone start from now: what the kernel has killed and refused is counted on. Call it while
// one user has the group, whose peak so far tells nothing of the rest.
func (g *Group) ForgetPeak() error { return g.restart(g.peaks.forget) }

// restart starts the peaks anew by from, which is a method of them.
func (g *Group) restart(from func(r reading, followed bool)) error {
	g.looking.Lock()
	defer g.looking.Unlock()
	followed := g.control.resetPeak()
	r, err := g.control.read()
	if err != nil {
		return fmt.Errorf("reset the peaks of group %s: %w", g.name, err)
	}
	from(r, followed)
	return nil
}

// Peak returns the kernel's own peak of the memory that counts against the limit; 0 where it has none. It costs a tenth
// of [Group.Usage]: while it stays the same and below the limit, nothing has run out of memory.
func (g *Group) Peak() quantity.Bytes { return g.control.peakMemory() }

// Kill kills all processes of the group and returns when they are gone, or with an error when ctx ends.
// The group can be used again. The processes are not limited in CPU while they die. Who started a child still waits for
// it.
func (g *Group) Kill(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed {
		return nil
	}
	if err := g.kill(ctx); err != nil {
		return fmt.Errorf("kill group %s: %w", g.name, err)
	}
	return nil
}

func (g *Group) kill(ctx context.Context) error {
	pids, err := g.control.pids()
	if err != nil || len(pids) == 0 {
		return err
	}
	if g.held.CPU > 0 {
		// A thousand processes need long to exit on a hundredth of a core.
		if _, err := g.control.setCPU(0); err != nil {
			return err
		}
	}
	err = poll(ctx, func() (bool, error) {
		if err := g.control.kill(); err != nil {
			return false, err
		}
		pids, err := g.control.pids()
		return len(pids) == 0, err
	})
	if g.held.CPU > 0 {
		_, again := g.control.setCPU(g.held.CPU)
		g.unsure = g.unsure || again != nil
		err = errors.Join(err, again)
	}
	return err
}

// Remove waits until the group has no process, or ctx ends, and removes it. It may be called several times; after an
// error it can be tried again. It kills nothing.
func (g *Group) Remove(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed {
		return nil
	}
	err := poll(ctx, func() (bool, error) {
		pids, err := g.control.pids()
		return len(pids) == 0, err
	})
	if err == nil {
		err = g.control.remove()
	}
	if err != nil {
		return fmt.Errorf("remove group %s: %w", g.name, err)
	}
	g.removed = true
	g.enforcer.forget(g)
	return nil
}

// Pids returns the IDs of the group's processes that have not ended, in no order; nil when there are none.
func (g *Group) Pids() ([]int, error) {
	pids, err := g.control.pids()
	if err != nil {
		return nil, fmt.Errorf("list the processes of group %s: %w", g.name, err)
	}
	return pids, nil
}

// poll tries until it is done, first after a millisecond and then less often: most groups obey within one. The kernel
// tells of changes in v2 only.
func poll(ctx context.Context, try func() (done bool, err error)) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		done, err := try()
		if done || err != nil {
			return err
		}
		if !wait.For(ctx, pause) {
			return fmt.Errorf("it still has processes that do not obey: %w", context.Cause(ctx))
		}
	}
}
