package makespan

import (
	"cmp"
	"slices"
)

// Slot takes one task at a time.
type Slot struct {
	// Free is in how many seconds it takes its next task.
	Free float64
	// Takes is how many seconds it takes for a task of length 1; above 0.
	Takes float64
	// Kind tells slots apart for [Slots.Sum].
	Kind int
}

// Slots take tasks from one queue: whoever is free first takes the next, which is list scheduling (Graham, Bounds on
// multiprocessing timing anomalies, 1969, https://doi.org/10.1137/0117039). The zero value has none. Slots must not be
// used concurrently.
type Slots struct {
	heap []Slot // by Free, the first at its root
}

// Reset takes all slots away; their memory is used again.
func (s *Slots) Reset() { s.heap = s.heap[:0] }

// Add adds n slots that are alike.
func (s *Slots) Add(n int, slot Slot) {
	for range n {
		s.heap = append(s.heap, slot)
		for i := len(s.heap) - 1; i > 0 && s.heap[i].Free < s.heap[(i-1)/2].Free; i = (i - 1) / 2 {
			s.heap[i], s.heap[(i-1)/2] = s.heap[(i-1)/2], s.heap[i]
		}
	}
}

// Len is how many slots there are.
func (s *Slots) Len() int { return len(s.heap) }

// Sum is that of Free over the slots of a kind, in seconds: between two sums lies what they have done, since none is
// without a task before its Free.
func (s *Slots) Sum(kind int) (seconds float64) {
	for _, slot := range s.heap {
		if slot.Kind == kind {
			seconds += slot.Free
		}
	}
	return seconds
}

// Take gives the next task to the slot that is free first, and returns in how many seconds it ends. There must be a
// slot.
func (s *Slots) Take(length float64) (end float64) {
	s.heap[0].Free += length * s.heap[0].Takes
	end = s.heap[0].Free
	s.sink()
	return end
}

// Fill gives the slots so many lengths of tasks that can be divided at will: all that take part are free at the same
// time, those that are free later take none. It stands for the first of very many tasks, whose lengths even out.
//
//	sum of max(0, level - Free_i) / Takes_i = work
func (s *Slots) Fill(work float64) {
	if len(s.heap) == 0 || !(work > 0) {
		return
	}
	slices.SortFunc(s.heap, func(a, b Slot) int { return cmp.Compare(a.Free, b.Free) })
	rate, done := 0.0, 0.0 // of the slots that take part, and what they do until they are free, counted from time 0
	for i, slot := range s.heap {
		rate += 1 / slot.Takes
		done += slot.Free / slot.Takes
		level := (work + done) / rate
		if i+1 == len(s.heap) || level <= s.heap[i+1].Free {
			for k := range i + 1 {
				s.heap[k].Free = level
			}
			return // sorted, so a heap
		}
	}
}

func (s *Slots) sink() {
	for i := 0; ; {
		least := i
		for _, child := range [...]int{2*i + 1, 2*i + 2} {
			if child < len(s.heap) && s.heap[child].Free < s.heap[least].Free {
				least = child
			}
		}
		if least == i {
			return
		}
		s.heap[i], s.heap[least] = s.heap[least], s.heap[i]
		i = least
	}
}
