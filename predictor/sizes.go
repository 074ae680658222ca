package predictor

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/predictor/words"
)

// resize settles how attempts of the stage are sized, keeping the last size while the new one is close, and says why it
// changed. Without a host that has its GPUs nothing says how much there is to give: what is held stays.
func (d *decider) resize(w *work) {
	st := w.stage
	held, before := st.Sizing, st.Slot
	next := d.sizing(w)
	slot := d.slotOf(st, next)
	d.tellWall(st, held, next)
	d.tellChange(st, held, next)
	if before.IsZero() && !held.Base.IsZero() { // the plan in force had no slot of it
		before = d.slotOf(st, held)
	}
	known := !before.IsZero()
	switch {
	case known && (len(d.hosts) == 0 || sameGPUs(held.Base, next.Base) && !d.hosts.Equipped(next.Base)):
		next, slot = held.Predicting(next), before
	case known && held.Learned && next.Learned:
		next, slot = d.settled(st, next, slot)
	case known && !size.Moved(before, slot) && held.Static == next.Static && held.Learned == next.Learned &&
		size.CloseTerms(held.Term, next.Term):
		next, slot = held.Predicting(next), before
	default:
		st.Settling = memory.Settling{}
	}
	expected := next.Expected.At(largestNeed(st, next).Values())
	switch {
	case !known && len(d.hosts) > 0:
		d.decide(plan.Decision{
			Stage: st.ID, Venue: fact.Pool, What: "size", From: "none", To: slot.String(),
			Reason: d.firstReason(next, slot), Inputs: sizeInputs(st, next), Predicted: expected, PredictedUnit: "bytes",
		})
	case known && (size.Moved(before, slot) || held.Static != next.Static):
		d.decide(plan.Decision{
			Stage: st.ID, Venue: fact.Pool, What: "size", From: before.String(), To: slot.String(),
			Reason: d.sizeReason(w, next, slot), Inputs: sizeInputs(st, next), Predicted: expected, PredictedUnit: "bytes",
		})
	}
	st.Sizing = next
	if known && slot.CPU != st.Slot.CPU {
		st.CPUAt = max(1, d.memory.Clock)
	}
	if known || len(d.hosts) > 0 {
		st.Slot = slot
	}
	w.size = slot
	d.time(w, slot.CPU)
	d.plan.Sizings = append(d.plan.Sizings, next)
}

// firstReason also tells who waits for a host that has not joined: nobody else does, as long as it has no slot.
func (d *decider) firstReason(s size.Sizing, slot quantity.Size) string {
	if lacking := d.hosts.Lacking(slot); lacking != "" {
		return "first size: " + s.Source + "; " + lacking
	}
	return "first size: " + s.Source
}

func sameGPUs(a, b quantity.Size) bool { return a.GPU == b.GPU && a.DeviceClass == b.DeviceClass }

func sizeInputs(st *memory.Stage, s size.Sizing) map[string]float64 {
	return map[string]float64{
		"attempts": float64(st.Model.Attempts), "out_of_memory_attempts": float64(st.Model.OutOfMemory),
		"largest_peak_bytes": st.Model.Memory.LargestPeak(), "memory_per_unit_of_feature_bytes": s.Term.PerUnit,
		"wall_error_ratio": st.Model.WallError.Quantile(0.5), "memory_error_ratio": st.Model.MemoryError.Quantile(0.5),
	}
}

func (d *decider) sizeReason(w *work, s size.Sizing, slot quantity.Size) string {
	known := w.stage.Model
	switch {
	case s.Learned && !(known.Need.Memory.Bound > 0):
		return s.Source + ": no peak was measured since, " + d.cores(w).Why(slot.CPU)
	case s.Learned:
		need := known.Need.Memory
		return fmt.Sprintf("%s: peaks up to %s, %d percent above the usual for their input with %d percent head-room, %s "+
			"cores used at the 90th percentile",
			s.Source, quantity.Bytes(known.Memory.LargestPeak()), int(math.Round(100*(need.Bound-1))),
			int(math.Round(100*(need.Limit/need.Bound-1))),
			quantity.Milli(math.Round(known.Rates.Quantile(0.9)))) + ", " + d.cores(w).Why(slot.CPU)
	case known.MemoryFallen:
		return "static size: " + offReason("the peak memory", known.MemoryError, d.policy.ErrorBound)
	default:
		return s.Source
	}
}

// sizing models the stage afresh.
func (d *decider) sizing(w *work) size.Sizing {
	st := w.stage
	known := st.Model
	known.CheckError(d.policy.ErrorBound)
	needs := known.Needs(d.policy.Margin, func() float64 { return d.excess(w).Price() })
	s := d.first(st)
	if needs.MemoryKnown {
		s.Expected = size.ExpectedOf(needs.Memory)
	}
	switch {
	case d.policy.Static || d.policy.Shadow || known.MemoryFallen:
		s.Static = true
		if !d.policy.Static && !d.policy.Shadow { // peaks that are off say nothing of the rest
			s = d.device(st, s, needs)
			s.Base.CPU = d.cpu(w, s.Base.CPU)
		}
		if d.policy.Shadow && needs.MemoryKnown {
			s.Source = fmt.Sprintf("%s (in shadow; sized: %s)", needs.Memory, s.Source)
		}
	case needs.MemoryKnown:
		s = d.learned(w, s, needs)
	default:
		s.Floor = min(quantity.Bytes(known.Memory.Unmet()), fact.MaxPeakMemory) * size.GrowAfterOutOfMemory
		if s.Guess && !known.Fixed { // those are held to the first size, which is no guess at what they take
			s = d.guessed(st, s)
		}
		s.Base.CPU = d.cpu(w, s.Base.CPU)
	}
	s.Stage, s.Attempts = st.ID, known.Attempts
	s.Duration, s.Speed, s.AtFunctions = needs.Wall, needs.Speed, known.AtFunctions()
	s.Wall, s.WallFallen = known.Wall(), known.WallFallen
	s.Live = d.liveSize(st, s)
	return s
}

// slotOf is the size of one slot at the largest input seen lately.
func (d *decider) slotOf(st *memory.Stage, s size.Sizing) quantity.Size {
	capacity := d.largestFor(s.Base)
	if capacity.IsZero() {
		return s.Base
	}
	slot, _, _ := s.For(largestNeed(st, s), capacity)
	return slot
}

// largestNeed is the need of the largest attempt that was seen lately or that is announced. Where several features
// explain it, it is that of one attempt: none has the largest of each, nor is of two kinds.
func largestNeed(st *memory.Stage, s size.Sizing) size.Need {
	need := size.Need{Input: largestInput(st)}
	for i, term := range []usage.Term{s.Expected.Term, s.Term} {
		if term == (usage.Term{}) {
			continue
		}
		if need.Features == nil {
			need.Features = map[string]float64{}
		}
		if term.Simple() {
			need.Features[term.Feature] = st.Model.Memory.Largest(term.Feature)
			continue
		}
		most := -1.0
		for _, features := range st.Model.Memory.Features() {
			features.Input = max(features.Input, float64(st.Input))
			takes := s.Limits().At(features)
			if i == 0 {
				takes = s.Expected.At(features).Mid
			}
			if takes > most {
				most, need.Features, need.Input = takes, features.Named, quantity.Bytes(features.Input)
			}
		}
	}
	return need
}

func largestInput(st *memory.Stage) quantity.Bytes {
	return max(st.Input, quantity.Bytes(st.Model.Memory.Largest(usage.InputBytes)))
}

// offReason says by how much predictions of a quantity are off.
func offReason(what string, tracked usage.Series, bound float64) string {
	return fmt.Sprintf(
		"predictions of %s were off by %.0f percent in the median of the last %d attempts, more than the bound of "+
			"%.0f percent",
		what, 100*tracked.Quantile(0.5), len(tracked.Values), 100*bound)
}

// tellWall tells that the run time of a stage is predicted in another way from now on.
func (d *decider) tellWall(st *memory.Stage, held, next size.Sizing) {
	if held.WallFallen == next.WallFallen {
		return
	}
	reason := offReason("the run time", st.Model.WallError, d.policy.ErrorBound) + ": the interval is all that came"
	if !next.WallFallen {
		reason = fmt.Sprintf("predictions of the run time are off by %.0f percent in the median of the last %d "+
			"attempts: the "+
			"interval is the middle of what came", 100*st.Model.WallError.Quantile(0.5), len(st.Model.WallError.Values))
	}
	written := func(i fact.Interval) string { return words.Seconds(i.Low) + " to " + words.Seconds(i.High) }
	d.decide(plan.Decision{
		Stage: st.ID, Venue: fact.Pool, What: "time", From: written(held.Wall), To: written(next.Wall), Reason: reason,
		Inputs: sizeInputs(st, next), Predicted: next.Wall, PredictedUnit: "seconds",
	})
}

// tellChange tells that a build of the stage has another need than the one before.
func (d *decider) tellChange(st *memory.Stage, held, next size.Sizing) {
	change := st.Model.Change
	if change.Attempts == 0 || held.Attempts == 0 || held.Attempts >= change.Attempts {
		return
	}
	expected := next.Expected.At(largestNeed(st, next).Values())
	if !(expected.Mid > 0) || !(change.Factor > 0) { // nothing is known that it would be beside
		return
	}
	d.decide(plan.Decision{
		Stage: st.ID, Venue: fact.Pool, What: "need",
		From: quantity.Bytes(expected.Mid / change.Factor).String(), To: quantity.Bytes(expected.Mid).String(),
		Reason: fmt.Sprintf("three attempts of build %s in a row took about %.2g times the memory that was expected; what "+
			"earlier builds took counts no longer", change.Build, change.Factor),
		Inputs: sizeInputs(st, next), Predicted: expected, PredictedUnit: "bytes",
	})
}

// learned sizes by what attempts took: see [usage.Learn] for the memory.
func (d *decider) learned(w *work, first size.Sizing, needs memory.Learned) size.Sizing {
	st := w.stage
	peaks := needs.Memory
	s := first
	s.Learned, s.Guess, s.Source = true, false, peaks.String()
	s.Term, s.Levels = peaks.Term.Scaled(peaks.Limit), peaks.Levels
	least := max(size.Least(quantity.Bytes(st.Model.Memory.LargestPeak()), st.Model.Fixed), d.policy.MinMemory)
	s.Base.Memory = max(size.RoundUp(quantity.Bytes(min(peaks.Base*peaks.Limit, size.MostMemory)), quantity.MiB), least)
	if s.Levels.Name != "" {
		s.Levels.Other, s.Floor = peaks.Unseen, max(s.Floor, least)
	}
	if peaks.Most > 0 {
		s.Most = max(size.RoundUp(quantity.Bytes(min(peaks.Most, size.MostMemory)), quantity.MiB), least)
	}
	s.Base.CPU = d.cpu(w, first.Base.CPU)
	return d.device(st, s, needs)
}

// device sizes the memory of a device by what attempts took of it.
func (d *decider) device(st *memory.Stage, s size.Sizing, needs memory.Learned) size.Sizing {
	if device := needs.GPUMemory; needs.GPUMemoryKnown && s.Base.GPU > 0 {
		// The largest that was ever needed: one term travels with a sizing, and it is the host's.
		s.Base.GPUMemory = size.RoundUp(quantity.Bytes(min(st.Model.GPUMemory.LargestPeak()*device.Limit/device.Bound,
			size.MostMemory)), quantity.MiB)
		s.GPUPeak = quantity.Bytes(min(st.Model.GPUMemory.LargestPeak(), size.MostMemory))
	}
	return s
}

// enoughSamples is how many samples a size of running attempts must rest on: a start says little about what follows.
const enoughSamples = 60

// liveSize is what running attempts of the stage should hold; zero while that is not known, or not asked for.
func (d *decider) liveSize(st *memory.Stage, s size.Sizing) quantity.Size {
	if st.Live == nil || s.Learned || s.Static {
		return quantity.Size{}
	}
	if len(d.hosts) == 0 {
		return st.Live.Told
	}
	cpu, peak := st.Live.CPU.Limit(), st.Live.Memory.Limit()
	if cpu.Samples < enoughSamples || peak.Samples < enoughSamples {
		return quantity.Size{}
	}
	advised := quantity.Size{
		CPU: size.CPUOf(quantity.Milli(min(cpu.Value, float64(fact.MaxRate)))),
		Memory: max(size.RoundUp(quantity.Bytes(min(peak.Value, size.MostMemory)), quantity.MiB), d.policy.MinMemory,
			size.Least(st.Live.Peak, st.Model.Fixed)),
	}
	if st.Model.HeldBack() > 0 {
		advised.CPU = max(advised.CPU, s.Base.CPU)
	}
	most := d.largestFor(s.Base)
	if most.IsZero() { // there is no host that it could hold it on
		return st.Live.Told
	}
	advised = advised.AtMost(most)
	if told := st.Live.Told; !told.IsZero() && !size.Moved(told, advised) {
		return told
	}
	before := st.Live.Told
	from := "what they were admitted with"
	if !before.IsZero() {
		from = before.String()
	}
	d.decide(plan.Decision{
		Stage: st.ID, Venue: fact.Pool, What: "live size", From: from, To: advised.String(),
		Reason: fmt.Sprintf("%d samples of attempts that run: memory by the %s, CPU by the %s", peak.Samples, peak.Model,
			cpu.Model),
		Inputs: map[string]float64{"samples": float64(peak.Samples), "cpu_milli": cpu.Value, "memory_bytes": peak.Value},
	})
	st.Live.Told = advised
	return advised
}

// What the last attempts took goes up and down, and so does the line that is fitted to it; a limit that follows is
// another within the second. So limits that are learned are raised at once, as far as they must be, and lowered only
// when less has been enough for settleFor, or settleSoon where muchSpare is to spare, to what was the most meanwhile: a
// large part keeps others waiting. What was guessed or declared gives way to what is learned at once.
const (
	settleFor  = fact.Instant(2 * time.Minute)
	settleSoon = fact.Instant(30 * time.Second)
	muchSpare  = 1.0 / 3
)

// settled is next with the limits that the stage holds where these are enough and have not been too much for long, and
// the size of a slot with them. Both are learned.
func (d *decider) settled(st *memory.Stage, next size.Sizing, slot quantity.Size) (size.Sizing, quantity.Size) {
	need, held := next.Limits(), st.Sizing.Limits()
	otherDevice := need.Base.GPU != held.Base.GPU || need.Base.DeviceClass != held.Base.DeviceClass
	if otherDevice || need == held && slot == st.Slot {
		st.Settling = memory.Settling{}
		return next, slot
	}
	largest, among := d.probes(st, need.Term, held.Term, st.Settling.Enough.Term)
	kept := held
	if held.Short(need, among) {
		kept = held.Raised(need.Ahead(), largest, among)
	}
	next = next.Limited(kept)
	sized := d.slotOf(st, next)
	keptSlot := size.LargerOf(sized, st.Slot).AtMost(d.largestFor(next.Base))
	keptSlot.GPUMemory = sized.GPUMemory // that of whole GPUs keeps nobody out
	if !kept.Spare(need, among) && !size.Moved(keptSlot, slot) {
		st.Settling = memory.Settling{}
		return next, keptSlot
	}
	clock := max(1, d.memory.Clock)
	if st.Settling.Since == 0 {
		st.Settling = memory.Settling{Since: clock, Enough: need, Slot: slot}
	}
	st.Settling.Enough = st.Settling.Enough.Raised(need, largest, among)
	st.Settling.Slot = size.LargerOf(st.Settling.Slot, slot)
	waited := clock - st.Settling.Since
	if waited < settleSoon || waited < settleFor && !muchToSpare(st, kept, keptSlot) {
		return next, keptSlot
	}
	next = next.Limited(st.Settling.Enough)
	keptSlot = st.Settling.Slot
	st.Settling = memory.Settling{Since: clock, Enough: need, Slot: slot}
	return next, keptSlot
}

// muchToSpare reports whether muchSpare of what is kept would have been enough without: of a slot, which is that of the
// largest attempt and no more than a host, or of all the latest attempts.
func muchToSpare(st *memory.Stage, kept size.Limits, keptSlot quantity.Size) bool {
	enough := st.Settling.Slot
	return float64(enough.CPU) < (1-muchSpare)*float64(keptSlot.CPU) ||
		float64(enough.Memory) < (1-muchSpare)*float64(keptSlot.Memory) ||
		kept.Beyond(st.Settling.Enough, st.Model.Memory.Features()[:st.Model.Memory.Len()]) > muchSpare
}

// probes are the largest features that were seen lately, and all at which limits with these terms are compared: none,
// the largest, and, where they grow with different ones or with several, those of every attempt that is remembered.
func (d *decider) probes(st *memory.Stage, terms ...usage.Term) (largest usage.Features, among []usage.Features) {
	names := map[string]float64{}
	for _, term := range terms {
		for _, name := range term.Names() {
			if name != usage.InputBytes {
				names[name] = st.Model.Memory.Largest(name)
			}
		}
	}
	largest = usage.Features{Input: float64(largestInput(st)), Named: names}
	among = []usage.Features{{}, largest}
	first := cmp.Or(terms...) // none where all are
	for _, term := range terms {
		if !term.Simple() {
			return largest, append(among[:1], st.Model.Memory.Features()...)
		}
		if term.Feature != "" && term.Feature != first.Feature {
			return largest, append(among, st.Model.Memory.Features()...)
		}
	}
	return largest, among
}

// first is the static size: the declared one, else the first that the host's room and the input gave. The latter is
// kept with the model, so that falling back leads to the same size every time; a larger input before anything was
// learned makes it anew.
func (d *decider) first(st *memory.Stage) size.Sizing {
	known := st.Model
	capacity := d.largestFor(st.Declared)
	if st.Declared != known.FirstDeclared || known.First.Base.IsZero() ||
		(known.Memory.Known() < usage.Enough && st.Input > known.FirstInput) {
		first := size.FirstSizing(st.ID, st.Declared, st.Input, d.hosts.FreestFor(st.Declared), capacity)
		first.Base.Memory = min(max(first.Base.Memory, d.policy.MinMemory), max(capacity.Memory, d.policy.MinMemory))
		first.Base.CPU = max(first.Base.CPU, size.LeastCPU)
		if capacity.IsZero() {
			return first // nothing to settle on: no host has joined yet
		}
		known.First, known.FirstInput, known.FirstDeclared = first, st.Input, st.Declared
	}
	return known.First
}

// guessed sizes a stage of which too few attempts have ended by what is alike: see [size.Prior]. What is thought is
// thought anew when an attempt of its own has ended, or runs that has grown beyond it; what others do meanwhile changes
// nothing. It is lowered where muchSpare of it is to spare: each of the first attempts tells a little more.
func (d *decider) guessed(st *memory.Stage, first size.Sizing) size.Sizing {
	held, known := st.Sizing, st.Model
	if len(d.hosts) == 0 {
		if held.Grows() { // what is thought holds, though nothing says how much there is to give
			first.Floor, first.Expected, first.Source = max(first.Floor, held.Floor), held.Expected, held.Source
		}
		return first
	}
	grown := quantity.Bytes(0)
	if held.Grows() && !st.Slot.IsZero() {
		if st.Live != nil && st.Live.Peak > guessAt(held, largestNeed(st, held)) {
			grown = st.Live.Peak
		}
		if grown == 0 && held.Attempts == known.Attempts {
			first.Base.Memory, first.Term, first.Floor = held.Base.Memory, held.Term, max(first.Floor, held.Floor)
			first.Expected, first.Source = held.Expected, held.Source
			return first
		}
	}
	largest := d.largestFor(first.Base)
	s := first.Guessed(d.prior(st), known.Experience(),
		quantity.Bytes(known.Memory.Largest(usage.InputBytes)), grown, min(d.policy.MinMemory, largest.Memory))
	s.Base = s.Base.AtMost(largest)
	need := largestNeed(st, s)
	now, before := guessAt(s, need), guessAt(held, need)
	if held.Grows() && s.Term == held.Term && now < before && float64(now) > (1-muchSpare)*float64(before) {
		s.Base.Memory, s.Floor = held.Base.Memory, max(s.Floor, held.Floor)
	}
	return s
}

// guessAt is the memory of an attempt that needs so much.
func guessAt(s size.Sizing, need size.Need) quantity.Bytes {
	return max(s.Base.Memory+quantity.Bytes(s.Term.At(need.Values())), s.Floor)
}

// prior is what stages that have something in common with this one tell of its peaks.
func (d *decider) prior(st *memory.Stage) size.Prior {
	weak := size.WeakPrior(st.Model.Program, st.Model.Imports)
	return d.told(st, weak, float64(st.Input), (*memory.Model).Experience)
}

// usualWall is how many seconds a task of a stage of which no attempt has ended takes in the mean, by what others that
// have something in common with it took.
func (d *decider) usualWall(w *work) float64 {
	if seconds := w.usualWall; seconds > 0 {
		return seconds
	}
	prior := d.told(w.stage, size.WeakWall(), w.input(), (*memory.Model).WallExperience)
	w.usualWall = min(math.Exp(prior.Mean), fact.MaxWall.Seconds())
	return w.usualWall
}

// told is a prior corrected by what other stages tell of a quantity: see [memory.Experienced.Prior].
func (d *decider) told(
	st *memory.Stage, weak size.Prior, input float64, of func(*memory.Model) size.Experience,
) size.Prior {
	if d.experienced == nil {
		d.experienced = d.memory.Experienced()
	}
	return d.experienced.Prior(st, weak, input, of)
}
