package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Equipment is which GPUs a host has, also those that do not work now: the memory of each by class, the largest first.
type Equipment map[string][]quantity.Bytes

// Slots is how many attempts of a size the GPUs have room for at once, whoever has them now: each with as many as it
// asks for, of one class, and each of these with its part of the memory. For a size without GPUs it is [math.MaxInt].
func (e Equipment) Slots(size quantity.Size) (slots int) {
	count, least := size.WholeGPUs(), size.MemoryOfEachGPU()
	if count == 0 {
		return math.MaxInt
	}
	for class, devices := range e {
		if size.DeviceClass != "" && size.DeviceClass != class {
			continue
		}
		enough := 0
		for _, memory := range devices {
			if memory >= least {
				enough++
			}
		}
		slots += enough / count
	}
	return slots
}

// best is the class and the devices of which so many have most memory each; nil where there are not so many, and then
// those of which most are there.
func (e Equipment) best(class string, count int) (best []quantity.Bytes) {
	rank := func(devices []quantity.Bytes) (has int, each quantity.Bytes) {
		if len(devices) == 0 {
			return 0, 0
		}
		has = min(len(devices), count)
		return has, devices[has-1]
	}
	for _, name := range slices.Sorted(maps.Keys(e)) {
		if class != "" && class != name {
			continue
		}
		has, each := rank(e[name])
		most, largest := rank(best)
		if cmp.Or(cmp.Compare(has, most), cmp.Compare(each, largest)) > 0 {
			best = e[name]
		}
	}
	return best
}

// compare orders equipment, so that a plan says the same in the same order.
func (e Equipment) compare(other Equipment) int {
	mine, theirs := slices.Sorted(maps.Keys(e)), slices.Sorted(maps.Keys(other))
	if order := slices.Compare(mine, theirs); order != 0 {
		return order
	}
	for _, class := range mine {
		if order := slices.Compare(e[class], other[class]); order != 0 {
			return order
		}
	}
	return 0
}

// HostKind is what hosts of one kind have for attempts, whoever holds it now: which GPUs, and how much memory the one
// of them has that has most. An attempt takes as much CPU as there is, so that is no kind.
type HostKind struct {
	// Memory is what attempts may hold together on the largest of these hosts.
	Memory quantity.Bytes `json:"memory_bytes"`
	// GPUs are those of each of these hosts, also those that do not work now; nil where they have none.
	GPUs Equipment `json:"gpus,omitempty"`
}

// Takes reports whether an attempt can be run there that asks for the GPUs of a size and has run out of memory with so
// much, 0 where it has not.
func (k HostKind) Takes(size quantity.Size, failed quantity.Bytes) bool {
	return k.Memory > failed && k.GPUs.Slots(size) > 0
}

// Kinds are the kinds of hosts, in an order of their own.
func Kinds(hosts []Host) (kinds []HostKind) {
	for _, host := range hosts {
		kind := HostKind{Memory: host.Capacity.Memory}
		if all := host.equipment(true, 1); len(all) > 0 {
			kind.GPUs = all
		}
		kinds = append(kinds, kind)
	}
	slices.SortFunc(kinds, func(a, b HostKind) int {
		return cmp.Or(a.GPUs.compare(b.GPUs), cmp.Compare(b.Memory, a.Memory)) // the largest is kept
	})
	return slices.CompactFunc(kinds, func(a, b HostKind) bool { return a.GPUs.compare(b.GPUs) == 0 })
}

// Has is how many slots of a size the working GPUs of the host have room for, whoever has them now: see
// [Equipment.Slots].
func (h Host) Has(size quantity.Size) int { return h.slots(size, false) }

// Could is the same with those that do not work now, which may work again.
func (h Host) Could(size quantity.Size) int { return h.slots(size, true) }

func (h Host) slots(size quantity.Size, all bool) int {
	count := size.WholeGPUs()
	if count == 0 { // most ask for none
		return math.MaxInt
	}
	return h.equipment(all, count).Slots(size)
}

// For is the capacity of the host for attempts of a size: the GPUs of its class, each with as much memory as all those
// have of one attempt that gets the largest. Where GPUs are of several sizes, the sum of their memory tells of none.
func (h Host) For(size quantity.Size) quantity.Size {
	count := size.WholeGPUs()
	if count == 0 {
		return h.Capacity
	}
	capacity, devices := h.Capacity, h.equipment(false, count).best(size.DeviceClass, count)
	capacity.GPU, capacity.GPUMemory = quantity.Milli(len(devices))*quantity.Core, 0
	if len(devices) > 0 {
		each := devices[min(count, len(devices))-1]
		capacity.GPUMemory = each * quantity.Bytes(len(devices))
	}
	return capacity
}

// equipment is the memory of each GPU of the host that works, or of all of them, of which an attempt may have so many.
// A host that tells of no single ones has them all of one size.
func (h Host) equipment(all bool, count int) Equipment {
	e := Equipment{}
	for _, d := range h.Devices() {
		if (all || d.Wrong == "") && (count == 1 || !d.Part()) {
			e[d.Class] = append(e[d.Class], d.Memory)
		}
	}
	for _, devices := range e {
		slices.SortFunc(devices, func(a, b quantity.Bytes) int { return cmp.Compare(b, a) })
	}
	return e
}

// Devices are the GPUs of the host. Where it tells of no single ones, they are all of one size.
func (h Host) Devices() []GPU {
	if h.GPUs != nil {
		return h.GPUs
	}
	count := int(min(h.Capacity.GPU/quantity.Core, MaxSlots))
	if count <= 0 {
		return nil
	}
	return slices.Repeat([]GPU{{
		Class: h.Capacity.DeviceClass, Memory: h.Capacity.GPUMemory / quantity.Bytes(count),
	}}, count)
}

// String writes the equipment for people: "2 h100 with 80 GiB and 40 GiB"; "none" for none.
func (e Equipment) String() string {
	var kinds []string
	for _, class := range slices.Sorted(maps.Keys(e)) {
		devices := e[class]
		var sizes []string
		for _, memory := range slices.Compact(slices.Clone(devices)) {
			sizes = append(sizes, memory.String())
		}
		kinds = append(kinds, fmt.Sprintf("%d %s with %s", len(devices), cmp.Or(class, "GPU"), strings.Join(sizes, " and ")))
	}
	return cmp.Or(strings.Join(kinds, "; "), "none")
}
