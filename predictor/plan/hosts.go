package plan

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Hosts are those of a pool.
type Hosts []Host

// Largest is the capacity of the host with the most memory, then cores; zero without hosts.
func (all Hosts) Largest() quantity.Size {
	return largest(all, func(h Host) quantity.Size { return h.Capacity })
}

// LargestFor is the capacity of the largest host that has such GPUs as an attempt of the size asks for, with those; for
// who asks for none, and where no host has them, that of the largest host.
func (all Hosts) LargestFor(asked quantity.Size) quantity.Size {
	return largest(all.Having(asked), func(h Host) quantity.Size { return h.For(asked) })
}

// FreestFor is the room of the host with the most free memory, then cores, of those that have such GPUs as an attempt
// of the size asks for; zero without hosts.
func (all Hosts) FreestFor(asked quantity.Size) quantity.Size {
	return largest(all.Having(asked), func(h Host) quantity.Size { return h.Free })
}

// Having are the hosts that have the GPUs that an attempt of the size asks for, or, where none has so much memory,
// those with the largest of its class; all of them where none has any.
func (all Hosts) Having(asked quantity.Size) Hosts {
	if asked.GPU <= 0 || len(all) == 0 {
		return all
	}
	var some Hosts
	for _, host := range all {
		if host.Has(asked) > 0 {
			some = append(some, host)
		}
	}
	if len(some) > 0 {
		return some
	}
	asked.GPUMemory = 0
	most := quantity.Bytes(0)
	for _, host := range all {
		if host.Has(asked) == 0 {
			continue
		}
		room := host.For(asked)
		each := room.GPUMemory / quantity.Bytes(room.GPU/quantity.Core)
		switch {
		case each > most:
			some, most = Hosts{host}, each
		case each == most:
			some = append(some, host)
		}
	}
	if len(some) == 0 {
		return all
	}
	return some
}

// Equipped reports whether a host has as many GPUs as an attempt of the size asks for, whatever their memory.
func (all Hosts) Equipped(asked quantity.Size) bool {
	asked.GPUMemory = 0
	return slices.ContainsFunc(all, func(h Host) bool { return h.Has(asked) > 0 })
}

// Lacking says which GPUs no host has that an attempt of the size asks for; empty when one has them.
func (all Hosts) Lacking(asked quantity.Size) string {
	for _, host := range all {
		if host.Has(asked) > 0 {
			return ""
		}
	}
	if len(all) == 0 || asked.GPU <= 0 {
		return ""
	}
	only := quantity.Size{GPU: asked.GPU, GPUMemory: asked.GPUMemory, DeviceClass: asked.DeviceClass}
	text := "no host with a valid lease has what it asks for: " + strings.TrimPrefix(only.String(), "0 cores, 0 B, ")
	for _, host := range all {
		if host.GPUsUnknown {
			return text + "; the driver of the GPUs of " + host.ID + " has not answered yet"
		}
	}
	return text
}

func largest(hosts Hosts, of func(Host) quantity.Size) quantity.Size {
	if len(hosts) == 0 {
		return quantity.Size{}
	}
	return of(slices.MaxFunc(hosts, func(a, b Host) int {
		return cmp.Or(cmp.Compare(of(a).Memory, of(b).Memory), cmp.Compare(of(a).CPU, of(b).CPU), -cmp.Compare(a.ID, b.ID))
	}))
}
