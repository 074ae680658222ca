package outlook

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/predictor/makespan"
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
	if tasks <= many-len(running) { // all at once
		longest := l.longest(float64(max(tasks, 1)), mean, random)
		if tasks == 0 {
			return end, 0
		}
		if tasks == 1 {
			return max(end, longest*slower), longest
		}
		return max(end, longest*slower), max(longest, l.together(tasks, mean, random))
	}
	scale := max(1, float64(many)/mostScheduled)
	tasks, many = int(math.Ceil(float64(tasks)/scale)), int(math.Round(float64(many)/scale))
	var busy makespan.Slots
	for _, seconds := range fewer(slices.Sorted(slices.Values(running)), scale) {
		if busy.Len() < many {
			busy.Add(1, makespan.Slot{Free: seconds, Takes: 1})
		}
	}
	busy.Add(many-busy.Len(), makespan.Slot{Takes: 1})
	if bulk := tasks - mostScheduled; bulk > 0 {
		work, tasks = l.together(bulk, mean, random), mostScheduled
		busy.Fill(work)
	}
	for ; tasks > 0; tasks-- {
		took := l.drawn(mean, random.NormFloat64())
		work += took
		if scale > 1 && tasks <= busy.Len() { // the last that a slot takes, the longest of those for which it stands
			took = l.longest(scale, mean, random)
		}
		end = max(end, busy.Take(took))
	}
	return end * slower, work * scale
}

// longest draws the longest of so many tasks: its rank is the n-th root of a uniform number.
func (l Leg) longest(n, mean float64, random *rand.Rand) float64 {
	u := math.Pow(random.Float64(), 1/n)
	return l.drawn(mean, math.Sqrt2*math.Erfinv(2*min(u, 1-1e-12)-1))
}

// together is how long n tasks take one after another.
func (l Leg) together(n int, mean float64, random *rand.Rand) float64 {
	return float64(n) * mean * math.Exp(l.Task*random.NormFloat64()/math.Sqrt(float64(n)))
}

// fewer keeps one of so many sorted times, from everywhere among them: what the first to be free stand for is not when
// the others are. A scale of 1 keeps all.
func fewer(times []float64, scale float64) []float64 {
	kept := make([]float64, int(math.Round(float64(len(times))/scale)))
	for i := range kept {
		kept[i] = times[int((float64(i)+0.5)*float64(len(times))/float64(len(kept)))]
	}
	return kept
}
