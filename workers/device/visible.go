package device

import (
	"cmp"
	"fmt"
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

// Filter is what the operator leaves of the devices of a host. The zero value leaves all.
type Filter struct {
	// Visible is the value of CUDA_VISIBLE_DEVICES, and Set says that there is one: an empty one hides all devices.
	Visible string
	Set     bool
	// Order is the value of CUDA_DEVICE_ORDER; empty is CUDA's usual one, from the fastest device on.
	Order string
}

// Kept is what a host does not give to attempts, and why.
type Kept struct {
	// Device is which; nil where it is no single one.
	Device *Device
	Reason string // a sentence
}

// Offer returns what a host gives to attempts of the devices that it has now: those that work and are of one class, as
// a size has one class of devices. That is class, or for an empty one the class of which most are there, of those with
// most memory where there are as many of two. Kept says for people what is not given, and why; what the operator has
// hidden is not mentioned.
func (f Filter) Offer(devices []State, class string) (offered []State, kept []Kept) {
	if f.Set {
		if number := Ambiguous(devices, f.Visible, f.Order); number != "" {
			return nil, []Kept{{Reason: fmt.Sprintf("no GPU is offered: CUDA_VISIBLE_DEVICES names one of several models by "+
				"the number %s, and CUDA counts from the fastest on; give UUIDs, as nvidia-smi -L lists them, or set "+
				"CUDA_DEVICE_ORDER=PCI_BUS_ID", number)}}
		}
		if missing := Missing(devices, f.Visible); missing != "" {
			kept = append(kept, Kept{Reason: fmt.Sprintf("CUDA_VISIBLE_DEVICES names the GPU %q, which is not among the %d "+
				"that are there; those after it are not offered; nvidia-smi -L lists numbers and UUIDs", missing, len(devices))})
		}
		devices = Visible(devices, f.Visible)
	}
	class = cmp.Or(class, commonest(devices))
	for _, d := range devices {
		switch {
		case d.Wrong != "":
			kept = append(kept, Kept{&d.Device, fmt.Sprintf("%s is not offered: %s", d.Label(), d.Wrong)})
		case d.Class != class:
			kept = append(kept, Kept{&d.Device, fmt.Sprintf("%s (%s) is not offered: this host offers GPUs of one model, %s",
				d.Label(), d.Name, class)})
		default:
			offered = append(offered, d)
		}
	}
	return offered, kept
}

// commonest is the class of which most devices work, of those with most memory where there are as many of two, and of
// these the first by its name; empty when none works.
func commonest(devices []State) (best string) {
	count, memory := map[string]int{}, map[string]quantity.Bytes{}
	for _, d := range devices {
		if d.Wrong == "" {
			count[d.Class]++
			memory[d.Class] += d.Memory
		}
	}
	for class, n := range count {
		order := cmp.Or(cmp.Compare(n, count[best]), cmp.Compare(memory[class], memory[best]))
		if order > 0 || order == 0 && class < best {
			best = class
		}
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
