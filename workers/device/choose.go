package device

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Need is what an attempt asks of the devices of its host.
type Need struct {
	// Count is how many whole devices (GPUs, or instances of one), at least one.
	Count int
	// Class is that of all of them; empty takes any, but all of one class.
	Class string
	// Memory is what the attempt may take of each; zero when nobody knows.
	Memory quantity.Bytes
	// Learned says that Memory is what earlier attempts took, with head-room, and that nobody has asked for as much.
	Learned bool
}

// least is how much of a device must be free for an attempt: what it asks for, but no more than there ever is where
// others hold little of it, or where that is only what was learned. Without that an attempt that once ran out of a
// whole device would wait for one for ever.
func (n Need) least(d State) quantity.Bytes {
	if n.Learned || idle(d) {
		return min(n.Memory, quantity.WholeGPU(d.Memory))
	}
	return n.Memory
}

// little is the most that programs hold of a device who do not use it: the context of a display, an MPS server or a
// notebook that rests takes some hundred MiB.
const little = quantity.GiB

// idle reports whether other programs hold so little of a device that an attempt can have it as if it were its own.
func idle(d State) bool { return strangers(d) <= min(little, d.Memory-quantity.WholeGPU(d.Memory)) }

// strangers is what other programs hold of a device that no attempt has; all that is used of it where the driver does
// not tell who holds how much.
func strangers(d State) (sum quantity.Bytes) {
	if d.PIDsUnknown && len(d.Processes) == 0 {
		return d.Used
	}
	for _, p := range d.Processes {
		if p.Memory < 0 {
			return d.Used
		}
		sum += p.Memory
	}
	return sum
}

// Choose returns the UUIDs of the devices that an attempt gets, in their order on the host, or why it gets none: held
// are those that other attempts have, by UUID. It is a pure function, and the same devices are chosen for the same
// values.
//
// A device that another program uses is free as far as its memory goes, and where nobody knows what the attempt takes
// only while others hold little of it; where several would do, those with the least
// memory are taken, so that large ones are left for who needs them, and of the same size those that no other program
// uses, then those with the lowest number.
func Choose(devices []State, held map[string]bool, need Need) (uuids []string, why string) {
	if need.Count < 1 {
		return nil, ""
	}
	var reasons []string
	byClass := map[string][]State{}
	for _, d := range devices {
		if why := unusable(d, held, need); why != "" {
			reasons = append(reasons, d.Label()+" "+why)
			continue
		}
		byClass[d.Class] = append(byClass[d.Class], d)
	}
	var best []State
	for _, some := range byClass {
		if len(some) < need.Count {
			for _, d := range some {
				reasons = append(reasons, fmt.Sprintf("%s (%s) is free", d.Label(), d.Class))
			}
			continue
		}
		slices.SortFunc(some, func(a, b State) int {
			return cmp.Or(cmp.Compare(a.Memory, b.Memory),
				cmp.Compare(len(a.Processes), len(b.Processes)), Order(a, b))
		})
		some = some[:need.Count]
		if best == nil || cmp.Or(cmp.Compare(last(some).Memory, last(best).Memory), Order(some[0], best[0])) < 0 {
			best = some
		}
	}
	if best == nil {
		slices.Sort(reasons)
		why := fmt.Sprintf("%s asked for, %d on this host", need, len(devices))
		if len(reasons) == 0 {
			return nil, why + "; spillway doctor says what it sees of GPUs"
		}
		return nil, why + ": " + strings.Join(reasons, "; ")
	}
	slices.SortFunc(best, Order)
	for _, d := range best {
		uuids = append(uuids, d.UUID)
	}
	return uuids, ""
}

func last(states []State) State { return states[len(states)-1] }

// unusable says why an attempt cannot have a device; empty when it can.
func unusable(d State, held map[string]bool, need Need) string {
	switch {
	case d.Wrong != "":
		return d.Wrong
	case need.Class != "" && need.Class != d.Class:
		return "is " + d.Class
	case need.Count > 1 && !d.Whole():
		return "is a part of a GPU, of which a program sees one"
	case held[d.UUID]:
		return "is held by another attempt"
	case need.Memory > d.Memory:
		return fmt.Sprintf("has %s", d.Memory)
	case need.least(d) > d.Free:
		text := fmt.Sprintf("has %s free of %s", d.Free, d.Memory)
		if by := others(d.Processes); by != "" {
			text += ": used" + by
		}
		return text
	case need.Memory == 0 && !idle(d):
		return fmt.Sprintf("is used: %s of it%s", d.Used, others(d.Processes))
	}
	return ""
}

// others are the processes on a device, for people; empty when there are none.
func others(processes []Process) string {
	var list []string
	for _, p := range processes {
		if p.Memory < 0 {
			list = append(list, fmt.Sprintf("process %d", p.PID))
			continue
		}
		list = append(list, fmt.Sprintf("process %d with %s", p.PID, p.Memory))
	}
	if len(list) == 0 {
		return ""
	}
	const most = 3
	if len(list) > most {
		list = append(list[:most], fmt.Sprintf("%d more", len(list)-most))
	}
	return " by " + strings.Join(list, ", ")
}

// String writes the need for people: "2 h100 with 40 GiB each".
func (n Need) String() string {
	text := fmt.Sprintf("%d %s", n.Count, cmp.Or(n.Class, "GPU"))
	if n.Class == "" && n.Count > 1 {
		text += "s"
	}
	if n.Memory > 0 {
		text += fmt.Sprintf(" with %s each", n.Memory)
	}
	return text
}
