package predictor

import (
	"fmt"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Sizing is how attempts of one stage are sized when they are admitted: a model small enough to travel in the Plan.
//
// The memory limit is Base.Memory + MemoryPerInput x input bytes, never below Floor and never above the host.
type Sizing struct {
	Stage StageID `json:"stage"`
	// Base is the size at an input of zero bytes.
	Base quantity.Size `json:"base"`
	// MemoryPerInput is how many bytes of memory one byte of input adds; 0 or more.
	MemoryPerInput float64 `json:"memory_per_input_byte,omitempty"`
	// Floor is the least memory that is ever granted: the largest peak seen lately, less what its input explains (MemoryPerInput x input).
	Floor quantity.Bytes `json:"floor_bytes,omitempty"`
	// Memory is the expected peak in bytes at an input of zero bytes, without head-room; MemoryPerInput applies to it as well.
	Memory Interval `json:"memory_bytes"`
	// Wall is the expected run time at the pool, in seconds.
	Wall Interval `json:"wall_seconds"`
	// Source says what the sizing rests on; it becomes the Prediction's Source.
	Source string `json:"source"`
	// Attempts is how many Records the model has seen.
	Attempts int `json:"attempts"`
	// Learned is true when the model rests on Records, false for declared and first sizes.
	Learned bool `json:"learned,omitempty"`
	// Static forbids growth by input (the predictor is off, or its tracked error passed its bound).
	Static bool `json:"static,omitempty"`
}

// Need is what is known about an attempt before it runs.
type Need struct {
	// Input is the size of the encoded input and of the artifacts that it names.
	Input quantity.Bytes
	// OutOfMemory counts earlier attempts of this task that ran out of memory.
	OutOfMemory int
	// LargestFailed is the largest memory grant at which this task ran out of memory; 0 when it never did.
	LargestFailed quantity.Bytes
}

// GrowAfterOutOfMemory is the least ratio between the memory grant of an attempt and that of the attempt before it that ran out of memory.
// Doubling finds a need of n times the first grant in log2(n) attempts and overshoots by less than half.
const GrowAfterOutOfMemory = 2

// For returns the size of an attempt and what is expected of it, for a host whose children may hold capacity together.
// It never returns more than capacity, and never a size with no CPU or no memory while capacity has some.
// fits is false when the attempt already ran out of memory at all that the host has: no bigger size exists there.
func (s Sizing) For(need Need, capacity quantity.Size) (size quantity.Size, expected Prediction, fits bool) {
	grow := max(s.MemoryPerInput, 0)
	if s.Static {
		grow = 0
	}
	byInput := grow * float64(max(need.Input, 0))
	size = s.Base
	size.Memory = max(size.Memory+quantity.Bytes(min(byInput, float64(quantity.TiB)*1024)), s.Floor)
	expected = Prediction{
		Memory: Interval{Low: s.Memory.Low + byInput, Mid: s.Memory.Mid + byInput, High: s.Memory.High + byInput},
		Wall:   s.Wall,
		Source: s.Source,
	}
	if need.OutOfMemory > 0 {
		size.Memory = max(size.Memory, need.LargestFailed*GrowAfterOutOfMemory)
		expected.Source = fmt.Sprintf("grown after running out of memory at %s", need.LargestFailed)
	}
	fits = need.OutOfMemory == 0 || need.LargestFailed < capacity.Memory
	size = size.AtMost(capacity)
	if size.CPU <= 0 {
		size.CPU = min(quantity.Core, capacity.CPU)
	}
	if size.Memory <= 0 {
		size.Memory = capacity.Memory
	}
	return size, expected, fits
}
