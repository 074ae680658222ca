package function

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/workers/enforce"
)

// groupPatience bounds how long an environment's processes may take to die.
const groupPatience = 30 * time.Second

// holder gives each environment a group that the kernel holds to its size.
type holder struct {
	enforcer *enforce.Enforcer
	made     atomic.Int64
	// cpu and memory tell what the kernel holds.
	cpu, memory bool
}

// openHolder finds out what the kernel holds, for a host that keeps its functions in dir.
func openHolder(dir string, opts Options) (*holder, error) {
	enforcer, err := enforce.Open(enforce.Options{StateDir: dir, Mode: opts.Enforcement, Logger: opts.Logger})
	if err != nil {
		return nil, fmt.Errorf("hold functions to their sizes: %w", err)
	}
	h := &holder{enforcer: enforcer}
	if enforcer.Mode() == enforce.None {
		return h, nil
	}
	probe, err := enforcer.Group("probe")
	if err != nil {
		return nil, errors.Join(err, enforcer.Close())
	}
	held, err := probe.Resize(h.within(minMemoryMB * quantity.MiB))
	h.cpu, h.memory = held.CPU > 0, held.Memory > 0
	ctx, cancel := context.WithTimeout(context.Background(), groupPatience)
	defer cancel()
	if err = errors.Join(err, probe.Remove(ctx)); err != nil {
		return nil, errors.Join(err, enforcer.Close())
	}
	return h, nil
}

// within is the size of an environment with this much memory, or all that this machine has of it.
func (h *holder) within(memory quantity.Bytes) quantity.Size {
	want, limit := size.OfClass(memory), h.enforcer.Limit()
	return quantity.Size{CPU: min(want.CPU, limit.CPU), Memory: min(want.Memory, limit.Memory)}
}

// group makes the group of an environment of this size; nil where the kernel holds nothing.
func (h *holder) group(within quantity.Size) (*enforce.Group, error) {
	if h.enforcer.Mode() == enforce.None {
		return nil, nil //nolint:nilnil // no group is what there is then
	}
	group, err := h.enforcer.Group("environment-" + strconv.FormatInt(h.made.Add(1), 10))
	if err != nil {
		return nil, err
	}
	if _, err := group.Resize(within); err != nil {
		return nil, errors.Join(err, removeGroup(group))
	}
	return group, nil
}

// removeGroup removes a group with all that still runs in it.
func removeGroup(group *enforce.Group) error {
	if group == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), groupPatience)
	defer cancel()
	return errors.Join(group.Kill(ctx), group.Remove(ctx))
}
