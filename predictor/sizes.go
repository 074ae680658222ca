package predictor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
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
	case known && (len(d.hosts) == 0 || sameGPUs(held.Base, next.Base) && !d.equipped(next.Base)):
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
	if lacking := d.lacking(slot); lacking != "" {
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

// first is the static size: the declared one, else the first that the host's room and the input gave. The latter is
// kept with the model, so that falling back leads to the same size every time; a larger input before anything was
// learned makes it anew.
func (d *decider) first(st *memory.Stage) size.Sizing {
	known := st.Model
	capacity := d.largestFor(st.Declared)
	if st.Declared != known.FirstDeclared || known.First.Base.IsZero() ||
		(known.Memory.Known() < usage.Enough && st.Input > known.FirstInput) {
		first := size.FirstSizing(st.ID, st.Declared, st.Input, d.freestFor(st.Declared), capacity)
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
	s := first.Guessed(d.prior(known, st.ID.App), known.Experience(),
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

// prior is what stages that have something in common with one of this app tell of its peaks.
func (d *decider) prior(known *memory.Model, app string) size.Prior {
	return d.learnedOf(known, app, size.WeakPrior(known.Program, known.Imports), (*memory.Model).Experience)
}

// usualWall is how many seconds a task of a stage of which no attempt has ended takes in the mean, by what others that
// have something in common with it took.
func (d *decider) usualWall(w *work) float64 {
	if seconds := w.usualWall; seconds > 0 {
		return seconds
	}
	prior := d.learnedOf(w.stage.Model, w.stage.ID.App, size.WeakWall(), (*memory.Model).WallExperience)
	w.usualWall = min(math.Exp(prior.Mean), fact.MaxWall.Seconds())
	return w.usualWall
}

// learnedOf is a prior that is corrected by what other stages tell of a quantity, those last that have most in common
// with one of this app.
func (d *decider) learnedOf(
	known *memory.Model, app string, weak size.Prior, of func(*memory.Model) size.Experience,
) size.Prior {
	if d.experienced == nil {
		d.experienced = d.memory.Experienced()
	}
	var others, program, ofApp, both, some, same, named []size.Experience
	name := strings.TrimPrefix(known.Name, app)
	imported := func(module string) bool { return slices.Contains(known.Imports, module) }
	for _, other := range d.experienced {
		sameApp := strings.HasPrefix(other.Name, app+"/")
		sameProgram := other.Program != "" && other.Program == known.Program
		switch set := of(other); {
		case other == known:
		case sameProgram && strings.HasSuffix(other.Name, name):
			named = append(named, set)
		case sameProgram && known.Imports != nil && slices.Equal(other.Imports, known.Imports) && other.Imports != nil:
			same = append(same, set)
		case slices.ContainsFunc(other.Imports, imported):
			some = append(some, set)
		case sameApp && sameProgram:
			both = append(both, set)
		case sameApp:
			ofApp = append(ofApp, set)
		case sameProgram:
			program = append(program, set)
		default:
			others = append(others, set)
		}
	}
	in, importing := "with "+known.Program, "that import no modules of others, either"
	if known.Program == fact.GoProgram {
		in = "in Go"
	}
	if len(known.Imports) > 0 {
		importing = "that import " + listed(known.Imports)
	}
	return weak.Learn("elsewhere", others).Learn(in, program).
		Learn("of "+app, ofApp).Learn("of "+app+" "+in, both).
		Learn("that import some of the same modules", some).Learn(in+" "+importing, same).
		Learn(in+" called "+strings.TrimPrefix(name, "/"), named)
}

// listed names the first of some modules.
func listed(modules []string) string {
	const named = 3
	if more := len(modules) - named; more > 0 {
		return strings.Join(modules[:named], ", ") + " and " + words.Count(more, "other")
	}
	return strings.Join(modules, ", ")
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

// cpu is the share of cores that attempts get by the speed that is known. In a steady state it changes once a minute at
// most: how many tasks wait, and so how much a core is worth, may be another at every tick. What holds attempts back
// is mended at once.
func (d *decider) cpu(w *work, otherwise quantity.Milli) quantity.Milli {
	known := d.cores(w)
	share := known.Share(otherwise)
	if st := w.stage; known.Held > 0 && st.CPUAt > 0 && d.memory.Clock-st.CPUAt < keepCPU &&
		(share <= known.Held || known.HeldBack < known.Held) {
		return min(known.Held, max(known.Most, size.LeastCPU))
	}
	return share
}

// keepCPU is for how long a share of cores is kept.
const keepCPU = fact.Instant(time.Minute)

// cores is what the share of cores of a stage is chosen by.
func (d *decider) cores(w *work) size.CPU {
	st := w.stage
	c := size.CPU{
		Speed: st.Model.Speed(), HeldBack: st.Model.HeldBack(), Most: d.largestFor(st.Sizing.Base).CPU,
		Tasks: float64(w.demand()), Threaded: st.Model.Program != "" && st.Model.Program != fact.GoProgram,
	}
	if len(st.Model.Rates.Values) >= size.EnoughRates {
		c.Rate = quantity.Milli(math.Ceil(st.Model.Rates.Quantile(0.9)))
	}
	if mean, _, known := st.Model.Pool(st.Slot.CPU); known {
		c.Wall, c.At = mean, st.Slot.CPU
	}
	if st.Sizing.Learned {
		c.Held = st.Slot.CPU
	}
	all, claimed := d.pool()
	mine := claim(w)
	c.Room = max(all.CPU-max(claimed-mine, 0), quantity.Milli(float64(all.CPU)*float64(mine)/float64(max(claimed, 1))))
	if st.Slot.Memory > 0 {
		c.Slots = float64(all.Memory) / float64(st.Slot.Memory)
	}
	d.withGPUs(&c, st.Sizing.Base)
	var due []float64
	c.Worth, due = d.haste(st)
	if len(due) == 0 {
		return c
	}
	larger := 1.0
	if by := d.relative(w, fact.Pool); by > 0 {
		larger = by // the tasks that wait take so many times as long as Wall
	}
	ahead := d.ahead(w, c.Wall)
	c.Left = -1
	for _, left := range due { // the first that can be met
		if left /= larger; !c.Late(left, ahead) {
			c.Left = left
			break
		}
	}
	return c
}

// ahead is the work that is left at a stage whose attempts take so many seconds at the pool: of those that run, what
// they have left.
func (d *decider) ahead(w *work, wall float64) (ahead size.Ahead) {
	if waiting := w.queued[0] + w.queued[1]; waiting > 0 {
		ahead = size.Ahead{Tasks: float64(waiting), Longest: 1}
	}
	if !(wall > 0) {
		return ahead
	}
	times := w.stage.Model.Times(fact.Pool, w.stage.Slot.CPU.Cores())
	for _, began := range slices.Sorted(slices.Values(w.begun)) {
		left, age := wall, max(0, d.now.Since(began))
		if len(times.Values) > 0 {
			left = memory.Remaining(times, age)
		}
		part := min(left/wall, 1)
		ahead.Tasks, ahead.Longest = ahead.Tasks+part, max(ahead.Longest, part)
	}
	return ahead
}

// withGPUs bounds what the share of cores of a stage is chosen by to the hosts that have its GPUs. As many cores as go
// with those are there for it: nobody else who asks for a GPU can have them, and others have other hosts.
func (d *decider) withGPUs(c *size.CPU, base quantity.Size) {
	count := base.WholeGPUs()
	if count == 0 || d.lacking(base) != "" {
		return
	}
	var all quantity.Size
	slots := 0.0
	for _, host := range d.hostsFor(base) {
		room := host.For(base)
		all, slots = all.Plus(room), slots+float64(host.Has(base))
		if part := room.CPU / max(room.GPU/quantity.Core, 1) * quantity.Milli(count); c.Bundled == 0 ||
			part < c.Bundled {
			c.Bundled = part
		}
	}
	if c.Slots == 0 || slots < c.Slots {
		c.Slots = max(slots, 1)
	}
	c.Room = min(max(c.Room, c.Bundled*quantity.Milli(slots)), all.CPU)
}

// deadlineReserve is within which part of the time left an attempt must end for its cores to be enough.
const deadlineReserve = 0.9

// haste is what a second of an attempt is worth to those runs of a stage that pay most for it (see [size.Worth]), and
// how many seconds the runs have that have a deadline, the next one first.
func (d *decider) haste(st *memory.Stage) (worth float64, due []float64) {
	price := quantity.Money(0)
	for _, host := range d.hostsFor(st.Slot) {
		if host.Capacity.GPU > 0 && st.Slot.GPU == 0 {
			continue // its price is that of its GPUs
		}
		price = max(price, host.PricePerHour/max(1, quantity.Money(host.Capacity.CPU/quantity.Core)))
	}
	runs := 0
	for _, part := range st.Shares {
		if !part.Run.Known || !part.Works() {
			continue
		}
		goal := part.Run.Goal
		worth, runs = max(worth, size.Worth(d.policy.ValueOfTime, price, goal.Minimise)), runs+1
		if left, limited := d.timeLeft(st, part); limited {
			due = append(due, deadlineReserve*left)
		}
	}
	slices.Sort(due)
	if runs == 0 {
		worth = size.Worth(d.policy.ValueOfTime, price, "")
	}
	return worth, due
}

// excess is what it costs that an attempt of the stage runs out of memory.
func (d *decider) excess(w *work) size.Excess {
	known := w.stage.Model
	e := size.Excess{
		Wall: w.wall, Lost: w.wall, Restart: known.Colds[fact.Pool].Quantile(0.5), Retry: size.GrowAfterOutOfMemory,
		Own: d.ownHour(w), Others: d.policy.ValueOfTime.USD(), Wanted: d.wanted(),
	}
	if made := known.Checkpoints.Quantile(0.5); made > 0 { // as many parts, and that after the last
		e.Lost = w.wall / (1 + made)
	}
	if need := known.Need.Memory; known.Need.MemoryKnown && need.Above > need.Limit {
		e.Retry = need.Above / need.Limit
	}
	return e
}

// ownHour is what an hour of an attempt is worth in US dollars: to the run that it is worth the most to, and what its
// part of the largest host costs.
func (d *decider) ownHour(w *work) float64 {
	worth := 0.0
	for _, part := range w.stage.Shares {
		if !part.Run.Known || !part.Works() {
			continue
		}
		switch part.Run.Goal.Minimise {
		case fact.Latency:
			worth = math.Inf(1)
		case fact.Cost:
		default:
			worth = max(worth, d.policy.ValueOfTime.USD())
		}
	}
	capacity, slot := d.largestHost(), w.stage.Slot
	at := slices.IndexFunc(d.hosts, func(h plan.Host) bool { return h.Capacity == capacity })
	if at < 0 || capacity.Memory <= 0 || capacity.CPU <= 0 {
		return worth
	}
	part := max(float64(slot.Memory)/float64(capacity.Memory), float64(slot.CPU)/float64(capacity.CPU))
	return worth + min(part, 1)*max(0, d.hosts[at].PricePerHour.USD())
}

// wanted is how much tasks that wait want of the pool's memory; see [size.Wanted].
func (d *decider) wanted() float64 {
	if d.wants != nil {
		return *d.wants
	}
	var bytes, cores, held, taken float64 // that there are, and that are held or asked for
	for _, host := range d.hosts {
		bytes, cores = bytes+float64(host.Capacity.Memory), cores+float64(host.Capacity.CPU)
		held, taken = held+float64(host.Capacity.Memory-host.Free.Memory), taken+float64(host.Capacity.CPU-host.Free.CPU)
	}
	for _, w := range d.works {
		waiting := float64(w.queued[0] + w.queued[1])
		held, taken = held+waiting*float64(w.stage.Slot.Memory), taken+waiting*float64(w.stage.Slot.CPU)
	}
	wanted := 0.0
	if bytes > 0 && cores > 0 {
		wanted = size.Wanted(held/bytes, taken/cores)
	}
	d.wants = &wanted
	return wanted
}

// claim is how many cores the tasks of a stage would hold together.
func claim(w *work) quantity.Milli {
	return quantity.Milli(min(w.demand(), plan.MaxSlots)) * min(cmp.Or(w.stage.Slot.CPU, quantity.Core), fact.MaxRate)
}

// pool is what all hosts have together, and how many cores the tasks of all stages would hold.
func (d *decider) pool() (all quantity.Size, claimed quantity.Milli) {
	if !d.pooled {
		d.pooled = true
		for _, host := range d.hosts {
			d.capacity = d.capacity.Plus(host.Capacity)
		}
		for _, w := range d.works {
			d.claimed += claim(w)
		}
	}
	return d.capacity, d.claimed
}

// largestHost is the capacity of the host with the most memory, then cores; zero without hosts.
func (d *decider) largestHost() quantity.Size {
	return largest(d.hosts, func(h plan.Host) quantity.Size { return h.Capacity })
}

// largestFor is the capacity of the largest host that has such GPUs as an attempt of the size asks for, with those; for
// who asks for none, and where no host has them, that of the largest host.
func (d *decider) largestFor(asked quantity.Size) quantity.Size {
	return largest(d.hostsFor(asked), func(h plan.Host) quantity.Size { return h.For(asked) })
}

// freestFor is the room of the host with the most free memory, then cores, of those that have such GPUs as an attempt
// of the size asks for; zero without hosts.
func (d *decider) freestFor(asked quantity.Size) quantity.Size {
	return largest(d.hostsFor(asked), func(h plan.Host) quantity.Size { return h.Free })
}

// hostsFor are the hosts that have the GPUs that an attempt of the size asks for, or, where none has so much memory,
// those with the largest of its class; all of them where none has any.
func (d *decider) hostsFor(asked quantity.Size) []plan.Host {
	if asked.GPU <= 0 || len(d.hosts) == 0 {
		return d.hosts
	}
	var some []plan.Host
	for _, host := range d.hosts {
		if host.Has(asked) > 0 {
			some = append(some, host)
		}
	}
	if len(some) > 0 {
		return some
	}
	asked.GPUMemory = 0
	most := quantity.Bytes(0)
	for _, host := range d.hosts {
		if host.Has(asked) == 0 {
			continue
		}
		room := host.For(asked)
		each := room.GPUMemory / quantity.Bytes(room.GPU/quantity.Core)
		switch {
		case each > most:
			some, most = []plan.Host{host}, each
		case each == most:
			some = append(some, host)
		}
	}
	if len(some) == 0 {
		return d.hosts
	}
	return some
}

// equipped reports whether a host has as many GPUs as an attempt of the size asks for, whatever their memory.
func (d *decider) equipped(asked quantity.Size) bool {
	asked.GPUMemory = 0
	return slices.ContainsFunc(d.hosts, func(h plan.Host) bool { return h.Has(asked) > 0 })
}

// lacking says which GPUs no host has that an attempt of the size asks for; empty when one has them.
func (d *decider) lacking(asked quantity.Size) string {
	for _, host := range d.hosts {
		if host.Has(asked) > 0 {
			return ""
		}
	}
	if len(d.hosts) == 0 || asked.GPU <= 0 {
		return ""
	}
	only := quantity.Size{GPU: asked.GPU, GPUMemory: asked.GPUMemory, DeviceClass: asked.DeviceClass}
	text := "no host with a valid lease has what it asks for: " + strings.TrimPrefix(only.String(), "0 cores, 0 B, ")
	for _, host := range d.hosts {
		if host.GPUsUnknown {
			return text + "; the driver of the GPUs of " + host.ID + " has not answered yet"
		}
	}
	return text
}

func largest(hosts []plan.Host, of func(plan.Host) quantity.Size) quantity.Size {
	if len(hosts) == 0 {
		return quantity.Size{}
	}
	return of(slices.MaxFunc(hosts, func(a, b plan.Host) int {
		return cmp.Or(cmp.Compare(of(a).Memory, of(b).Memory), cmp.Compare(of(a).CPU, of(b).CPU), -cmp.Compare(a.ID, b.ID))
	}))
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
	advised = advised.AtMost(d.largestFor(s.Base))
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
