package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// admission hands the host's capacity to attempts in the order in which they ask. The first in the line waits until it
// fits and nobody overtakes it, so that a large attempt is not starved by small ones. One that waits for GPUs alone may
// wait for hours: its cores and memory are kept for it, and those who need no GPU pass. One that wants more GPUs than
// work now keeps its place and nothing else, and all pass; it is given back after gpuPatience (see
// [admission.reserve]).
//
// Memory that nobody holds may be lent: an attempt of which little is known holds what it is thought to take, and may
// take more. What is lent keeps nobody waiting for longer than it takes to call it in, but it is free for nobody else
// until then: what is held and what is lent are never more than the capacity.
type admission struct {
	capacity quantity.Size
	reading  int    // of the GPUs in the capacity: see [admission.limit]
	changed  func() // told after what is held has changed
	callIn   func() // told that somebody waits for nothing but what is lent; it must not block

	mu        sync.Mutex
	held      quantity.Size
	lent      quantity.Bytes
	borrowers int
	waiting   []*reservation
}

// reservation is the room of one attempt: waiting for it, holding it, or done with it.
type reservation struct {
	admission *admission
	granted   chan struct{}
	size      quantity.Size  // guarded by the admission's mutex, like what follows
	lent      quantity.Bytes // that it may take beyond its size
	borrows   bool
	called    bool // loans were called in for it
	released  bool
}

// admitted tells which of those who wait, first come first served, fit into what is free.
//
// GPUs are given whole, so what memory they have is theirs and is not compared. Kept is the memory of the host that is
// free and kept for who waits for GPUs alone.
func admitted(held, capacity quantity.Size, waiting []quantity.Size) (which []int, kept quantity.Bytes) {
	held.GPUMemory, capacity.GPUMemory = 0, 0
	passing := false // somebody waits for GPUs alone
	for i, size := range waiting {
		size.GPUMemory = 0
		if size.GPU > capacity.GPU {
			continue // so many do not work now: nothing that others give back is enough
		}
		if passing && size.GPU > 0 {
			continue // nobody overtakes who waits for the same
		}
		free := room(held, capacity)
		if size.Fits(free) {
			which = append(which, i)
			held = held.Plus(size)
			continue
		}
		size = size.WithGPUs(quantity.GPUs{})
		if waiting[i].GPU == 0 || !size.Fits(free) {
			return which, kept
		}
		passing = true
		held = held.Plus(size)
		kept += size.Memory
	}
	return which, kept
}

// room returns what is left of capacity; it may be negative where running attempts outgrew their grants.
func room(held, capacity quantity.Size) quantity.Size { return capacity.Minus(held) }

// reserve waits until size, which must not exceed the capacity, is granted. The error wraps errNoGPU where fewer GPUs
// than it wants have worked for gpuPatience: another host may have them.
func (a *admission) reserve(ctx context.Context, size quantity.Size) (*reservation, error) {
	r := &reservation{admission: a, granted: make(chan struct{}), size: size}
	a.mu.Lock()
	a.waiting = append(a.waiting, r)
	a.admit()
	a.mu.Unlock()
	var looks <-chan time.Time
	if size.GPU > 0 {
		ticker := time.NewTicker(gpuPatience / looksInPatience)
		defer ticker.Stop()
		looks = ticker.C
	}
	for short := 0; ; {
		select {
		case <-r.granted:
			a.changed()
			return r, nil
		case <-ctx.Done():
			r.release()
			return nil, context.Cause(ctx)
		case <-looks:
			if short++; !a.short(r) {
				short = 0
			}
			if short > looksInPatience {
				r.release()
				return nil, fmt.Errorf("%w: %s of them asked for, and %s work on this host; spillway doctor says what is wrong "+
					"with the others", errNoGPU, size.GPU, a.usable())
			}
		}
	}
}

// looksInPatience is how often in gpuPatience an attempt in the line looks whether as many GPUs work as it wants.
const looksInPatience = 10

// short reports whether a reservation waits for more GPUs than work now.
func (a *admission) short(r *reservation) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return r.size.GPU > a.capacity.GPU && slices.Contains(a.waiting, r)
}

// usable is how many GPUs work now.
func (a *admission) usable() quantity.Milli {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.capacity.GPU
}

// admit grants what fits; the caller holds mu.
func (a *admission) admit() {
	taken := a.held
	taken.Memory += a.lent
	which, _ := admitted(taken, a.capacity, a.wanted())
	for _, i := range slices.Backward(which) {
		r := a.waiting[i]
		a.held = a.held.Plus(r.size)
		close(r.granted)
		a.waiting = slices.Delete(a.waiting, i, i+1)
	}
	if a.lent == 0 {
		return
	}
	owed, _ := a.owed()
	news := false
	for _, r := range owed {
		news = news || !r.called
		r.called = true // loans are asked for once: what is not given back has been taken
	}
	if news {
		a.callIn()
	}
}

// wanted is what those who wait want; the caller holds mu.
func (a *admission) wanted() []quantity.Size {
	sizes := make([]quantity.Size, len(a.waiting))
	for i, r := range a.waiting {
		sizes[i] = r.size
	}
	return sizes
}

// owed are those who wait and would be granted what they want if nothing were lent, and the memory that is theirs, with
// what is kept for who waits for GPUs alone; the caller holds mu.
func (a *admission) owed() (owed []*reservation, memory quantity.Bytes) {
	which, memory := admitted(a.held, a.capacity, a.wanted())
	for _, i := range which {
		owed = append(owed, a.waiting[i])
		memory += a.waiting[i].size.Memory
	}
	return owed, memory
}

// limit makes the capacity another, as the reading of this number tells: a GPU was lost, or works again. What is held
// stays. Who looked earlier may come later, and is not heard then.
func (a *admission) limit(capacity quantity.Size, reading int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if reading < a.reading {
		return
	}
	a.reading = reading
	if a.capacity != capacity {
		a.capacity = capacity
		a.admit()
	}
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
		r.lend(0)
	}
	if r.borrows {
		a.borrowers--
	}
	a.admit()
}

// resize makes a granted reservation as large as decide says, which is told what is held and what is free besides, what
// is lent to this one included: a loan that is held is one no more. It may take more than is free: an attempt that
// outgrew its grant holds what it holds.
func (r *reservation) resize(
	decide func(held, free quantity.Size) quantity.Size,
) (size quantity.Size, lent quantity.Bytes) {
	a := r.admission
	a.mu.Lock()
	before := r.size
	defer func() {
		if size != before {
			a.changed()
		}
	}()
	defer a.mu.Unlock()
	if r.released {
		return r.size, r.lent
	}
	free := room(a.held, a.capacity)
	free.Memory -= a.lent - r.lent
	size = decide(r.size, free)
	a.held = a.held.Minus(r.size).Plus(size)
	r.lend(max(r.lent-max(size.Memory-r.size.Memory, 0), 0))
	r.size = size
	a.admit()
	return size, r.lent
}

// loan is what a granted reservation may borrow: an equal part of the memory that nobody holds, with one part left for
// whoever comes next, and without what those need who wait for nothing but what is lent. One that must wait until
// another ends may wait for longer: what is lent meanwhile may be taken, and is held then.
//
// Called says that somebody waits for nothing but what is lent.
func (r *reservation) loan() (part quantity.Bytes, called bool) {
	a := r.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	free := a.capacity.Memory - a.held.Memory
	owed, theirs := a.owed()
	if called = len(owed) > 0; called {
		free -= theirs
	}
	others := a.borrowers
	if r.borrows {
		others--
	}
	return max(free, 0) / quantity.Bytes(others+2), called
}

// borrow lends a granted reservation as much as it wants, where there is as much, in place of what it was lent before,
// and returns what it is lent. Who raises a limit borrows before; who lowers one gives back after.
func (r *reservation) borrow(want quantity.Bytes) quantity.Bytes {
	a := r.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.released {
		return r.lent
	}
	if !r.borrows {
		r.borrows = true
		a.borrowers++
	}
	less := want < r.lent
	r.lend(min(want, max(a.capacity.Memory-a.held.Memory-(a.lent-r.lent), 0)))
	if less {
		a.admit()
	}
	return r.lent
}

// lend notes what is lent; the caller holds mu.
func (r *reservation) lend(amount quantity.Bytes) {
	r.admission.lent += amount - r.lent
	r.lent = amount
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
