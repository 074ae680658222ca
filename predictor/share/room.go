package share

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Holding is what a running attempt keeps of its host, and for how many seconds more, as far as is predicted.
type Holding struct {
	Size quantity.Size
	Left float64
	// GPUs are those that it has, by UUID; nil where that is not known.
	GPUs []string
}

// Rooms says when hosts have room beside what attempts hold of them. What attempts hold counts, not what slots are
// planned: a large attempt keeps the others out until it ends.
type Rooms []host

type host struct {
	free quantity.Size
	// later is what is free when one after another of those that hold something has ended, and in how many seconds that
	// is; in that order.
	later   []Holding
	devices devices
}

// NewRooms are the rooms of hosts on which attempts hold so much, by the host's name.
func NewRooms(hosts []plan.Host, held map[string][]Holding) Rooms {
	rooms := make(Rooms, len(hosts))
	for i, h := range hosts {
		room := host{h.Capacity, slices.Clone(held[h.ID]), newDevices(h)}
		for _, holding := range room.later {
			room.free = room.free.Minus(holding.Size)
		}
		slices.SortFunc(room.later, func(a, b Holding) int { return cmp.Compare(a.Left, b.Left) })
		for _, named := range []bool{true, false} {
			for at, holding := range room.later {
				if named == (len(holding.GPUs) > 0) {
					room.devices.hold(holding.Size, holding.GPUs, at)
				}
			}
		}
		free := room.free
		for at := range room.later {
			free = free.Plus(room.later[at].Size)
			room.later[at].Size = free
		}
		rooms[i] = room
	}
	return rooms
}

// Wait is in how many seconds size fits on a host: 0 when it fits now, +Inf when no host has as much. It is the
// earliest moment: whoever asked before may take the room first.
func (r Rooms) Wait(size quantity.Size) float64 {
	wait := math.Inf(1)
	for _, h := range r {
		if wait = min(wait, h.wait(size)); wait == 0 {
			break
		}
	}
	return wait
}

func (h host) wait(size quantity.Size) float64 {
	if h.fits(size, h.free, notHeld) {
		return 0
	}
	// More and more is free, so a thousand stages need not each add up what thousands of attempts hold.
	at := sort.Search(len(h.later), func(i int) bool { return h.fits(size, h.later[i].Size, i) })
	if at == len(h.later) {
		return math.Inf(1)
	}
	return h.later[at].Left
}

// fits reports whether a size has room where so much is free and the holdings up to number have ended.
func (h host) fits(size, free quantity.Size, number int) bool {
	if size.WholeGPUs() == 0 {
		return size.Fits(free)
	}
	return fits(size, free) && h.devices.fit(size, number)
}
