package memory

import (
	"maps"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/curve"
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// How much of the past a model rests on. Stages of learning pipelines change with their data, so the latest attempts
// say more than all.
const (
	maxRates     = 64
	maxColds     = 32
	maxErrors    = 20
	enoughErrors = 5
)

// Model is what is known of a stage under every build: the latest measurements, and how good the predictions were.
type Model struct {
	Name        string         `json:"name"`
	Active      fact.Instant   `json:"active"`
	Program     string         `json:"program,omitempty"` // what runs it, as the newest hint says
	Imports     []string       `json:"imports,omitzero"`  // what that imports, sorted; nil where it is not known
	Kind        string         `json:"kind,omitempty"`    // what kind of input that reads; empty where it is not known
	Fixed       bool           `json:"fixed,omitempty"`   // its attempts are given no more memory while they run
	Attempts    int            `json:"attempts,omitempty"`
	Successes   int            `json:"successes,omitempty"`
	OutOfMemory int            `json:"out_of_memory,omitempty"`
	First       size.Sizing    `json:"first"` // the static size, kept once settled
	FirstInput  quantity.Bytes `json:"first_input,omitempty"`
	// FirstDeclared is what the stage had declared then.
	FirstDeclared quantity.Size `json:"first_declared,omitzero"`
	// MemoryFallen and WallFallen say that the tracked error of one quantity has passed its bound: each is judged alone.
	MemoryFallen bool `json:"memory_fallen,omitempty"`
	WallFallen   bool `json:"wall_fallen,omitempty"`

	Function  usage.History `json:"function"`   // the same at functions, whose runtime takes room besides
	Memory    usage.History `json:"memory"`     // of the host, what attempts took and what was not enough
	GPUMemory usage.History `json:"gpu_memory"` // of a device
	Rates     usage.Series  `json:"rates"`      // thousandths of a core
	Tries     usage.Tries   `json:"tries"`      // at the sizes that attempts had at the pool
	// Scout looks for what explains memory at the pool among more names than are followed, and WallScout for what explains
	// run times there. They are in no checkpoint, which each would make three times as large: a look takes few attempts,
	// and begins anew.
	Scout     usage.Scout `json:"-"`
	WallScout usage.Scout `json:"-"`
	// MemoryTerm and GPUMemoryTerm are what explained peaks when needs were last learned.
	MemoryTerm    usage.Term `json:"memory_term,omitzero"`
	GPUMemoryTerm usage.Term `json:"gpu_memory_term,omitzero"`
	// Excess is what running out of memory cost when needs were last learned, see usage.Stakes; 0 when they never were.
	Excess float64 `json:"excess,omitempty"`
	// Priced and PricedKills are Attempts and OutOfMemory when Excess was asked for.
	Priced      int `json:"priced,omitempty"`
	PricedKills int `json:"priced_kills,omitempty"`
	// Checkpoints are how many each attempt had made when it ended, from the first on that made one.
	Checkpoints usage.Series `json:"checkpoints,omitzero"`
	// some host tells how long its limits of CPU hold attempts back
	Counted bool                        `json:"counted,omitempty"`
	Walls   map[fact.Venue]usage.Times  `json:"walls"` // of successes
	Colds   map[fact.Venue]usage.Series `json:"colds"` // seconds to start a child or an environment
	// Devices are the run times at the pool by the class of the GPU that attempts held, of at most maxDevices classes; nil
	// where none held one.
	Devices     map[string]usage.Times `json:"devices,omitempty"`
	WallError   usage.Series           `json:"wall_error"`
	WallWidth   float64                `json:"wall_width,omitempty"` // see usage.Widened
	MemoryError usage.Series           `json:"memory_error"`
	Steps       usage.Series           `json:"steps,omitzero"`      // that attempts had reported when they ended
	Trainings   []fact.Training        `json:"trainings,omitempty"` // the newest first
	// Curves are how its metric went in tasks that succeeded, the newest last.
	Curves []Curve `json:"curves,omitempty"`
	// Planned is what a running attempt tells of its training while Trainings is empty.
	Planned *fact.Training `json:"planned,omitempty"`
	// Untrained is how many attempts at the pool in a row have succeeded since and told of no training.
	Untrained int `json:"untrained,omitempty"`

	workload *curve.Workload // of those of Curves with the metric worked; nil before it is asked for
	worked   string

	fitted, timed int // what was known when needs were learned, and run times: see Needs and learnTimes
	noted         int // how often a running attempt told something new of its size
	brought       []brought
	Need          Learned `json:"-"`

	Change Change `json:"change,omitzero"`

	summed                     int // Attempts when peaks and run times were summed up
	experience, wallExperience size.Experience
}

// Learned is what attempts are learned to take; known is false while too few were measured.
type Learned struct {
	Memory, GPUMemory           usage.Need
	MemoryKnown, GPUMemoryKnown bool
	Wall                        usage.Duration // at the pool, with as many cores as the newest attempt had
	Speed                       usage.Speed
}

// brought are the run times at a venue as they would be with so many cores.
type brought struct {
	venue fact.Venue
	cores float64
	times usage.Times
}

// maxBrought is for how many venues and sizes brought run times are kept at a time: what a stage has, had and may get.
const maxBrought = 8

// learn takes what one Record measured. Only successes say what an attempt takes; running out of memory says what is
// not enough.
//
// Resized says that it had several shares of a core while it ran: then its run time is that of none of them.
func (m *Model) learn(e fact.Record, resized bool, now fact.Instant) {
	m.Active = max(m.Active, now)
	m.Attempts++
	if e.Cold && e.Start > 0 {
		m.cold(e)
	}
	switch e.Outcome {
	case fact.Succeeded:
	case fact.OutOfMemory:
		m.ranOut(e)
		return
	default:
		return
	}
	m.Successes++
	if e.Step > 0 {
		m.Steps.Push(float64(e.Step), usage.MaxTimes)
	}
	if e.Checkpoints > 0 || len(m.Checkpoints.Values) > 0 {
		m.Checkpoints.Push(float64(min(max(0, e.Checkpoints), mostCheckpoints)), usage.MaxTimes)
	}
	if peak := e.Usage.PeakMemory; peak > 0 && peak <= fact.MaxPeakMemory {
		if e.Usage.Squeezed {
			peak += peak / squeezedPart
		}
		m.remember(m.memoryAt(e.Venue), e, peak, false)
		m.scout(e, float64(peak))
		m.changes(e, float64(peak), now)
		if e.Venue == fact.Pool && e.Predicted.Memory.Mid > 0 && !e.Predicted.Guess {
			m.MemoryError.Push(usage.RelativeError(e.Predicted.Memory.Mid, float64(peak)), maxErrors)
		}
	}
	if peak := e.Usage.GPUPeakMemory; peak > 0 && peak <= fact.MaxPeakMemory {
		m.remember(&m.GPUMemory, e, peak, false)
	}
	// A function's rate is that of its class.
	if rate := e.Usage.CPURate(); e.Venue == fact.Pool && rate > 0 && rate <= fact.MaxRate {
		m.Rates.Push(float64(rate), maxRates)
		m.Counted = m.Counted || e.Usage.Throttled > 0 || e.Usage.Active > 0
	}
	if wall, _ := e.Training.OwnPart(e.Usage.Wall); wall > 0 && wall <= fact.MaxWall {
		m.took(e, resized, wall.Seconds())
		if rate := e.Usage.CPURate(); !resized && e.Venue == fact.Pool && rate <= fact.MaxRate {
			m.Tries.Add(usage.Try{
				Cores: e.Grant.CPU.Cores(), Seconds: microseconds(wall.Seconds()), Rate: milli(rate.Cores()),
				Held:   milli(e.Usage.Throttled.Seconds() / wall.Seconds()),
				Active: milli(e.Usage.Active.Seconds() / wall.Seconds()),
			}, featuresOf(e), m.Walls[fact.Pool].Names)
		}
	}
}

// scout looks for names that explain memory at the pool better than those that are followed, where an attempt has more
// of them. Those that explain it are kept, whatever running out of memory costs at this moment, and those that did when
// needs were learned last; of the others, the one that was followed for the longest makes room.
func (m *Model) scout(e fact.Record, peak float64) {
	if e.Venue != fact.Pool || len(e.Features) < usage.MaxFeatures || !(e.Predicted.Memory.Mid > 0) ||
		m.Memory.Known() < usage.Enough {
		return
	}
	if name, found := m.Scout.Look(featuresOf(e), m.Memory.Names, peak/e.Predicted.Memory.Mid); found {
		need, _ := usage.Learn(&m.Memory, usage.Stakes{}, m.MemoryTerm)
		newest := usage.Attempt{Peak: peak, Features: featuresOf(e)}
		m.Memory.Exchange(name, newest, append(need.Term.Names(), m.MemoryTerm.Names()...))
	}
}

// scoutTimes does the same for run times at the pool, of which the newest is e's.
func (m *Model) scoutTimes(times *usage.Times, e fact.Record, seconds float64) {
	if len(e.Features) < usage.MaxFeatures || len(times.Values) < usage.Enough {
		return
	}
	if name, found := m.WallScout.Look(featuresOf(e), times.Names, seconds/e.Predicted.Wall.Mid); found {
		explained, _ := usage.LearnTimes(times, &m.Tries, m.WallWidth, m.Counted)
		times.Exchange(name, featuresOf(e), explained.Feature)
	}
}

// memoryAt is the history of memory at a venue.
func (m *Model) memoryAt(venue fact.Venue) *usage.History {
	if venue == fact.Function {
		return &m.Function
	}
	return &m.Memory
}

// tryRates takes the latest rates as those of attempts that nothing is known to have limited: before version 8 it was
// not remembered what did, but for the largest limit that held attempts back, and how many had succeeded then.
func (m *Model) tryRates(heldBack quantity.Milli, successes int) {
	for i := range m.Rates.Values {
		rate := m.Rates.Values[(m.Rates.Next+i)%len(m.Rates.Values)]
		m.Tries.Add(usage.Try{Rate: rate / float64(quantity.Core)}, usage.Features{}, nil)
	}
	if ago := m.Successes - successes; heldBack > 0 && ago >= 0 {
		cores := heldBack.Cores() // by how much is not known: for one thread more than it has room for
		m.Tries.Note(cores, cores, math.Floor(cores)+1-cores, ago)
	}
}

// heldBack takes a running attempt that its limit of CPU holds back for the part held of its time.
func (m *Model) heldBack(e fact.Sampled) {
	counted := m.Counted
	m.Counted = true
	if m.Tries.Note(e.Grant.CPU.Cores(), e.CPU.Cores(), milli(e.Throttled), 0) || !counted {
		m.noted++
	}
}

// HeldBack is the largest limit of CPU that holds attempts back and still counts; 0 for none.
func (m *Model) HeldBack() quantity.Milli {
	return quantity.Milli(math.Round(m.Tries.HeldBack(throttledShare) * float64(quantity.Core)))
}

// squeezedPart is the part that is added to the peak of an attempt whose garbage collector kept it down: without it,
// each limit teaches a lower one, until attempts do little but collect garbage (TestASqueezeTeachesNoSmallerLimit).
const squeezedPart = 10

// How soon it is believed that a limit of CPU holds a running attempt back.
const (
	throttledShare = 0.10 // of its time
	starvedSamples = 10   // in a row
)

// ranOut takes the grant that was not enough. One that was granted nothing did not begin: the attempts before it have
// told what it was refused for.
func (m *Model) ranOut(e fact.Record) {
	if e.Grant.IsZero() {
		return
	}
	m.OutOfMemory++
	if e.Cause == fact.CauseDeviceMemory {
		if failed := min(e.Grant.GPUMemory, fact.MaxPeakMemory); failed > 0 {
			m.remember(&m.GPUMemory, e, failed, true)
		}
		return
	}
	if failed := min(e.Grant.Memory, fact.MaxPeakMemory); failed > 0 {
		m.remember(m.memoryAt(e.Venue), e, failed, true)
	}
}

// took takes how long an attempt ran, and judges what was expected of it.
func (m *Model) took(e fact.Record, resized bool, seconds float64) {
	if e.Venue != fact.Pool && e.Venue != fact.Function {
		return
	}
	if m.Walls == nil {
		m.Walls = map[fact.Venue]usage.Times{}
	}
	times := m.Walls[e.Venue]
	for _, name := range unfollowed(&times, e) {
		times.Follow(name)
	}
	times.Categorise(m.memoryAt(e.Venue))
	cores := e.Grant.CPU.Cores()
	switch {
	case resized:
		cores = 0
	case e.Venue == fact.Function:
		cores = size.ClassCores(e.Grant.Memory)
	}
	times.AddAt(cores, microseconds(seconds), featuresOf(e))
	expected := e.Predicted.Wall
	judged := e.Venue == fact.Pool && expected.Mid > 0 && !resized // what is resized is not run as it was predicted
	if judged {
		m.scoutTimes(&times, e, seconds)
	}
	m.Walls[e.Venue] = times
	if !judged {
		return
	}
	m.WallError.Push(usage.RelativeError(expected.Mid, seconds), maxErrors)
	if !m.WallFallen { // else the interval is all that came, as wide as that was
		m.WallWidth = usage.Widened(m.WallWidth, expected, seconds)
	}
}

// remember adds an attempt to a history, with the features that its Record names.
func (m *Model) remember(h *usage.History, e fact.Record, peak quantity.Bytes, exceeded bool) {
	if len(h.Names) == 0 {
		h.Follow(usage.InputBytes)
	}
	if tells(h, e) {
		h.Forget()
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(e.Features)), usage.IsCategory)
		for _, name := range names {
			if e.Features[name] > 0 {
				h.Follow(name)
			}
		}
		for _, name := range names { // what is off may be on tomorrow; then it is known when it was not
			h.Follow(name)
		}
	}
	held := m.MemoryTerm
	if h == &m.GPUMemory {
		held = m.GPUMemoryTerm
	}
	h.Categorise(e.Features, held.By, m.Need.Wall.Levels.Name)
	h.AddTo(usage.Attempt{Peak: float64(peak), Exceeded: exceeded, Features: featuresOf(e)}, held)
}

// tells reports whether an attempt tells a number that a history does not follow but may, which is seldom: names are
// sorted only then. For one that is 0 others do not make room.
func tells(h *usage.History, e fact.Record) bool {
	filled, room := h.Full(), h.Room()
	for name, value := range e.Features {
		if (value > 0 && room || !filled) && !slices.Contains(h.Names, name) && !usage.IsCategory(name) {
			return true
		}
	}
	return false
}

// unfollowed are the features of an attempt that may have to be followed beside those that are, once there is room.
func unfollowed(times *usage.Times, e fact.Record) []string {
	more := len(times.Names) == 0
	for name := range e.Features {
		more = more || !usage.IsCategory(name) && !slices.Contains(times.Names, name)
	}
	if more {
		times.Forget()
	}
	if !more || !times.Room() {
		return nil
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(e.Features)), usage.IsCategory)
	return append([]string{usage.InputBytes}, names...)
}

// featuresOf are the numbers that were known of an attempt before it ran.
func featuresOf(e fact.Record) usage.Features {
	return usage.Features{Input: float64(min(max(0, e.Usage.Input), fact.MaxPeakMemory)), Named: e.Features}
}

// Needs returns what attempts take, from memory while no attempt was added. Excess says what running out of memory
// costs, see [usage.Stakes]; it is asked when an attempt was added, and what it said holds until the next one: sizes do
// not follow how full the pool is at every tick.
func (m *Model) Needs(margin float64, excess func() float64) Learned {
	if m.fitted != m.Attempts || m.fitted == 0 {
		if m.Excess == 0 || m.Priced != m.Attempts {
			m.price(excess())
		}
		m.fitted = m.Attempts
		stakes := usage.Stakes{Margin: margin, Excess: m.Excess}
		m.Need.Memory, m.Need.MemoryKnown = usage.Learn(&m.Memory, stakes, m.MemoryTerm)
		m.Need.GPUMemory, m.Need.GPUMemoryKnown = usage.Learn(&m.GPUMemory, stakes, m.GPUMemoryTerm)
		m.MemoryTerm, m.GPUMemoryTerm = m.Need.Memory.Term, m.Need.GPUMemory.Term
	}
	m.learnTimes()
	return m.Need
}

// excessStep is by how much, as a ratio, the cost of running out of memory falls at most from one attempt to the next.
// The queue of a moment makes it another ten times over, and one that ran out waits in it again: if that made the next
// one cheaper, more would run out.
const excessStep = 1.1

// mostCheckpoints is more than any attempt makes; a Record that tells more is taken for one that makes as many.
const mostCheckpoints = 10_000

// price takes over what running out of memory costs now: at once where it is more, step by step where it is less, and
// never less after an attempt that ran out.
func (m *Model) price(asked float64) {
	least := m.Excess / excessStep
	if m.OutOfMemory > m.PricedKills {
		least = m.Excess
	}
	m.Excess, m.Priced, m.PricedKills = max(asked, least), m.Attempts, m.OutOfMemory
}

// Duration is how run times hang together with inputs.
func (m *Model) Duration() usage.Duration {
	m.learnTimes()
	return m.Need.Wall
}

// Experience is what the peaks at the pool tell of stages that are alike, from memory while no attempt was added.
func (m *Model) Experience() size.Experience {
	m.sum()
	return m.experience
}

// WallExperience is what the run times at the pool, in seconds, tell of them.
func (m *Model) WallExperience() size.Experience {
	m.sum()
	return m.wallExperience
}

func (m *Model) sum() {
	if m.summed == m.Attempts && m.summed > 0 {
		return
	}
	m.summed = m.Attempts
	m.experience = size.ExperienceOf(m.Memory.Measured())
	times := m.Times(fact.Pool, 1) // of several sizes they differ by these, too
	m.wallExperience = size.ExperienceOf(times.Values)
	m.experience.Input, m.wallExperience.Input = m.Memory.MeanLog(usage.InputBytes), times.MeanLog(usage.InputBytes)
}

// learnTimes learns the speed at each size, and how long attempts take with as many cores as the newest had, unless
// nothing was added.
func (m *Model) learnTimes() {
	known := m.Attempts + m.noted
	if m.timed == known && known > 0 {
		return
	}
	m.timed, m.brought = known, nil
	walls := m.Walls[fact.Pool]
	m.Need.Wall, m.Need.Speed = usage.LearnTimes(&walls, &m.Tries, m.WallWidth, m.Counted)
}

// Speed is how fast attempts are with so many cores.
func (m *Model) Speed() usage.Speed {
	m.learnTimes()
	return m.Need.Speed
}

// Relative is by what factor an attempt with this input, in bytes, takes longer than those that ended at the pool
// lately did on average; 1 where run times do not hang together with it, or such predictions have fallen from use.
func (m *Model) Relative(input float64) float64 {
	if m.WallFallen {
		return 1
	}
	m.learnTimes()
	return m.Need.Wall.Relative(m.Walls[fact.Pool], input)
}

// Elasticity is by what power attempts take longer with their input, around this one in bytes; 0 where run times do not
// hang together with it.
func (m *Model) Elasticity(input float64) float64 {
	return max(0, math.Log2(m.Relative(input*math.Sqrt2)/m.Relative(input/math.Sqrt2)))
}

// Times are the latest run times at a venue as they would be with so many cores; with 0 as many as the newest had.
func (m *Model) Times(venue fact.Venue, cores float64) usage.Times {
	m.learnTimes()
	for _, known := range m.brought {
		if known.venue == venue && known.cores == cores {
			return known.times
		}
	}
	walls := m.Walls[venue]
	at := cores
	if cores <= 0 {
		at = walls.Reference()
	}
	if !walls.Mixed(at) {
		return walls
	}
	times := walls.At(at, m.Need.Speed)
	kept := m.brought
	if len(kept) >= maxBrought {
		kept = nil
	}
	m.brought = append(slices.Clip(kept), brought{venue, cores, times}) // copies of m keep theirs
	return times
}

// cold takes how long a child or an environment took to start.
func (m *Model) cold(e fact.Record) {
	if e.Venue != fact.Pool && e.Venue != fact.Function {
		return
	}
	if m.Colds == nil {
		m.Colds = map[fact.Venue]usage.Series{}
	}
	values := m.Colds[e.Venue]
	// Before its environment began, a function may have been deployed, or have waited until the venue took it.
	start := e.Start
	if e.Init > 0 {
		start = e.Init
	}
	values.Push(microseconds(min(start, fact.MaxWall).Seconds()), maxColds)
	m.Colds[e.Venue] = values
}

// milli rounds a part to what says enough.
func milli(part float64) float64 { return math.Round(part*1e3) / 1e3 }

// microseconds rounds seconds to what says enough and keeps checkpoints short.
func microseconds(seconds float64) float64 { return math.Round(seconds*1e6) / 1e6 }

// Pool returns the mean run time at the pool with so many cores in seconds, its variation, and whether any is known.
func (m *Model) Pool(cpu quantity.Milli) (mean, variation float64, known bool) {
	walls := m.Times(fact.Pool, cpu.Cores())
	mean, variation = walls.Mean()
	return mean, variation, len(walls.Values) > 0
}

// CheckError decides whether the predictions are good enough to be used: those of a quantity fall from use when the
// median error of the last attempts passes bound, and come back once it is below bound by a tenth. A wrong time says
// nothing of the memory, nor the other way round.
func (m *Model) CheckError(bound float64) {
	m.MemoryFallen = passes(m.MemoryError, bound, m.MemoryFallen)
	m.WallFallen = passes(m.WallError, bound, m.WallFallen)
}

// Wall is the run time at the pool that is expected of an attempt of which nothing is known: the middle of what came
// lately, whatever its input, with as many cores as the newest attempt had, or, where such predictions have fallen from
// use, all of it.
func (m *Model) Wall() fact.Interval {
	walls := m.Times(fact.Pool, 0)
	expected := walls.Interval()
	if m.WallFallen {
		expected.Low, expected.High = walls.Quantile(0), walls.Largest()
	}
	return expected
}

// Remaining is how many seconds an attempt of this age goes on where attempts took these times. One that has outlived
// all that are known goes on for as long again.
func Remaining(times usage.Times, age float64) float64 {
	if left := times.Residual(age, 0); left > 0 {
		return left
	}
	return max(1, age)
}

// passes reports whether the median of these errors passes bound, as it did before.
func passes(s usage.Series, bound float64, before bool) bool {
	if before {
		bound *= 1 - size.Step
	}
	return bound > 0 && len(s.Values) >= enoughErrors && s.Quantile(0.5) > bound
}
