package predictor

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// sizeStep is by how much, as a ratio, a size must move before it is changed, but for memory: a limit that follows
// every attempt would restart children and fill the ledger with decisions that change nothing.
const sizeStep = 0.10

const (
	cpuStep  quantity.Milli = 50
	leastCPU quantity.Milli = 100
	// A mean rate between these uses one core whenever it may run: reading input and waiting for a neighbour keep it
	// below, a garbage collector lifts it above. A limit below one core would slow it by exactly the part it is short.
	oneCoreFrom, oneCoreTo quantity.Milli = 850, 1050
	// A stage of which one attempt used a whole core, and most at least half of one, uses one: a busy host kept the others
	// waiting, which their rates do not tell from waiting for input. A limit by such rates would slow the stage once the
	// host is idle again.
	keptWaiting quantity.Milli = 500
)

// resize settles how attempts of the stage are sized, keeping the last size while the new one is close, and says why it
// changed. Without a host nothing says how much there is to give: what is held stays.
func (d *decider) resize(w *work) {
	st := w.stage
	held, before := st.Sizing, st.Slot
	next := d.sizing(st)
	slot := d.slotOf(st, next)
	d.tellWall(st, held, next)
	if before.IsZero() && !held.Base.IsZero() { // the plan in force had no slot of it
		before = d.slotOf(st, held)
	}
	known := !before.IsZero()
	switch {
	case len(d.hosts) == 0 && known:
		next, slot = held.predicting(next), before
	case known && held.Learned && next.Learned:
		next, slot = d.settled(st, next, slot)
	case known && !moved(before, slot) && held.Static == next.Static && held.Learned == next.Learned &&
		closeTerms(held.Term, next.Term):
		next, slot = held.predicting(next), before
	default:
		st.Settling = settling{}
	}
	expected := next.Expected.At(largestNeed(st, next).features())
	switch {
	case !known && len(d.hosts) > 0:
		d.decide(Decision{
			Stage: st.ID, Venue: Pool, What: "size", From: "none", To: slot.String(),
			Reason: "first size: " + next.Source, Inputs: sizeInputs(st, next), Predicted: expected, PredictedUnit: "bytes",
		})
	case known && (moved(before, slot) || held.Static != next.Static):
		d.decide(Decision{
			Stage: st.ID, Venue: Pool, What: "size", From: before.String(), To: slot.String(),
			Reason: d.sizeReason(st, next), Inputs: sizeInputs(st, next), Predicted: expected, PredictedUnit: "bytes",
		})
	}
	st.Sizing = next
	if known || len(d.hosts) > 0 {
		st.Slot = slot
	}
	w.size = slot
	d.plan.Sizings = append(d.plan.Sizings, next)
}

// predicting is s with what next expects.
func (s Sizing) predicting(next Sizing) Sizing {
	s.Floor, s.Expected, s.Attempts, s.Live = next.Floor, next.Expected, next.Attempts, next.Live
	s.Wall, s.WallFallen = next.Wall, next.WallFallen
	if next.Learned {
		s.Source = next.Source
	}
	return s
}

func sizeInputs(st *stage, s Sizing) map[string]float64 {
	return map[string]float64{
		"attempts": float64(st.model.Attempts), "out_of_memory_attempts": float64(st.model.OutOfMemory),
		"largest_peak_bytes": st.model.Memory.LargestPeak(), "memory_per_unit_of_feature_bytes": s.Term.PerUnit,
		"wall_error_ratio": st.model.WallError.quantile(0.5), "memory_error_ratio": st.model.MemoryError.quantile(0.5),
	}
}

func (d *decider) sizeReason(st *stage, s Sizing) string {
	known := st.model
	switch {
	case s.Learned:
		need := known.need.memory
		return fmt.Sprintf("%s: peaks up to %s, %d percent above the usual for their input with %d percent head-room, %s "+
			"cores used at the 90th percentile",
			s.Source, quantity.Bytes(known.Memory.LargestPeak()), int(math.Round(100*(need.Bound-1))),
			int(math.Round(100*(need.Limit/need.Bound-1))),
			quantity.Milli(math.Round(known.Rates.quantile(0.9))))
	case known.MemoryFallen:
		return "static size: " + offReason("the peak memory", known.MemoryError, d.policy.ErrorBound)
	default:
		return s.Source
	}
}

// growStep and shrinkStep are by how much, as ratios, memory must grow or shrink before it is changed: head-room that
// is used up is given back at once, and what is spare once it has been for settleFor, because memory is what attempts
// wait for.
const growStep, shrinkStep = 0.01, 0.05

// moved reports whether any part of a size changed enough to be changed.
func moved(from, to quantity.Size) bool {
	return !closeTo(float64(from.CPU), float64(to.CPU)) ||
		float64(to.Memory) > (1+growStep)*float64(from.Memory) || float64(to.Memory) < (1-shrinkStep)*float64(from.Memory) ||
		from.GPU != to.GPU || from.GPUMemory != to.GPUMemory || from.DeviceClass != to.DeviceClass
}

func closeTo(a, b float64) bool {
	return math.Abs(a-b) <= sizeStep*max(math.Abs(a), math.Abs(b))
}

func closeTerms(a, b usage.Term) bool {
	return a.Feature == b.Feature && a.Power == b.Power && closeTo(a.PerUnit, b.PerUnit)
}

// sizing models the stage afresh.
func (d *decider) sizing(st *stage) Sizing {
	known := st.model
	known.checkError(d.policy.ErrorBound)
	needs := known.needs(d.policy.Margin)
	s := d.first(st)
	if needs.memoryKnown {
		s.Expected = expectedOf(needs.memory)
	}
	switch {
	case d.policy.Static || d.policy.Shadow || known.MemoryFallen:
		s.Static = true
		if d.policy.Shadow && needs.memoryKnown {
			s.Source = fmt.Sprintf("%s (in shadow; sized: %s)", needs.memory, s.Source)
		}
	case needs.memoryKnown:
		s = d.learned(st, s, needs)
	default:
		s.Floor = min(quantity.Bytes(known.Memory.Unmet()), maxPeakMemory) * GrowAfterOutOfMemory
		s.Base.CPU = d.cpu(st, s.Base.CPU)
	}
	s.Stage, s.Attempts, s.Wall, s.WallFallen = st.ID, known.Attempts, known.wall(), known.WallFallen
	s.Live = d.liveSize(st, s)
	return s
}

// slotOf is the size of one slot at the largest input seen lately.
func (d *decider) slotOf(st *stage, s Sizing) quantity.Size {
	capacity := d.largestHost()
	if capacity.IsZero() {
		return s.Base
	}
	slot, _, _ := s.For(largestNeed(st, s), capacity)
	return slot
}

// largestNeed is the need of the largest attempt that was seen lately or that is announced.
func largestNeed(st *stage, s Sizing) Need {
	need := Need{Input: largestInput(st)}
	for _, term := range []usage.Term{s.Expected.Term, s.Term} {
		if term.Feature == "" {
			continue
		}
		if need.Features == nil {
			need.Features = map[string]float64{}
		}
		need.Features[term.Feature] = st.model.Memory.Largest(term.Feature)
	}
	return need
}

func largestInput(st *stage) quantity.Bytes {
	return max(st.Input, quantity.Bytes(st.model.Memory.Largest(usage.InputBytes)))
}

func expectedOf(need usage.Need) Expected {
	return Expected{Base: need.Base, Term: need.Term, Ratio: Interval{Low: need.Low, Mid: need.Mid, High: need.High}}
}

// first is the static size: the declared one, else the first that the host's room and the input gave. The latter is
// kept with the model, so that falling back leads to the same size every time; a larger input before anything was
// learned makes it anew.
func (d *decider) first(st *stage) Sizing {
	known := st.model
	capacity := d.largestHost()
	if st.Declared != known.FirstDeclared || known.First.Base.IsZero() ||
		(known.Memory.Known() < usage.Enough && st.Input > known.FirstInput) {
		first := FirstSizing(st.ID, st.Declared, st.Input, d.freest(), capacity)
		first.Base.Memory = min(max(first.Base.Memory, d.policy.MinMemory), max(capacity.Memory, d.policy.MinMemory))
		first.Base.CPU = max(first.Base.CPU, leastCPU)
		if capacity.IsZero() {
			return first // nothing to settle on: no host has joined yet
		}
		known.First, known.FirstInput, known.FirstDeclared = first, st.Input, st.Declared
	}
	return known.First
}

// checkError decides whether the predictions are good enough to be used: those of a quantity fall from use when the
// median error of the last attempts passes bound, and come back once it is below bound by a tenth. A wrong time says
// nothing of the memory, nor the other way round.
func (m *model) checkError(bound float64) {
	m.MemoryFallen = m.MemoryError.passes(bound, m.MemoryFallen)
	m.WallFallen = m.WallError.passes(bound, m.WallFallen)
}

// passes reports whether the median of these errors passes bound, as it did before.
func (s series) passes(bound float64, before bool) bool {
	if before {
		bound *= 1 - sizeStep
	}
	return bound > 0 && len(s.Values) >= enoughErrors && s.quantile(0.5) > bound
}

// offReason says by how much predictions of a quantity are off.
func offReason(what string, tracked series, bound float64) string {
	return fmt.Sprintf(
		"predictions of %s were off by %.0f percent in the median of the last %d attempts, more than the bound of "+
			"%.0f percent",
		what, 100*tracked.quantile(0.5), len(tracked.Values), 100*bound)
}

// wall is the run time at the pool that is expected of an attempt: where such predictions have fallen from use, its
// interval is all that came.
func (m *model) wall() Interval {
	walls := m.Walls[Pool]
	expected := walls.interval()
	if m.WallFallen {
		expected.Low, expected.High = walls.quantile(0), walls.largest()
	}
	return expected
}

// tellWall tells that the run time of a stage is predicted in another way from now on.
func (d *decider) tellWall(st *stage, held, next Sizing) {
	if held.WallFallen == next.WallFallen {
		return
	}
	reason := offReason("the run time", st.model.WallError, d.policy.ErrorBound) + ": the interval is all that came"
	if !next.WallFallen {
		reason = fmt.Sprintf("predictions of the run time are off by %.0f percent in the median of the last %d "+
			"attempts: the "+
			"interval is the middle of what came", 100*st.model.WallError.quantile(0.5), len(st.model.WallError.Values))
	}
	written := func(i Interval) string { return seconds(i.Low) + " to " + seconds(i.High) }
	d.decide(Decision{
		Stage: st.ID, Venue: Pool, What: "time", From: written(held.Wall), To: written(next.Wall), Reason: reason,
		Inputs: sizeInputs(st, next), Predicted: next.Wall, PredictedUnit: "seconds",
	})
}

// learned sizes by what attempts took: see [usage.Learn] for the memory.
func (d *decider) learned(st *stage, first Sizing, needs learned) Sizing {
	memory := needs.memory
	s := first
	s.Learned, s.Guess, s.Source = true, false, memory.String()
	s.Term = usage.Term{
		Feature: memory.Term.Feature, Power: memory.Term.Power,
		PerUnit: memory.Term.PerUnit * memory.Limit,
	}
	s.Base.Memory = max(roundUp(quantity.Bytes(min(memory.Base*memory.Limit, mostMemory)), quantity.MiB),
		d.policy.MinMemory)
	s.Base.CPU = d.cpu(st, first.Base.CPU)
	if device := needs.gpuMemory; needs.gpuMemoryKnown && first.Base.GPU > 0 {
		// The largest that was ever needed: one term travels with a sizing, and it is the host's.
		s.Base.GPUMemory = roundUp(quantity.Bytes(min(st.model.GPUMemory.LargestPeak()*device.Limit/device.Bound,
			mostMemory)), quantity.MiB)
	}
	return s
}

// cpu is the 90th percentile of the rates in steps of 50, one core for what uses one, and at least double the limit
// that held attempts back.
func (d *decider) cpu(st *stage, otherwise quantity.Milli) quantity.Milli {
	rates := st.model.Rates
	ceiling := max(d.largestHost().CPU, leastCPU)
	if len(rates.Values) < enoughRates {
		if st.model.starved() {
			return min(max(otherwise, 2*st.model.Starved), ceiling)
		}
		return otherwise
	}
	rate := quantity.Milli(math.Ceil(rates.quantile(0.9)))
	if st.model.starved() {
		rate = max(rate, 2*st.model.Starved)
	}
	fastest := quantity.Milli(rates.largest())
	if rate >= oneCoreFrom && rate <= oneCoreTo || rate >= keptWaiting && rate < oneCoreFrom && fastest >= oneCoreFrom {
		rate = quantity.Core
	}
	held := st.Slot.CPU
	share, worth := st.model.busy(), shortTask
	if st.Sizing.Learned && held > 0 && held < quantity.Core {
		worth = stillShort // a stage between the two keeps what it has
	}
	if share < worth {
		rate = quantity.Milli(math.Ceil(float64(rate) * share))
	}
	return min(max(roundUp(rate, cpuStep), leastCPU), ceiling)
}

// turnaround is how long a slot is without work between two tasks, in seconds: the answer to Temporal, the poll and the
// reading of the next task. Counted as busy, it would leave a core idle for most of the time that tasks of a
// millisecond wait: at 1 ms each, one slot does 90 a second and eleven do a thousand (TestShortTasksShareACore).
const turnaround = 0.010

// A stage shares cores when its slots are busy for less than shortTask of their time, and until they are for more than
// stillShort.
const shortTask, stillShort = 0.70, 0.80

// busy is the part of a slot's time in which it runs user code.
func (m *model) busy() float64 {
	wall, _, known := m.pool()
	if !known || wall <= 0 {
		return 1
	}
	return wall / (wall + turnaround)
}

func roundUp[N ~int64](value, step N) N {
	return (max(value, 0) + step - 1) / step * step
}

// largestHost is the capacity of the host with the most memory, then cores; zero without hosts.
func (d *decider) largestHost() quantity.Size {
	return largest(d.hosts, func(h *hostRoom) quantity.Size { return h.Capacity })
}

// freest is the room of the host with the most free memory, then cores; zero without hosts.
func (d *decider) freest() quantity.Size {
	return largest(d.hosts, func(h *hostRoom) quantity.Size { return h.Free })
}

func largest(hosts []*hostRoom, of func(*hostRoom) quantity.Size) quantity.Size {
	if len(hosts) == 0 {
		return quantity.Size{}
	}
	return of(slices.MaxFunc(hosts, func(a, b *hostRoom) int {
		return cmp.Or(cmp.Compare(of(a).Memory, of(b).Memory), cmp.Compare(of(a).CPU, of(b).CPU), -cmp.Compare(a.ID, b.ID))
	}))
}
