package agent

import (
	"context"
	"slices"
	"sync"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// admission hands the host's capacity to attempts in the order in which they ask. The first in the line waits until it
// fits and nobody overtakes it, so that a large attempt is not starved by small ones.
type admission struct {
	capacity quantity.Size
	changed  func() // told after what is held has changed

	mu      sync.Mutex
	held    quantity.Size
	waiting []*reservation
}

// reservation is the room of one attempt: waiting for it, holding it, or done with it.
type reservation struct {
	admission *admission
	granted   chan struct{}
	size      quantity.Size // guarded by the admission's mutex, like released
	released  bool
}

// admitted tells how many of those who wait, first come first served, fit into what is free.
func admitted(held, capacity quantity.Size, waiting []quantity.Size) int {
	for n, size := range waiting {
		if !size.Fits(room(held, capacity)) {
			return n
		}
		held = held.Plus(size)
	}
	return len(waiting)
}

// room returns what is left of capacity; it may be negative where running attempts outgrew their grants.
func room(held, capacity quantity.Size) quantity.Size { return capacity.Minus(held) }

// reserve waits until size, which must not exceed the capacity, is granted.
func (a *admission) reserve(ctx context.Context, size quantity.Size) (*reservation, error) {
	r := &reservation{admission: a, granted: make(chan struct{}), size: size}
	a.mu.Lock()
	a.waiting = append(a.waiting, r)
	a.admit()
	a.mu.Unlock()
	select {
	case <-r.granted:
		a.changed()
		return r, nil
	case <-ctx.Done():
		r.release()
		return nil, context.Cause(ctx)
	}
}

// admit grants what fits; the caller holds mu.
func (a *admission) admit() {
	sizes := make([]quantity.Size, len(a.waiting))
	for i, r := range a.waiting {
		sizes[i] = r.size
	}
	n := admitted(a.held, a.capacity, sizes)
	for _, r := range a.waiting[:n] {
		a.held = a.held.Plus(r.size)
		close(r.granted)
	}
	a.waiting = slices.Delete(a.waiting, 0, n)
}

// release gives the room back, or leaves the line. It may be called several times.
func (r *reservation) release() {
	a := r.admission
	a.mu.Lock()
	defer a.changed()
	defer a.mu.Unlock()
	if r.released {
		return
	}
	r.released = true
	if i := slices.Index(a.waiting, r); i >= 0 {
		a.waiting = slices.Delete(a.waiting, i, i+1)
	} else {
		a.held = a.held.Minus(r.size)
	}
	a.admit()
}

// resize makes a granted reservation as large as decide says, which is told what is held and what is free besides.
// It may take more than is free: an attempt that outgrew its grant holds what it holds.
func (r *reservation) resize(decide func(held, free quantity.Size) quantity.Size) quantity.Size {
	a := r.admission
	a.mu.Lock()
	defer a.changed()
	defer a.mu.Unlock()
	if r.released {
		return r.size
	}
	size := decide(r.size, room(a.held, a.capacity))
	a.held = a.held.Minus(r.size).Plus(size)
	r.size = size
	a.admit()
	return size
}

// free returns what is not held, never less than nothing.
func (a *admission) free() quantity.Size {
	a.mu.Lock()
	defer a.mu.Unlock()
	left := room(a.held, a.capacity)
	left.CPU, left.Memory = max(left.CPU, 0), max(left.Memory, 0)
	left.GPU, left.GPUMemory = max(left.GPU, 0), max(left.GPUMemory, 0)
	return left
}

// resized decides what a running attempt holds when its stage's sizing asks for want: memory is never below what it
// uses now, and nothing grows beyond what is free.
func resized(held, free, want quantity.Size, used quantity.Bytes) quantity.Size {
	size := held
	size.CPU = min(max(want.CPU, 1), held.CPU+max(free.CPU, 0))
	size.Memory = min(want.Memory, held.Memory+max(free.Memory, 0))
	size.Memory = max(size.Memory, min(used, held.Memory))
	return size
}
