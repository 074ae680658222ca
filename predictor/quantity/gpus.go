package quantity

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// mostGPUs is more than any host has, mostClass more bytes than any class has.
const mostGPUs, mostClass = 1024, 40

// GPUs is what a stage asks of GPUs: whole ones, each for one attempt alone. The zero value is none.
type GPUs struct {
	// Count is how many, all on one host.
	Count int `json:"count,omitempty"`
	// Class is the model of all of them, such as "h100"; empty takes any, all of one model.
	Class string `json:"class,omitempty"`
	// Memory is what an attempt takes of each until that is known, in bytes; 0 leaves it to Spillway.
	Memory Bytes `json:"memory_bytes,omitempty"`
}

// IsZero reports whether no GPU is asked for, and nothing of one.
func (g GPUs) IsZero() bool { return g == GPUs{} }

// Check returns what is wrong with the request.
func (g GPUs) Check() error {
	switch {
	case g.Count < 0 || g.Count > mostGPUs:
		return fmt.Errorf("it asks for %d GPUs; give 1 to %d", g.Count, mostGPUs)
	case g.Memory < 0 || g.Memory > math.MaxInt64/mostGPUs:
		return fmt.Errorf("it asks for %s of the memory of each GPU; give up to %s", g.Memory,
			Bytes(math.MaxInt64/mostGPUs))
	case g.Count == 0 && !g.IsZero():
		return errors.New("it says which GPU and not how many; give the number of GPUs, such as 1")
	case strings.ToLower(g.Class) != g.Class || len(g.Class) > mostClass || strings.ContainsAny(g.Class, " \t\r\n,;\"'"):
		return fmt.Errorf("it asks for a GPU of class %.60q; give its model in lower case, such as h100, a10g or rtx-4090",
			g.Class)
	}
	return nil
}

// WithGPUs returns s with these GPUs in place of its own.
func (s Size) WithGPUs(g GPUs) Size {
	s.GPU, s.GPUMemory, s.DeviceClass = Milli(g.Count)*Core, Bytes(g.Count)*g.Memory, g.Class
	return s
}

// WholeGPU is how much of a GPU's memory counts as all of it: the driver, a display and a monitor take some hundred
// MiB, so that what can be had is always a little less than what there is, and programs that take all that they find
// make do with so much less.
func WholeGPU(memory Bytes) Bytes { return memory - memory/16 }

// MoreThanWhole is how much memory a GPU must have of which more can be had than so much: the least of which
// [WholeGPU] is more.
func MoreThanWhole(memory Bytes) Bytes { return memory + memory/15 + 1 }
