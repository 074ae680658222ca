package quantity

import (
	"fmt"
	"strings"
	"time"
)

// Size is the room that one attempt holds: its grant. The zero value is no room.
type Size struct {
	// CPU is the share of cores, in thousandths.
	CPU Milli `json:"cpu_milli"`
	// Memory is the limit of resident memory, in bytes.
	Memory Bytes `json:"memory_bytes"`
	// GPU is how many GPUs, in thousandths of one; 0 means none.
	GPU Milli `json:"gpu_milli,omitempty"`
	// GPUMemory is the memory of all its GPUs together that it may take, in bytes.
	GPUMemory Bytes `json:"gpu_memory_bytes,omitempty"`
	// DeviceClass names the device type that is needed, such as "h200"; empty means any CPU.
	DeviceClass string `json:"device_class,omitempty"`
}

// Plus returns the sum of two sizes; the device class is that of s.
func (s Size) Plus(other Size) Size {
	s.CPU += other.CPU
	s.Memory += other.Memory
	s.GPU += other.GPU
	s.GPUMemory += other.GPUMemory
	return s
}

// Minus returns what is left of s without other; fields may become negative.
func (s Size) Minus(other Size) Size {
	s.CPU -= other.CPU
	s.Memory -= other.Memory
	s.GPU -= other.GPU
	s.GPUMemory -= other.GPUMemory
	return s
}

// Fits reports whether s can be held within room, field by field; an empty device class fits everywhere.
func (s Size) Fits(room Size) bool {
	return s.CPU <= room.CPU && s.Memory <= room.Memory && s.GPU <= room.GPU && s.GPUMemory <= room.GPUMemory &&
		(s.DeviceClass == "" || s.DeviceClass == room.DeviceClass)
}

// AtMost returns s with cores and memory cut to those of ceiling. Devices are not cut: who gets half of the GPUs that
// it asked for cannot run.
func (s Size) AtMost(ceiling Size) Size {
	s.CPU = min(s.CPU, ceiling.CPU)
	s.Memory = min(s.Memory, ceiling.Memory)
	return s
}

// WholeGPUs is how many GPUs are given to who asks for s: a part of one is one.
func (s Size) WholeGPUs() int {
	if s.GPU <= 0 {
		return 0
	}
	return int((s.GPU-1)/Core + 1)
}

// MemoryOfEachGPU is what who asks for s takes of each of its GPUs, in bytes: 0 where it does not say or asks for none.
func (s Size) MemoryOfEachGPU() Bytes {
	count := Bytes(s.WholeGPUs())
	if count == 0 {
		return 0
	}
	return (s.GPUMemory + count - 1) / count
}

// IsZero reports whether s is no room at all.
func (s Size) IsZero() bool { return s == Size{} }

// String writes the size for people: "0.5 cores, 96 MiB".
func (s Size) String() string {
	var text strings.Builder
	noun := "cores"
	if s.CPU == Core {
		noun = "core"
	}
	fmt.Fprintf(&text, "%s %s, %s", s.CPU, noun, s.Memory)
	if s.GPU > 0 {
		fmt.Fprintf(&text, ", %s GPU", s.GPU)
	}
	if s.GPUMemory > 0 {
		fmt.Fprintf(&text, " with %s", s.GPUMemory)
	}
	if s.DeviceClass != "" {
		fmt.Fprintf(&text, " on %s", s.DeviceClass)
	}
	return text.String()
}

// Usage is what one attempt really took, from the kernel where the kernel tells.
// The zero value means that nothing was measured.
type Usage struct {
	// CPU is the processor time consumed, user and system.
	CPU time.Duration `json:"cpu_ns"`
	// PeakMemory is the highest resident memory, in bytes.
	PeakMemory Bytes `json:"peak_memory_bytes"`
	// Squeezed says that the attempt made do with its limit and would have taken more: its garbage collector ran because
	// of it.
	Squeezed bool `json:"squeezed,omitempty"`
	// GPUPeakMemory is the highest memory of all its GPUs together that was seen, in bytes; 0 where nobody saw it.
	GPUPeakMemory Bytes `json:"gpu_peak_memory_bytes,omitempty"`
	// GPUPeakAccounted says that GPUPeakMemory is from the driver's own account of each process, which misses nothing;
	// else it is the most of what was seen at looks.
	GPUPeakAccounted bool `json:"gpu_peak_accounted,omitempty"`
	// GPUBusy is for how long its GPUs computed, added up over them, as far as they were looked at; 0 where nobody tells.
	GPUBusy time.Duration `json:"gpu_busy_ns,omitempty"`
	// Wall is the time from the start of the user's code to its end.
	Wall time.Duration `json:"wall_ns"`
	// Fetch and Publish are the parts of Wall in which the user's code waited for artifacts to be read and to be written;
	// what overlaps counts once.
	Fetch   time.Duration `json:"fetch_ns,omitempty"`
	Publish time.Duration `json:"publish_ns,omitempty"`
	// Input is the size of the encoded input and of the artifacts that the attempt read, in bytes.
	Input Bytes `json:"input_bytes"`
	// Output is the size of the encoded output and of the artifacts that the attempt wrote, in bytes.
	Output Bytes `json:"output_bytes"`
	// Throttled is the time in which the attempt was ready to run and its CPU limit held it back; 0 where nobody counts
	// it.
	Throttled time.Duration `json:"throttled_ns,omitempty"`
	// Active is how long those periods of its CPU limit were together in which the attempt ran at all, of 100 ms each; 0
	// where nobody counts them.
	Active time.Duration `json:"active_ns,omitempty"`
	// Stalled is the time in which some of the attempt waited for memory (pressure stall information); 0 where nobody
	// counts it.
	Stalled time.Duration `json:"memory_stalled_ns,omitempty"`
	// DiskRead and DiskWritten are what went to and from block devices, in bytes; 0 where nobody counts it.
	DiskRead    Bytes `json:"disk_read_bytes,omitempty"`
	DiskWritten Bytes `json:"disk_written_bytes,omitempty"`
}

// CPURate returns the mean share of cores that was used, in thousandths; 0 when the wall time is not positive.
func (u Usage) CPURate() Milli {
	if u.Wall <= 0 {
		return 0
	}
	return Milli(float64(u.CPU) / float64(u.Wall) * float64(Core))
}
