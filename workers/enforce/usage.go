package enforce

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Usage is what a group takes and has taken. Times and amounts of input and output count from the group's creation;
// peaks of memory, kills and refusals from the last [Group.ResetPeak], those peaks also from the last
// [Group.ForgetPeak]. A field that the mode cannot tell is zero.
type Usage struct {
	// CPU is the processor time of all processes of the group, also those that have ended.
	CPU time.Duration
	// Throttled is for how long processes of the group could have run and were kept waiting by the CPU limit.
	Throttled time.Duration
	// Active is how long those periods of the CPU limit were together in which processes of the group ran at all; none are
	// counted while there is no limit. A period has 100 ms.
	Active time.Duration
	// Memory is what counts against the memory limit now: anonymous memory, the file cache of what the group read or
	// wrote, and the kernel's memory for it.
	Memory quantity.Bytes
	// WorkingSet is Memory without the file cache that is not in active use and that the kernel drops first
	// (inactive_file), as kubelet defines it.
	WorkingSet quantity.Bytes
	// Peak is the highest Memory. Exact in [Unified] and [Legacy], except that before Linux 6.12 [Unified] cannot reset
	// it: then a peak lower than an earlier one is what those of the group's processes come to, or the highest that a call
	// of [Group.Usage] saw where that is more; before Linux 5.19, which has no peak, it is what a call saw. It is an upper
	// bound of what the group needed: file cache grows until the limit stops it.
	Peak quantity.Bytes
	// PeakWorkingSet is what a sizing should learn from: the highest WorkingSet that a call saw or, when that is more,
	// Peak less the most file cache that a call saw. It is exact for a group that caches no files, however short its peak
	// was.
	PeakWorkingSet quantity.Bytes
	// OutOfMemory is how many processes the kernel killed for lack of memory, within the group's limit or the host's.
	OutOfMemory int64
	// ForksRefused is how many processes and threads the kernel did not start because the group had as many as it may: see
	// [Enforcer.Processes]. In [Legacy], and before Linux 6.11 in [Unified], those count too that it did not start because
	// a cgroup around the group had as many as that may; PeakProcesses tells one from the other.
	ForksRefused int64
	// PeakProcesses is the most processes and threads that the group had at once since it was made, or one more where a
	// cgroup around refused that one. It is never reset. Zero where the kernel has no pids.peak.
	PeakProcesses int
	// Read and Written count bytes of block devices; what the file cache answers is not counted.
	Read, Written quantity.Bytes
	// Processes is the number of processes now; threads are not counted.
	Processes int
	// CPUPressure, MemoryPressure and IOPressure tell for how long work waited for the resource. Only [Unified] has them.
	CPUPressure, MemoryPressure, IOPressure Pressure
}

// Pressure is the kernel's pressure stall information, as sums since the group was made.
// Source: https://docs.kernel.org/accounting/psi.html
type Pressure struct {
	// Some is for how long at least one process waited.
	Some time.Duration
	// Full is for how long all processes that had work waited at once.
	Full time.Duration
}

// reading is what one look at the kernel's numbers tells. Usage holds them without peaks; kills and refusals count from
// the group's creation.
type reading struct {
	usage       Usage
	reclaimable quantity.Bytes // file cache that the kernel drops first
	peak        quantity.Bytes // the kernel's own peak; 0 where it has none
	// own is what the peak comes to since it was restarted by what each process has had; 0 where that is not asked.
	own quantity.Bytes
}

// peaks follows the highest values since the last reset. The zero value is right for a new group.
type peaks struct {
	before     quantity.Bytes // the kernel's peak at a reset that it could not follow
	kills      int64          // at the last reset of counts
	refused    int64          // forks, at the last reset of counts
	memory     quantity.Bytes // the highest that was seen
	workingSet quantity.Bytes // the highest that was seen
	cache      quantity.Bytes // the most reclaimable cache that was seen
}

// observe adds a reading and returns it as usage since the reset.
func (p *peaks) observe(r reading) Usage {
	u := r.usage
	u.WorkingSet = max(u.Memory-r.reclaimable, 0)
	p.memory = max(p.memory, u.Memory, min(r.own, r.peak))
	p.workingSet = max(p.workingSet, u.WorkingSet)
	p.cache = max(p.cache, r.reclaimable)
	u.Peak = p.memory
	if r.peak > p.before { // it was reached after the reset
		u.Peak = max(u.Peak, r.peak)
	}
	u.PeakWorkingSet = max(p.workingSet, u.Peak-p.cache)
	u.OutOfMemory = max(u.OutOfMemory-p.kills, 0)
	u.ForksRefused = max(u.ForksRefused-p.refused, 0)
	return u
}

// reset starts anew from r, read after the reset; followed tells whether the kernel's own peak has restarted.
func (p *peaks) reset(r reading, followed bool) {
	p.kills, p.refused = r.usage.OutOfMemory, r.usage.ForksRefused
	p.forget(r, followed)
}

// forget is reset, but kills and refusals go on being counted.
func (p *peaks) forget(r reading, followed bool) {
	*p = peaks{kills: p.kills, refused: p.refused}
	if !followed {
		p.before = r.peak
	}
	p.observe(r)
}
