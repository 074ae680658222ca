package training

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

// surveyed asks the executor what CUDA devices are, and gives each its class and, where nobody said how much of it may
// be used, what is free of it, shared evenly by those that are one device, beside what their processes hold. seen is by
// ID. Devices that are asked for more than they have, or for a precision that they do not compute in, are refused; an
// executor that knows of none says so itself.
func surveyed(
	ctx context.Context, executor exec.Executor, devices []exec.Device, precision exec.Precision,
) (all []exec.Device, seen map[string]exec.Surveyed, err error) {
	asks, knows := executor.(exec.Surveyor)
	var cuda []exec.Device
	for _, d := range devices {
		if d.Kind == exec.CUDA {
			cuda = append(cuda, d)
		}
	}
	if len(cuda) == 0 || !knows {
		return devices, nil, nil
	}
	found, err := asks.Survey(ctx, cuda)
	if err != nil {
		return nil, nil, err
	}
	seen = map[string]exec.Surveyed{}
	var lacking []string
	for i, d := range cuda {
		seen[d.ID] = found[i]
		if (precision == exec.BFloat16 || precision == exec.TF32) && found[i].Float32Only {
			lacking = append(lacking, fmt.Sprintf("%s (cuda:%d, %s)", d.ID, d.Index, cmp.Or(found[i].Name, "a GPU")))
		}
	}
	if len(lacking) > 0 {
		return nil, nil, refused("%s cannot compute in %s, which GPUs do from compute capability 8.0 (Ampere) on; "+
			"choose %s or %s, or name other devices", strings.Join(lacking, " and "), precision, exec.Float32, exec.Float16)
	}
	all = slices.Clone(devices)
	for i, d := range all {
		if d.Kind != exec.CUDA {
			continue
		}
		sharing := slices.DeleteFunc(slices.Clone(cuda), func(other exec.Device) bool { return other.Index != d.Index })
		if err := holdsAll(sharing, seen[d.ID]); err != nil {
			return nil, nil, err
		}
		all[i].Class = seen[d.ID].Name
		if d.Memory == 0 {
			all[i].Memory = leftBeside(seen[d.ID], len(sharing)) / quantity.Bytes(len(sharing))
		}
	}
	return all, seen, nil
}

// leftBeside is what is free of a device for the tensors of some parts: it was measured beside one process, and each of
// the others holds as much of the device whatever it computes.
func leftBeside(seen exec.Surveyed, parts int) quantity.Bytes {
	return max(0, seen.Free-quantity.Bytes(parts-1)*seen.Context)
}

// holdsAll refuses parts of one device that ask for more than it has, or than others leave.
func holdsAll(sharing []exec.Device, seen exec.Surveyed) error {
	var asked quantity.Bytes
	names := make([]string, len(sharing))
	for i, d := range sharing {
		asked += d.Memory
		names[i] = d.ID
	}
	who, device := strings.Join(names, " and "), fmt.Sprintf("cuda:%d, %s", sharing[0].Index, cmp.Or(seen.Name, "a GPU"))
	switch {
	case seen.Memory > 0 && asked > seen.Memory:
		return refused("%s may hold %v on %s, which has %v; give less memory, or name other devices", who, asked, device,
			seen.Memory)
	case seen.Free > 0 && asked > seen.Free:
		return refused("%s may hold %v on %s, of whose %v %v are free; end the programs that hold the rest, give less "+
			"memory, or name other devices", who, asked, device, seen.Memory, seen.Free)
	case seen.Free > 0 && (asked > leftBeside(seen, len(sharing)) || leftBeside(seen, len(sharing)) == 0):
		return refused("%s may hold %v on %s, of which %v are free, less %v for each process beside the first; give less "+
			"memory, or name other devices", who, asked, device, seen.Free, seen.Context)
	}
	return nil
}

// perByte is how long a byte of a message takes from one device to another, in seconds: into the memory that parts
// share, which is a copy on the host or from a CUDA device, and from there into a CUDA device. CPUs read it where it
// is.
func (m machine) perByte(from, to exec.Device) float64 {
	seconds := inverse(cmp.Or(m.seen[from.ID].Out, m.copyRate))
	if to.Kind == exec.CUDA {
		seconds += inverse(cmp.Or(m.seen[to.ID].In, m.copyRate))
	}
	return seconds
}

// toAndFro is perByte in the slower direction: gradients go back.
func (m machine) toAndFro(a, b exec.Device) float64 { return max(m.perByte(a, b), m.perByte(b, a)) }

// within is how fast a device copies its memory, in bytes a second; 0 is at once.
func (m machine) within(d exec.Device) float64 { return cmp.Or(m.seen[d.ID].Copy, m.copyRate) }

// inverse is the time of a byte at a rate; 0 for 0, which is at once.
func inverse(rate float64) float64 {
	if rate <= 0 {
		return 0
	}
	return 1 / rate
}
