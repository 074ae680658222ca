//go:build !linux

package enforce

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

func detect() []Offer {
	const reason = "only Linux has cgroups"
	return []Offer{
		{Mode: Unified, Reason: reason},
		{Mode: Legacy, Reason: reason},
		{Mode: None, Usable: true, Reason: "nothing is held, and usage is not measured on this system"},
	}
}

func openTree(context.Context, Mode, string, int, func([]string) error) (tree, error) {
	return processTree{}, nil
}

// sweep has nothing to remove: no mode of this system makes anything that stays.
func sweep(context.Context, []string) error { return nil }

// HostSize knows the CPUs; memory is not limited.
func HostSize() (quantity.Size, error) {
	return quantity.Size{CPU: quantity.Milli(runtime.NumCPU()) * quantity.Core, Memory: math.MaxInt64}, nil
}

// processTree makes groups of process groups.
type processTree struct{}

func (processTree) group(string) (control, error) {
	return &processGroup{leaders: make(map[int]bool)}, nil
}

func (processTree) limit() quantity.Size        { return quantity.Size{} }
func (processTree) close(context.Context) error { return nil }

// processGroup is the set of process groups that the started children lead, or the children alone when they lead none.
// A process that leaves its group is lost.
type processGroup struct {
	mu      sync.Mutex
	leaders map[int]bool // whether the started process leads a group
}

func (g *processGroup) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	group, err := syscall.Getpgid(cmd.Process.Pid)
	g.leaders[cmd.Process.Pid] = err == nil && group == cmd.Process.Pid
	return nil
}

func (*processGroup) setCPU(quantity.Milli) (quantity.Milli, error) { return 0, nil }

func (*processGroup) setMemory(_, _ quantity.Bytes) (held quantity.Bytes, err error) { return 0, nil }
func (*processGroup) peakMemory() quantity.Bytes                                     { return 0 }
func (*processGroup) resetPeak() bool                                                { return true }
func (*processGroup) remove() error                                                  { return nil }

func (g *processGroup) read() (reading, error) {
	pids, err := g.pids()
	return reading{usage: Usage{Processes: len(pids)}}, err
}

func (g *processGroup) kill() error { return g.signal(syscall.SIGKILL) }

func (g *processGroup) signal(sig syscall.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for pid, leads := range g.leaders {
		if leads {
			pid = -pid
		}
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, syscall.EPERM) {
			return fmt.Errorf("send %s to process %d: %w", sig, pid, err)
		}
	}
	return nil
}

// pids lists the started processes that can still be signalled, or whose groups can.
func (g *processGroup) pids() ([]int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var pids []int
	for pid, leads := range g.leaders {
		target := pid
		if leads {
			target = -pid
		}
		if errors.Is(syscall.Kill(target, 0), syscall.ESRCH) {
			delete(g.leaders, pid)
			continue
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
