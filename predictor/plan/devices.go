package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Has is how many slots of a size the GPUs of the host have room for, whoever has them now: of the class that is asked
// for, those that work, each with its part of the memory that is asked for. For a size without GPUs it is
// [math.MaxInt].
func (h Host) Has(size quantity.Size) int {
	count := size.WholeGPUs()
	if count == 0 {
		return math.MaxInt
	}
	least := (size.GPUMemory + quantity.Bytes(count) - 1) / quantity.Bytes(count)
	enough := 0
	for _, memory := range h.devices(size.DeviceClass) {
		if memory >= least {
			enough++
		}
	}
	return enough / count
}

// For is the capacity of the host for attempts of a size: the GPUs of its class, each with as much memory as all those
// have of one attempt that gets the largest. Where GPUs are of several sizes, the sum of their memory tells of none.
func (h Host) For(size quantity.Size) quantity.Size {
	count := size.WholeGPUs()
	if count == 0 {
		return h.Capacity
	}
	capacity, devices := h.Capacity, h.devices(size.DeviceClass)
	capacity.GPU, capacity.GPUMemory = quantity.Milli(len(devices))*quantity.Core, 0
	if len(devices) > 0 {
		each := devices[min(count, len(devices))-1]
		capacity.GPUMemory = each * quantity.Bytes(len(devices))
	}
	return capacity
}

// devices is the memory of each GPU of a class that works, the largest first. A host that tells of no single ones has
// them all of one size.
func (h Host) devices(class string) []quantity.Bytes {
	var all []quantity.Bytes
	if h.GPUs == nil {
		count := int(min(h.Capacity.GPU/quantity.Core, MaxSlots))
		if class != "" && class != h.Capacity.DeviceClass || count <= 0 {
			return nil
		}
		return slices.Repeat([]quantity.Bytes{h.Capacity.GPUMemory / quantity.Bytes(count)}, count)
	}
	for _, gpu := range h.GPUs {
		if gpu.Wrong == "" && (class == "" || class == gpu.Class) {
			all = append(all, gpu.Memory)
		}
	}
	slices.SortFunc(all, func(a, b quantity.Bytes) int { return cmp.Compare(b, a) })
	return all
}
