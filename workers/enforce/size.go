package enforce

import (
	"fmt"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// MinimumCPU is the smallest CPU limit: the kernel takes no quota below 1 ms, in a period of 100 ms.
	MinimumCPU quantity.Milli = 10
	// MinimumMemory is the smallest memory limit: below it a program is killed before it has begun.
	MinimumMemory = 4 * quantity.MiB
)

// periodMicroseconds is the length of the intervals for which a CPU quota holds: the kernel's own default. A shorter
// one takes effect sooner and costs throughput.
const periodMicroseconds = 100_000

// quotaMicroseconds returns the CPU time that a group with a limit of cpu may use in each period.
func quotaMicroseconds(cpu quantity.Milli) int64 {
	return int64(cpu) * periodMicroseconds / int64(quantity.Core)
}

// cpuLimit converts a quota of CPU time in each period into a share of cores; 0 for none.
func cpuLimit(quota, period int64) quantity.Milli {
	if quota <= 0 || period <= 0 {
		return 0
	}
	return max(quantity.Milli(float64(quota)/float64(period)*float64(quantity.Core)), 1)
}

// validate refuses sizes that no group within limit can have. Only CPU and memory count.
func validate(want, limit quantity.Size) error {
	switch {
	case want.CPU <= 0:
		return fmt.Errorf("%w: %s cores; ask for more than 0", ErrSize, want.CPU)
	case want.Memory <= 0:
		return fmt.Errorf("%w: %s of memory; ask for more than 0", ErrSize, want.Memory)
	case want.CPU > limit.CPU:
		return fmt.Errorf("%w: %s cores are more than the %s that this host or the cgroup around it has", ErrSize, want.CPU,
			limit.CPU)
	case want.Memory > limit.Memory:
		return fmt.Errorf("%w: %s of memory is more than the %s that this host or the cgroup around it has", ErrSize,
			want.Memory, limit.Memory)
	}
	return nil
}

// tighter returns the smaller of two sizes in each of CPU and memory, where zero means no limit.
func tighter(a, b quantity.Size) quantity.Size {
	return quantity.Size{CPU: tighterOf(a.CPU, b.CPU), Memory: tighterOf(a.Memory, b.Memory)}
}

func tighterOf[T quantity.Milli | quantity.Bytes](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// slack is the room above its use that a group keeps when its limit is lowered below the use: a sixteenth of it, at
// least 4 MiB and at most 64 MiB. Without it the next page that the group touches would kill it; each CPU also charges
// pages in advance.
func slack(use quantity.Bytes) quantity.Bytes {
	return min(max(use/16, 4*quantity.MiB), 64*quantity.MiB)
}

// memoryTarget decides the memory limit to set when want is asked for, use cannot be reclaimed, and held is the limit
// now (0 for none). It is want when that is at least the use. Otherwise it is the use with [slack], and never more than
// held: a group that is asked to shrink does not grow.
func memoryTarget(want, use, held quantity.Bytes) quantity.Bytes {
	if want >= use {
		return want
	}
	return max(tighterOf(use+slack(use), held), want)
}
