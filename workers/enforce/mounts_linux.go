package enforce

import (
	"fmt"
	"os"
	"slices"

	"github.com/spillway-ml/spillway/workers/cgroup"
)

// hierarchies finds the v2 hierarchy, if it is mounted, and those of v1. One that does not show the cgroup of this
// process counts as none.
func hierarchies() (unified *cgroup.Hierarchy, legacy []cgroup.Hierarchy, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, nil, fmt.Errorf("find the cgroups of this host: %w", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, nil, fmt.Errorf("find the cgroup of this process: %w", err)
	}
	unified, legacy = cgroup.Parse(mounts, own, legacyControllers)
	if unified != nil && unified.Hidden {
		unified = nil
	}
	return unified, slices.DeleteFunc(legacy, func(h cgroup.Hierarchy) bool { return h.Hidden }), nil
}
