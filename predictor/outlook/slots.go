package outlook

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/predictor/plan"
)

// slots draws how many tasks run at once.
func (l Leg) slots(random *rand.Rand) float64 {
	tasks := float64(l.Waiting + len(l.Running))
	switch {
	case len(l.Running) > 0 && l.Waiting > 0:
		now := float64(len(l.Running))
		if l.Slots.Known() {
			return min(math.Sqrt(now*l.Slots.Draw(nil, random)), tasks)
		}
		return now
	case l.Slots.Known():
		return min(max(l.Slots.Draw(nil, random), float64(min(l.Most, 1))), tasks)
	}
	return tasks
}

// mostScheduled is how many tasks are scheduled one by one, and on how many slots: of more tasks, those before the last
// are evenly divided, and of more slots there are fewer, with as many tasks for each.
const mostScheduled = 64

// schedule is list scheduling: each task goes to the slot that is free first. It returns when the last one is done, and
// how long those take together that wait now. Running is how long the attempts go on that hold slots now.
func (l Leg) schedule(running []float64, mean, slots float64, random *rand.Rand) (end, work float64) {
	slower := 1.0
	if slots < 1 { // part of the time
		slots, slower = 1, 1/max(slots, 0.01)
	}
	many, tasks := int(min(slots, plan.MaxSlots)), l.Waiting
	if random.Float64() < slots-math.Floor(slots) {
		many++
	}
	for _, seconds := range running {
		end = max(end, seconds)
	}
	if tasks <= many-len(running) { // all at once: the longest of n has the n-th root of a uniform number as its rank
		u := math.Pow(random.Float64(), 1/float64(max(tasks, 1)))
		longest := l.drawn(mean, math.Sqrt2*math.Erfinv(2*min(u, 1-1e-12)-1))
		if tasks == 0 {
			return end, 0
		}
		if tasks == 1 {
			return max(end, longest*slower), longest
		}
		return max(end, longest*slower), max(longest, l.together(tasks, mean, random))
	}
	heap := slotHeap(slices.Sorted(slices.Values(running)))
	scale := 1.0
	if many > mostScheduled {
		scale = float64(many) / mostScheduled
		tasks, many = int(math.Ceil(float64(tasks)/scale)), mostScheduled
		heap = heap.fewer(scale)
	}
	heap = heap[:min(len(heap), many)]
	if bulk := tasks - mostScheduled; bulk > 0 {
		work, tasks = l.together(bulk, mean, random), mostScheduled
		heap = append(heap, make([]float64, many-len(heap))...)
		slices.Sort(heap)
		heap.fill(work)
	}
	for range tasks {
		took := l.drawn(mean, random.NormFloat64())
		work += took
		at := took
		if len(heap) < many {
			heap = heap.pushed(took)
		} else {
			at = heap[0] + took
			heap[0] = at
			heap.sink()
		}
		end = max(end, at)
	}
	return end * slower, work * scale
}

// together is how long n tasks take one after another.
func (l Leg) together(n int, mean float64, random *rand.Rand) float64 {
	return float64(n) * mean * math.Exp(l.Task*random.NormFloat64()/math.Sqrt(float64(n)))
}

// fill lets slots, by when they are free, do so much work that all are free at the same time, but those that are later.
func (h slotHeap) fill(work float64) {
	level := 0.0
	for i := range h {
		level = (work + level*float64(i) + h[i]) / float64(i+1)
		work = 0
		if i+1 == len(h) || level <= h[i+1] {
			for k := range i + 1 {
				h[k] = level
			}
			return
		}
	}
}

// slotHeap has the times at which slots are free, the first at its root.
type slotHeap []float64

// fewer keeps one of so many sorted times, from everywhere among them: what the first to be free stand for is not when
// the others are.
func (h slotHeap) fewer(scale float64) slotHeap {
	kept := make(slotHeap, int(math.Round(float64(len(h))/scale)))
	for i := range kept {
		kept[i] = h[int((float64(i)+0.5)*float64(len(h))/float64(len(kept)))]
	}
	return kept
}

func (h slotHeap) pushed(at float64) slotHeap {
	h = append(h, at)
	for i := len(h) - 1; i > 0 && h[i] < h[(i-1)/2]; i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
	return h
}

func (h slotHeap) sink() {
	for i := 0; ; {
		least := i
		for _, child := range []int{2*i + 1, 2*i + 2} {
			if child < len(h) && h[child] < h[least] {
				least = child
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
