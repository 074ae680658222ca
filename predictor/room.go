package predictor

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// holding is what a running attempt keeps of its host, and for how many seconds more, as far as is predicted.
type holding struct {
	size quantity.Size
	left float64
}

// roomAfter is in how many seconds size fits beside what is held, of which free is left now: 0 when it fits now, +Inf
// when it does not even fit alone. Held is sorted by the time at which it is given back. It is the earliest moment:
// whoever asked before may take the room first.
func roomAfter(size, free quantity.Size, held []holding) float64 {
	if size.Fits(free) {
		return 0
	}
	for _, h := range held {
		free = free.Plus(h.size)
		if size.Fits(free) {
			return h.left
		}
	}
	return math.Inf(1)
}

// awaitRoom finds out when a host will have room for one more attempt of each stage whose tasks wait. What attempts
// hold counts, not what slots are planned: a large attempt keeps the others out until it ends.
func (d *decider) awaitRoom() {
	held := map[string][]holding{} // by host
	for key, running := range d.memory.attempts {
		st := d.memory.stages[running.Stage]
		if running.Venue != Pool || !running.runs() || st == nil {
			continue
		}
		size := d.memory.grants[key]
		if size.IsZero() {
			size = st.Slot
		}
		left := st.model.remaining(d.now.since(running.Started))
		held[running.Host] = append(held[running.Host], holding{size, left})
	}
	free := make([]quantity.Size, len(d.hosts))
	for i, host := range d.hosts {
		free[i] = host.Capacity
		for _, h := range held[host.ID] {
			free[i] = free[i].Minus(h.size)
		}
		slices.SortFunc(held[host.ID], func(a, b holding) int { return cmp.Compare(a.left, b.left) })
	}
	for _, w := range d.works {
		if len(d.hosts) == 0 || w.demand() <= w.running[Pool] {
			continue
		}
		w.wait = noPool
		for i, host := range d.hosts {
			w.wait = min(w.wait, roomAfter(w.size, free[i], held[host.ID]))
		}
	}
}

// taken reports whether a host may have taken tasks of the run's part that it has no room for: no queue counts them
// any more, and nobody runs them yet.
func (w *work) taken(part *share) bool {
	return w.wait > 0 && w.unfinished && part.Scheduled > part.Done
}

// remaining is how many seconds an attempt of this age goes on at the pool. One that has outlived all that are known
// goes on for as long again.
func (m *model) remaining(age float64) float64 {
	if left := m.Walls[Pool].residual(age, 0); left > 0 {
		return left
	}
	return max(1, age)
}
