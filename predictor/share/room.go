package share

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Holding is what a running attempt keeps of its host, and for how many seconds more, as far as is predicted.
type Holding struct {
	Size quantity.Size
	Left float64
}

// Rooms says when hosts have room beside what attempts hold of them. What attempts hold counts, not what slots are
// planned: a large attempt keeps the others out until it ends.
type Rooms []host

type host struct {
	free quantity.Size
	held []Holding // in the order in which they are given back
}

// NewRooms are the rooms of hosts on which attempts hold so much, by the host's name.
func NewRooms(hosts []plan.Host, held map[string][]Holding) Rooms {
	rooms := make(Rooms, len(hosts))
	for i, h := range hosts {
		rooms[i] = host{h.Capacity, slices.Clone(held[h.ID])}
		for _, holding := range held[h.ID] {
			rooms[i].free = rooms[i].free.Minus(holding.Size)
		}
		slices.SortFunc(rooms[i].held, func(a, b Holding) int { return cmp.Compare(a.Left, b.Left) })
	}
	return rooms
}

// Wait is in how many seconds size fits on a host: 0 when it fits now, +Inf when no host has as much. It is the
// earliest moment: whoever asked before may take the room first.
func (r Rooms) Wait(size quantity.Size) float64 {
	wait := math.Inf(1)
	for _, h := range r {
		wait = min(wait, h.wait(size))
	}
	return wait
}

func (h host) wait(size quantity.Size) float64 {
	free := h.free
	if size.Fits(free) {
		return 0
	}
	for _, holding := range h.held {
		free = free.Plus(holding.Size)
		if size.Fits(free) {
			return holding.Left
		}
	}
	return math.Inf(1)
}
