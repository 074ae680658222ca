package share

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// devices are the GPUs of a host that work, and from when on each is free. They are told apart, as the memory of one of
// 80 GiB and one of 40 is not that of two of 60 (TestWhatGPUsHaveRoomForIsGivenAndNothingElse).
type devices struct {
	all []plan.GPU // by memory, the smallest first
	// until is for each the number of the holding whose end frees it; notHeld for one that is free now.
	until []int
}

// notHeld is the number of no holding; forever that of one whose end is not known.
const (
	notHeld = -1
	forever = math.MaxInt
)

// newDevices are the GPUs of a host, all of them free.
func newDevices(host plan.Host) devices {
	var d devices
	for _, gpu := range host.Devices() {
		if gpu.Wrong == "" {
			d.all = append(d.all, gpu)
		}
	}
	slices.SortStableFunc(d.all, func(a, b plan.GPU) int { return cmp.Compare(a.Memory, b.Memory) })
	d.until = slices.Repeat([]int{notHeld}, len(d.all))
	return d
}

// choose returns which devices an attempt of a size gets when the holdings up to number have ended: as many as it asks
// for, of one class, the smallest that have its part of the memory, as an agent gives them. Large ones are left for who
// needs them: where attempts of one device each fit at all, they fit when each takes the smallest that holds it. Nil
// where too few are free.
func (d devices) choose(size quantity.Size, number int) (best []int) {
	count, least := size.WholeGPUs(), size.MemoryOfEachGPU()
	if count == 0 {
		return nil
	}
	byClass := map[string][]int{}
	for i, gpu := range d.all {
		if d.until[i] > number || gpu.Memory < least || count > 1 && gpu.Part() ||
			size.DeviceClass != "" && size.DeviceClass != gpu.Class {
			continue
		}
		if some := byClass[gpu.Class]; len(some) < count {
			byClass[gpu.Class] = append(some, i)
		}
	}
	for _, some := range byClass {
		if len(some) == count && (best == nil || some[count-1] < best[count-1]) {
			best = some
		}
	}
	return best
}

// fit reports whether so many are free then; true for who asks for none.
func (d devices) fit(size quantity.Size, number int) bool {
	return size.WholeGPUs() == 0 || d.choose(size, number) != nil
}

// hold makes the devices of an attempt held until the holding of this number ends: those that are named, or where it is
// not known which it has those that it would be given, or the largest that are free.
func (d devices) hold(size quantity.Size, uuids []string, number int) {
	if size.WholeGPUs() == 0 {
		return
	}
	if len(uuids) > 0 {
		for i, gpu := range d.all {
			if slices.Contains(uuids, gpu.UUID) {
				d.until[i] = max(d.until[i], number)
			}
		}
		return
	}
	taken := d.choose(size, notHeld)
	for i := len(d.all) - 1; i >= 0 && len(taken) < size.WholeGPUs(); i-- {
		if d.until[i] == notHeld && !slices.Contains(taken, i) {
			taken = append(taken, i)
		}
	}
	for _, i := range taken {
		d.until[i] = number
	}
}
