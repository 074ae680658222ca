package predictor

import (
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// How much of the past a model rests on. Stages of learning pipelines change with their data, so the latest attempts say more than all.
const (
	maxPeaks      = 64 // nearest-rank p95 of 64 leaves out the three largest; Floor covers those
	maxWalls      = 32
	maxErrors     = 20
	enoughPeaks   = 5
	enoughErrors  = 5
	failuresFade  = 64 // successes after which an old out-of-memory no longer holds the floor up
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
	Failed      quantity.Bytes `json:"failed,omitempty"`       // largest memory grant that was not enough
	FailedInput quantity.Bytes `json:"failed_input,omitempty"` // of that attempt
	FailedAt    int            `json:"failed_at,omitempty"`    // Successes then
	First       Sizing         `json:"first"`                  // the static size, kept once settled
	FirstInput  quantity.Bytes `json:"first_input,omitempty"`
	Fallen      bool           `json:"fallen,omitempty"` // the tracked error passed its bound

	Peaks       series           `json:"peaks"`  // bytes, of successes
	Inputs      series           `json:"inputs"` // bytes, of the same attempts
	Rates       series           `json:"rates"`  // thousandths of a core
	Walls       map[Venue]series `json:"walls"`  // seconds, of successes
	Colds       map[Venue]series `json:"colds"`  // seconds to start a child or an environment
	WallError   series           `json:"wall_error"`
	MemoryError series           `json:"memory_error"`

	fitted int  // Attempts when fit was computed
	line   line // of peaks over inputs
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

// RelativeError is by how much the larger of two positive numbers exceeds the smaller, relative to the smaller: 0 is exact, 1 is double or
// half. Unlike |predicted-actual|/actual it does not stay below 1 however far the prediction was too low. It is 0 when either is not positive
// or not finite: nothing was predicted, or nothing measured.
func RelativeError(predicted, actual float64) float64 {
	if !(predicted > 0) || !(actual > 0) || math.IsInf(predicted, 0) || math.IsInf(actual, 0) {
		return 0
	}
	return max(predicted/actual, actual/predicted) - 1
}

// learn takes what one Record measured. Only successes say what an attempt takes; running out of memory says what is not enough.
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
		if failed := min(e.Grant.Memory, maxPeakMemory); failed >= m.Failed || m.Successes-m.FailedAt > failuresFade {
			m.Failed, m.FailedInput, m.FailedAt = max(0, failed), min(max(0, e.Usage.Input), maxPeakMemory), m.Successes
		}
		return
	default:
		return
	}
	m.Successes++
	if peak := e.Usage.PeakMemory; peak > 0 && peak <= maxPeakMemory {
		m.Peaks.push(float64(peak), maxPeaks)
		m.Inputs.push(float64(min(max(0, e.Usage.Input), maxPeakMemory)), maxPeaks)
		if e.Predicted.Memory.Mid > 0 {
			m.MemoryError.push(RelativeError(e.Predicted.Memory.Mid, float64(peak)), maxErrors)
		}
	}
	if rate := e.Usage.CPURate(); rate > 0 && rate <= maxRate {
		m.Rates.push(float64(rate), maxPeaks)
	}
	if wall := e.Usage.Wall; wall > 0 && wall <= maxWall {
		m.keep(&m.Walls, e.Venue, wall.Seconds())
		if e.Venue == Pool && e.Predicted.Wall.Mid > 0 {
			m.WallError.push(RelativeError(e.Predicted.Wall.Mid, wall.Seconds()), maxErrors)
		}
	}
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

// line is memory = intercept + slope x input, with quantiles of what it leaves unexplained. A slope of 0 means that inputs do not matter.
type line struct {
	slope float64  // bytes per byte of input, 0 or more
	rest  series   // peaks less slope x input, 0 or more
	over  Interval // p10, p50, p90 of rest
}

// minSpread is the ratio between the largest and the smallest input below which a slope says more about noise than about inputs.
const minSpread = 2

// fit returns the line of peaks over inputs, from memory while no attempt was added. The slope is the median of the slopes of all pairs
// (Theil-Sen, https://doi.org/10.1007/978-94-011-2546-8_20): up to 29 percent of outliers do not move it.
func (m *model) fit() line {
	if m.fitted == m.Attempts && m.fitted > 0 {
		return m.line
	}
	m.fitted, m.line = m.Attempts, fit(m.Inputs.Values, m.Peaks.Values)
	return m.line
}

func fit(inputs, peaks []float64) line {
	found := line{}
	if len(inputs) >= enoughPeaks && len(inputs) == len(peaks) {
		if smallest := slices.Min(inputs); slices.Max(inputs) > minSpread*max(smallest, 1) {
			found.slope = medianSlope(inputs, peaks)
		}
	}
	for i := range peaks {
		explained := 0.0
		if found.slope > 0 {
			explained = found.slope * inputs[i]
		}
		found.rest.push(max(0, peaks[i]-explained), maxPeaks)
	}
	found.over = found.rest.interval()
	return found
}

// A slope is believed only within bounds that keep noise out: with inputs of 20 to 60 bytes and peaks of 69 MiB that differ by 1 MiB for
// other reasons, the median slope is 20,000 bytes a byte, and the first input of 1 MiB would be given the whole host
// (TestNoiseOverTinyInputsIsNoSlope).
const (
	// maxSlope is the most memory that a byte of input takes, in bytes: text compressed a hundredfold, decoded and held several times over.
	maxSlope = 1024
	// agreement is the part of all pairs in which the larger input must have had the larger peak; chance gives one half.
	agreement = 0.75
)

// medianSlope is 0 unless the inputs explain the peaks.
func medianSlope(inputs, peaks []float64) float64 {
	slopes := make([]float64, 0, len(inputs)*(len(inputs)-1)/2)
	rising := 0
	for i := range inputs {
		for j := range i {
			across := inputs[i] - inputs[j]
			if across == 0 {
				continue
			}
			slope := (peaks[i] - peaks[j]) / across
			if slope > 0 {
				rising++
			}
			slopes = append(slopes, slope)
		}
	}
	if len(slopes) == 0 || float64(rising) < agreement*float64(len(slopes)) {
		return 0
	}
	slices.Sort(slopes)
	median := slopes[len(slopes)/2]
	if median > maxSlope {
		return 0
	}
	return max(0, median)
}

// pool returns the mean run time at the pool in seconds, its variation, and whether any is known.
func (m *model) pool() (mean, variation float64, known bool) {
	walls := m.Walls[Pool]
	mean, variation = walls.mean()
	return mean, variation, len(walls.Values) > 0
}
