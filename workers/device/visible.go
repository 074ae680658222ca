package device

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Visible returns the devices that a value of CUDA_VISIBLE_DEVICES leaves: numbers of GPUs, or UUIDs or beginnings of
// them, of which those after the first that names none count no more, as CUDA has it
// (https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables). Numbers are in the
// order of the PCI bus (see Ambiguous), and that of a GPU that is cut into instances means its first one.
func Visible(devices []State, value string) []State {
	var seen []State
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		at := slices.IndexFunc(devices, func(d State) bool {
			if number, err := strconv.Atoi(name); err == nil {
				return d.Index == number
			}
			return name != "" && strings.HasPrefix(d.UUID, name)
		})
		if at < 0 {
			break
		}
		if !slices.ContainsFunc(seen, func(d State) bool { return d.UUID == devices[at].UUID }) {
			seen = append(seen, devices[at])
		}
	}
	return seen
}

// Ambiguous is the first number in a value of CUDA_VISIBLE_DEVICES that may mean another device to CUDA than to the
// driver; empty when there is none. Unless CUDA_DEVICE_ORDER, which is order here, is PCI_BUS_ID, CUDA counts from the
// fastest device on, which is the order of the bus only where all are of one model.
func Ambiguous(devices []State, value, order string) string {
	models := map[string]bool{}
	for _, d := range devices {
		if d.Name != "" {
			model, _, _ := strings.Cut(d.Name, " MIG ")
			models[model] = true
		}
	}
	if order == "PCI_BUS_ID" || len(models) < 2 {
		return ""
	}
	for name := range strings.SplitSeq(value, ",") {
		if number, err := strconv.Atoi(strings.TrimSpace(name)); err == nil && number >= 0 {
			return strings.TrimSpace(name)
		}
	}
	return ""
}

// Missing is the first name in a value of CUDA_VISIBLE_DEVICES that no device has, with which what is visible ends;
// empty when all are there, and for -1, with which people hide the rest.
func Missing(devices []State, value string) string {
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		if name == "" || name == "-1" || name == "none" || name == "NoDevFiles" {
			return ""
		}
		if len(Visible(devices, name)) == 0 {
			return name
		}
	}
	return ""
}

// Offer returns what a host gives to attempts: the working devices of the model that it has most of, of those with most
// memory where it has as many of two. A size has one class of devices, so others are left out.
func Offer(devices []State) []State {
	byClass := map[string][]State{}
	memory := map[string]quantity.Bytes{}
	for _, d := range devices {
		if d.Wrong == "" {
			byClass[d.Class] = append(byClass[d.Class], d)
			memory[d.Class] += d.Memory
		}
	}
	var best []State
	for class, some := range byClass {
		switch {
		case best == nil || len(some) > len(best):
		case len(some) < len(best):
			continue
		case memory[class] < memory[best[0].Class], memory[class] == memory[best[0].Class] && class > best[0].Class:
			continue
		}
		best = some
	}
	return best
}

// Capacity is what devices of one class are as a part of a host's capacity.
func Capacity(devices []State) (size quantity.Size) {
	for _, d := range devices {
		size.GPU += quantity.Core
		size.GPUMemory += d.Memory
		size.DeviceClass = d.Class
	}
	return size
}
