package predictor

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// How much of the past a model rests on. Stages of learning pipelines change with their data, so the latest attempts
// say more than all.
const (
	maxRates      = 64
	maxWalls      = 32
	maxErrors     = 20
	enoughRates   = 5
	enoughErrors  = 5
	maxWall       = 30 * 24 * time.Hour
	maxPeakMemory = quantity.Bytes(1) << 50
	maxRate       = 1000 * quantity.Core
)

// model is what is known of a stage under every build: the latest measurements, and how good the predictions were.
type model struct {
	Name        string         `json:"name"`
	Active      instant        `json:"active"`
	Attempts    int            `json:"attempts,omitempty"`
	Successes   int            `json:"successes,omitempty"`
	OutOfMemory int            `json:"out_of_memory,omitempty"`
	First       Sizing         `json:"first"` // the static size, kept once settled
	FirstInput  quantity.Bytes `json:"first_input,omitempty"`
	// FirstDeclared is what the stage had declared then.
	FirstDeclared quantity.Size `json:"first_declared,omitzero"`
	// MemoryFallen and WallFallen say that the tracked error of one quantity has passed its bound: each is judged alone.
	MemoryFallen bool `json:"memory_fallen,omitempty"`
	WallFallen   bool `json:"wall_fallen,omitempty"`

	Function  usage.History  `json:"function"`             // the same at functions, whose runtime takes room besides
	Memory    usage.History  `json:"memory"`               // of the host, what attempts took and what was not enough
	GPUMemory usage.History  `json:"gpu_memory"`           // of a device
	Rates     series         `json:"rates"`                // thousandths of a core
	Starved   quantity.Milli `json:"starved,omitempty"`    // largest limit of CPU that held attempts back
	StarvedAt int            `json:"starved_at,omitempty"` // Successes then
	// some host tells how long its limits of CPU hold attempts back
	Counted     bool             `json:"counted,omitempty"`
	Starving    int              `json:"starving,omitempty"` // attempts that were held back since
	Walls       map[Venue]series `json:"walls"`              // seconds, of successes
	Colds       map[Venue]series `json:"colds"`              // seconds to start a child or an environment
	WallError   series           `json:"wall_error"`
	MemoryError series           `json:"memory_error"`
	Trainings   []Training       `json:"trainings,omitempty"` // the newest first

	fitted int // Attempts when needs were learned
	need   learned
}

// learned is what attempts are learned to take; known is false while too few were measured.
type learned struct {
	memory, gpuMemory           usage.Need
	memoryKnown, gpuMemoryKnown bool
}

// series is a ring of the latest values. The zero value is empty.
type series struct {
	Next   int       `json:"next,omitempty"`
	Values []float64 `json:"values,omitempty"`
}

// push adds value, replacing the oldest of limit values. Values that are not finite or below zero are left out.
func (s *series) push(value float64, limit int) {
	if !(value >= 0) || math.IsInf(value, 0) {
		return
	}
	if len(s.Values) < limit {
		s.Values = append(s.Values, value)
		return
	}
	s.Next %= len(s.Values)
	s.Values[s.Next] = value
	s.Next = (s.Next + 1) % limit
}

// quantiles returns the nearest-rank quantiles of the values: the smallest value that at least q of them do not exceed.
// All are 0 when there is no value.
func (s series) quantiles(qs ...float64) []float64 {
	sorted := slices.Sorted(slices.Values(s.Values))
	found := make([]float64, len(qs))
	for i, q := range qs {
		if len(sorted) > 0 {
			rank := int(math.Ceil(q*float64(len(sorted)))) - 1
			found[i] = sorted[min(max(rank, 0), len(sorted)-1)]
		}
	}
	return found
}

func (s series) quantile(q float64) float64 { return s.quantiles(q)[0] }

func (s series) largest() float64 {
	largest := 0.0
	for _, value := range s.Values {
		largest = max(largest, value)
	}
	return largest
}

// mean returns the mean and the coefficient of variation; both 0 without values.
func (s series) mean() (mean, variation float64) {
	if len(s.Values) == 0 {
		return 0, 0
	}
	for _, value := range s.Values {
		mean += value / float64(len(s.Values))
	}
	for _, value := range s.Values {
		variation += (value - mean) * (value - mean) / float64(len(s.Values))
	}
	if mean > 0 {
		variation = math.Sqrt(variation) / mean
	}
	return mean, variation
}

func (s series) interval() Interval {
	q := s.quantiles(0.1, 0.5, 0.9)
	return Interval{Low: q[0], Mid: q[1], High: q[2]}
}

// RelativeError is by how much the larger of two positive numbers exceeds the smaller, relative to the smaller: 0 is
// exact, 1 is double or half. Unlike |predicted-actual|/actual it does not stay below 1 however far the prediction was
// too low. It is 0 when either is not positive or not finite: nothing was predicted, or nothing measured.
func RelativeError(predicted, actual float64) float64 {
	if !(predicted > 0) || !(actual > 0) || math.IsInf(predicted, 0) || math.IsInf(actual, 0) {
		return 0
	}
	return max(predicted/actual, actual/predicted) - 1
}

// learn takes what one Record measured. Only successes say what an attempt takes; running out of memory says what is
// not enough.
func (m *model) learn(e Record, now instant) {
	m.Active = max(m.Active, now)
	m.Attempts++
	if e.Cold && e.Start > 0 {
		m.keep(&m.Colds, e.Venue, min(e.Start, maxWall).Seconds())
	}
	switch e.Outcome {
	case Succeeded:
	case OutOfMemory:
		m.OutOfMemory++
		m.ranOut(e)
		return
	default:
		return
	}
	m.Successes++
	if peak := e.Usage.PeakMemory; peak > 0 && peak <= maxPeakMemory {
		if e.Usage.Squeezed {
			peak += peak / squeezedPart
		}
		remember(m.memoryAt(e.Venue), e, peak, false)
		if e.Venue == Pool && e.Predicted.Memory.Mid > 0 {
			m.MemoryError.push(RelativeError(e.Predicted.Memory.Mid, float64(peak)), maxErrors)
		}
	}
	if peak := e.Usage.GPUPeakMemory; peak > 0 && peak <= maxPeakMemory {
		remember(&m.GPUMemory, e, peak, false)
	}
	if rate := e.Usage.CPURate(); e.Venue == Pool && rate > 0 && rate <= maxRate { // a function's is that of its class
		m.Rates.push(float64(rate), maxRates)
		m.Counted = m.Counted || e.Usage.Throttled > 0
		if m.heldBack(e, rate) {
			m.Starving++
			if m.Starving >= enoughStarving {
				m.starve(e.Grant.CPU)
			}
		}
	}
	if wall := e.Usage.Wall; wall > 0 && wall <= maxWall {
		m.keep(&m.Walls, e.Venue, wall.Seconds())
		if e.Venue == Pool && e.Predicted.Wall.Mid > 0 {
			m.WallError.push(RelativeError(e.Predicted.Wall.Mid, wall.Seconds()), maxErrors)
		}
	}
}

// heldBack reports whether an attempt was held back by its limit of CPU. Where no host tells, one below a core is
// thought to have where the attempt used nearly all of it.
func (m *model) heldBack(e Record, rate quantity.Milli) bool {
	if m.Counted {
		return float64(e.Usage.Throttled) > throttledShare*float64(e.Usage.Wall)
	}
	return e.Grant.CPU < quantity.Core && float64(rate) >= nearlyAll*float64(e.Grant.CPU) && e.Grant.CPU > 0
}

// memoryAt is the history of memory at a venue.
func (m *model) memoryAt(venue Venue) *usage.History {
	if venue == Function {
		return &m.Function
	}
	return &m.Memory
}

// starve notes that attempts were held back by a limit of cpu.
func (m *model) starve(cpu quantity.Milli) {
	if cpu = min(max(0, cpu), maxRate); cpu >= m.Starved || !m.starved() {
		m.Starved, m.StarvedAt, m.Starving = cpu, m.Successes, 0
	}
}

// starved reports whether the largest limit that held attempts back still counts.
func (m *model) starved() bool { return m.Starved > 0 && m.Successes-m.StarvedAt <= starvedFades }

// squeezedPart is the part that is added to the peak of an attempt whose garbage collector kept it down: without it,
// each limit teaches a lower one, until attempts do little but collect garbage (TestASqueezeTeachesNoSmallerLimit).
const squeezedPart = 10

// How soon it is believed that a limit of CPU holds attempts back, in attempts and in samples of one, and for how many
// successes.
const (
	throttledShare = 0.10 // of its time
	nearlyAll      = 0.95 // of its limit
	enoughStarving = 3
	starvedSamples = 10
	starvedFades   = 512
)

// ranOut takes the grant that was not enough.
func (m *model) ranOut(e Record) {
	m.OutOfMemory++
	if e.Cause == CauseDeviceMemory {
		if failed := min(e.Grant.GPUMemory, maxPeakMemory); failed > 0 {
			remember(&m.GPUMemory, e, failed, true)
		}
		return
	}
	if failed := min(e.Grant.Memory, maxPeakMemory); failed > 0 {
		remember(m.memoryAt(e.Venue), e, failed, true)
	}
}

// remember adds an attempt to a history, with the features that its Record names.
func remember(h *usage.History, e Record, peak quantity.Bytes, exceeded bool) {
	if len(h.Names) == 0 {
		h.Follow(usage.InputBytes)
	}
	if len(e.Features) > 0 && len(h.Names) < usage.MaxFeatures {
		for _, name := range slices.Sorted(maps.Keys(e.Features)) {
			h.Follow(name)
		}
	}
	input := float64(min(max(0, e.Usage.Input), maxPeakMemory))
	h.Add(usage.Attempt{
		Peak: float64(peak), Exceeded: exceeded,
		Features: usage.Features{Input: input, Named: e.Features},
	})
}

// needs returns what attempts take, from memory while no attempt was added.
func (m *model) needs(margin float64) learned {
	if m.fitted != m.Attempts || m.fitted == 0 {
		m.fitted = m.Attempts
		m.need.memory, m.need.memoryKnown = usage.Learn(&m.Memory, margin)
		m.need.gpuMemory, m.need.gpuMemoryKnown = usage.Learn(&m.GPUMemory, margin)
	}
	return m.need
}

func (m *model) keep(of *map[Venue]series, venue Venue, seconds float64) {
	if venue != Pool && venue != Function {
		return
	}
	if *of == nil {
		*of = map[Venue]series{}
	}
	values := (*of)[venue]
	values.push(math.Round(seconds*1e6)/1e6, maxWalls) // microseconds say enough and keep checkpoints short
	(*of)[venue] = values
}

// pool returns the mean run time at the pool in seconds, its variation, and whether any is known.
func (m *model) pool() (mean, variation float64, known bool) {
	walls := m.Walls[Pool]
	mean, variation = walls.mean()
	return mean, variation, len(walls.Values) > 0
}
