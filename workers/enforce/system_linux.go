package enforce

import (
	"context"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

func detect() []Offer {
	none := Offer{Mode: None, Usable: true, Reason: "nothing is held; usage is read from /proc"}
	unified, legacy, err := hierarchies()
	if err != nil {
		return []Offer{{Mode: Unified, Reason: err.Error()}, {Mode: Legacy, Reason: err.Error()}, none}
	}
	return []Offer{detectUnified(unified), detectLegacy(legacy), none}
}

// openTree makes the place of an owner's groups. It calls note with the paths of cgroups before it makes them.
func openTree(ctx context.Context, mode Mode, name string, processes int, note func([]string) error) (tree, error) {
	unified, legacy, err := hierarchies()
	switch {
	case mode == None:
		return processTree{}, note(nil)
	case err != nil:
		return nil, err
	case mode == Unified:
		return openUnified(ctx, *unified, name, processes, note)
	default:
		return openLegacy(ctx, legacy, name, processes, note)
	}
}

// HostSize is what this process could use at most: the CPUs that it may run on, and the host's memory.
func HostSize() (quantity.Size, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return quantity.Size{}, fmt.Errorf("read the size of this host: %w", err)
	}
	return quantity.Size{
		CPU:    quantity.Milli(runtime.NumCPU()) * quantity.Core,
		Memory: quantity.Bytes(info.Totalram) * quantity.Bytes(info.Unit), //nolint:gosec // a host has less than 2^63 bytes
	}, nil
}
