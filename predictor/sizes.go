package predictor

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// sizeStep is by how much, as a ratio, a size must move before it is changed: a limit that follows every attempt would restart
// children and fill the ledger with decisions that change nothing.
const sizeStep = 0.10

const (
	cpuStep  quantity.Milli = 50
	leastCPU quantity.Milli = 100
	// A mean rate between these uses one core whenever it may run: reading input and waiting for a neighbour keep it below, a garbage
	// collector lifts it above. A limit below one core would slow it by exactly the part it is short.
	oneCoreFrom, oneCoreTo quantity.Milli = 850, 1050
	// A rate this close to its grant may have been held back by it, as a ratio.
	heldBack = 0.95
)

// resize settles how attempts of the stage are sized, keeping the last size while the new one is close, and says why it changed.
func (d *decider) resize(w *work) {
	st := w.stage
	next, slot := d.sizing(st)
	before, held := st.Slot, st.Sizing
	switch {
	case before.IsZero():
		d.decide(Decision{
			Stage: st.ID, Venue: Pool, What: "size", From: "none", To: slot.String(),
			Reason: "first size: " + next.Source, Inputs: sizeInputs(st, next), Predicted: next.Memory, PredictedUnit: "bytes",
		})
	case !moved(before, slot) && held.Static == next.Static && held.Learned == next.Learned && closeTo(held.MemoryPerInput, next.MemoryPerInput):
		held.Floor, held.Memory, held.Wall, held.Attempts = next.Floor, next.Memory, next.Wall, next.Attempts
		if next.Learned {
			held.Source = next.Source
		}
		next, slot = held, before
	case moved(before, slot) || held.Static != next.Static:
		d.decide(Decision{
			Stage: st.ID, Venue: Pool, What: "size", From: before.String(), To: slot.String(),
			Reason: d.sizeReason(st, next), Inputs: sizeInputs(st, next), Predicted: next.Memory, PredictedUnit: "bytes",
		})
	}
	st.Sizing, st.Slot = next, slot
	w.size = slot
	d.plan.Sizings = append(d.plan.Sizings, next)
}

func sizeInputs(st *stage, s Sizing) map[string]float64 {
	return map[string]float64{
		"attempts": float64(st.model.Attempts), "out_of_memory_attempts": float64(st.model.OutOfMemory),
		"largest_peak_bytes": st.model.Peaks.largest(), "memory_per_input_byte": s.MemoryPerInput,
		"wall_error_ratio": st.model.WallError.quantile(0.5),
	}
}

func (d *decider) sizeReason(st *stage, s Sizing) string {
	known := st.model
	switch {
	case s.Learned:
		return fmt.Sprintf("%s: %s peak at the 95th percentile and %d percent head-room, %s cores used at the 90th",
			s.Source, quantity.Bytes(known.Peaks.quantile(0.95)), int(math.Round(100*d.policy.Margin)),
			quantity.Milli(math.Round(known.Rates.quantile(0.9))))
	case known.Fallen:
		return fmt.Sprintf("static size: predictions of the run time were off by %.0f percent in the median of the last %d attempts, more than the bound of %.0f percent",
			100*known.WallError.quantile(0.5), len(known.WallError.Values), 100*d.policy.ErrorBound)
	default:
		return s.Source
	}
}

// moved reports whether any part of a size changed by more than sizeStep.
func moved(from, to quantity.Size) bool {
	return !closeTo(float64(from.CPU), float64(to.CPU)) || !closeTo(float64(from.Memory), float64(to.Memory)) ||
		from.GPU != to.GPU || from.GPUMemory != to.GPUMemory || from.DeviceClass != to.DeviceClass
}

func closeTo(a, b float64) bool {
	return math.Abs(a-b) <= sizeStep*max(math.Abs(a), math.Abs(b))
}

// sizing models the stage afresh and returns the size of one slot at the largest input seen lately.
func (d *decider) sizing(st *stage) (Sizing, quantity.Size) {
	known := st.model
	known.judge(d.policy.ErrorBound)
	first := d.first(st)
	if d.policy.Static || known.Fallen {
		first.Static = true
		first.Learned = false
	} else if len(known.Peaks.Values) >= enoughPeaks {
		first = d.learned(st, first)
	}
	first.Stage, first.Attempts, first.Wall = st.ID, known.Attempts, known.Walls[Pool].interval()
	input := max(st.Input, quantity.Bytes(known.Inputs.largest()))
	capacity := d.largestHost()
	if capacity.IsZero() {
		return first, first.Base
	}
	slot, _, _ := first.For(Need{Input: input}, capacity)
	return first, slot
}

// first is the static size: the declared one, else the first that the host's room and the input gave. The latter is kept with the model,
// so that falling back leads to the same size every time; a larger input before anything was learned makes it anew.
func (d *decider) first(st *stage) Sizing {
	known := st.model
	capacity := d.largestHost()
	if !st.Declared.IsZero() || known.First.Base.IsZero() || (known.Successes < enoughPeaks && st.Input > known.FirstInput) {
		first := FirstSizing(st.ID, st.Declared, st.Input, d.freest(), capacity)
		first.Base.Memory = min(max(first.Base.Memory, d.policy.MinMemory), max(capacity.Memory, d.policy.MinMemory))
		first.Base.CPU = max(first.Base.CPU, leastCPU)
		if capacity.IsZero() {
			return first // nothing to settle on: no host has joined yet
		}
		known.First, known.FirstInput = first, st.Input
	}
	return known.First
}

// judge decides whether the predictions are good enough to size by: they fall from use when the median error of the run times of the last
// attempts passes bound, and come back once it is below bound again by a tenth.
func (m *model) judge(bound float64) {
	if bound <= 0 || len(m.WallError.Values) < enoughErrors {
		m.Fallen = false
		return
	}
	typical := m.WallError.quantile(0.5)
	if m.Fallen {
		bound *= 1 - sizeStep
	}
	m.Fallen = typical > bound
}

// learned sizes by what attempts took. With peaks p, inputs x and the robust slope b of p over x (0 when inputs hardly vary):
//
//	rest = p - b x
//	memory(x) = p95(rest) (1 + margin) + margin b max(x) + b x, up to whole MiB
//
// which is at least (1 + margin) times the expected 95th percentile at every input seen. Floor is the largest rest, so that no attempt
// that was seen lately would have failed; after an attempt that ran out of memory at g, at least 2 g until a success shows the need.
// The quantile and the margin follow the recommender of Kubernetes' vertical pod autoscaler
// (https://github.com/kubernetes/autoscaler/tree/master/vertical-pod-autoscaler/pkg/recommender/logic).
func (d *decider) learned(st *stage, first Sizing) Sizing {
	known := st.model
	over := known.fit()
	margin := d.policy.Margin
	memory := over.rest.quantile(0.95)*(1+margin) + margin*over.slope*known.Inputs.largest()
	s := Sizing{
		Base:           first.Base,
		MemoryPerInput: over.slope,
		Floor:          quantity.Bytes(math.Ceil(over.rest.largest())),
		Memory:         over.over,
		Source:         fmt.Sprintf("%d attempts", known.Attempts),
		Learned:        true,
	}
	s.Base.Memory = max(roundUp(quantity.Bytes(memory), quantity.MiB), d.policy.MinMemory)
	if failed := known.stillFailing(); failed > 0 {
		atZero := failed*GrowAfterOutOfMemory - quantity.Bytes(over.slope*float64(known.FailedInput))
		s.Floor = max(s.Floor, atZero)
	}
	s.Base.CPU = d.cpu(st, first.Base.CPU)
	return s
}

// stillFailing is the largest grant that was not enough, as long as no success lately took more; 0 otherwise.
func (m *model) stillFailing() quantity.Bytes {
	if m.Failed <= 0 || m.Successes-m.FailedAt > failuresFade || float64(m.Failed) < m.Peaks.largest() {
		return 0
	}
	return m.Failed
}

// cpu is the 90th percentile of the rates in steps of 50, one core for what uses one, and double while a grant below one core holds back.
func (d *decider) cpu(st *stage, otherwise quantity.Milli) quantity.Milli {
	rates := st.model.Rates
	if len(rates.Values) < enoughPeaks {
		return otherwise
	}
	rate := quantity.Milli(math.Ceil(rates.quantile(0.9)))
	held := st.Slot.CPU
	if st.Sizing.Learned && held > 0 && held < quantity.Core && float64(rate) >= heldBack*float64(held) {
		rate = min(2*held, quantity.Core)
	}
	if rate >= oneCoreFrom && rate <= oneCoreTo {
		rate = quantity.Core
	}
	share, worth := st.model.busy(), shortTask
	if st.Sizing.Learned && held > 0 && held < quantity.Core {
		worth = stillShort // a stage between the two keeps what it has
	}
	if share < worth {
		rate = quantity.Milli(math.Ceil(float64(rate) * share))
	}
	ceiling := max(d.largestHost().CPU, leastCPU)
	return min(max(roundUp(rate, cpuStep), leastCPU), ceiling)
}

// turnaround is how long a slot is without work between two tasks, in seconds: the answer to Temporal, the poll and the reading of the next
// task. Counted as busy, it would leave a core idle for most of the time that tasks of a millisecond wait: at 1 ms each, one slot does 90 a
// second and eleven do a thousand (TestShortTasksShareACore).
const turnaround = 0.010

// A stage shares cores when its slots are busy for less than shortTask of their time, and until they are for more than stillShort.
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
