package usage

import (
	"fmt"
	"slices"
	"time"
)

// WindowModel is one way to a limit: a statistic of the recent past, and a margin above it.
type WindowModel struct {
	// Window is the span whose maximum counts, or the half-life of the percentile's weights, in the Selector's time.
	Window time.Duration
	// Percentile is of the values weighted by age, above 0 to 1; 1 means the window's maximum.
	Percentile float64
	// Margin is the part of the statistic that is added to it, 0 or more.
	Margin float64
}

// String writes "6h maximum +10%", "12h p95 +0%" or, for the zero value, "first limit".
func (m WindowModel) String() string {
	switch {
	case m == WindowModel{}:
		return "first limit"
	case m.Percentile == 1:
		return fmt.Sprintf("%gh maximum +%.0f%%", m.Window.Hours(), m.Margin*100)
	default:
		return fmt.Sprintf("%gh p%g +%.0f%%", m.Window.Hours(), m.Percentile*100, m.Margin*100)
	}
}

// The models: each window's maximum with each margin, and each percentile with each percentileMargin. Maxima are for
// what must not be exceeded, percentiles for what may be. Windows shorter than two hours forget bursts that come back;
// margins are about a factor 1.4 apart.
var (
	windows           = [...]time.Duration{2 * time.Hour, 6 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour} // rising
	margins           = [...]float64{0.01, 0.02, 0.03, 0.05, 0.07, 0.10, 0.15, 0.20, 0.30, 0.50, 1}
	percentiles       = [...]float64{0.50, 0.75, 0.90, 0.95, 0.98, 0.99} // rising
	percentileMargins = [...]float64{0, 0.15}
)

const (
	maximumModels  = len(windows) * len(margins)
	modelCount     = maximumModels + len(percentiles)*len(percentileMargins)
	statisticCount = len(windows) + len(percentiles)
)

// statisticOf is the index of model i's statistic: the windows first, then the percentiles.
func statisticOf(i int) int {
	if i < maximumModels {
		return i / len(margins)
	}
	return len(windows) + (i-maximumModels)/len(percentileMargins)
}

// marginOf is the margin of model i.
func marginOf(i int) float64 {
	if i < maximumModels {
		return margins[i%len(margins)]
	}
	return percentileMargins[(i-maximumModels)%len(percentileMargins)]
}

func windowModel(i int) WindowModel {
	if i < maximumModels {
		return WindowModel{Window: windows[statisticOf(i)], Percentile: 1, Margin: marginOf(i)}
	}
	return WindowModel{Window: fading, Percentile: percentiles[statisticOf(i)-len(windows)], Margin: marginOf(i)}
}

// maxima answers, for any span up to the longest window, what the largest value of the latest span was. It keeps the
// values that no later value reaches: a decreasing sequence, whose first entry within a span is that span's maximum
// (Lemire, "Streaming maximum-minimum filter using no more than three comparisons per element",
// https://arxiv.org/abs/cs/0610046, for one span).
//
// The zero value has seen nothing. Beyond maximaRoom entries the two neighbours closest in value become one, the
// earlier value at the later time: a maximum is then remembered for longer than its span, never shorter.
type maxima struct {
	peaks []peak
}

// peak is a value that nothing after it has reached, and when it was seen on the Selector's clock.
type peak struct {
	At    time.Duration `json:"at_ns"`
	Value float64       `json:"value"`
}

// maximaRoom holds a day of strictly falling values four minutes apart; rising and repeated values take no room.
const maximaRoom = 384

// add sees a value at a time that is not before the last one, and forgets what is older than the longest window.
func (m *maxima) add(at time.Duration, value float64) {
	kept := len(m.peaks)
	for kept > 0 && m.peaks[kept-1].Value <= value {
		kept--
	}
	m.peaks = append(m.peaks[:kept], peak{at, value})
	old := 0
	for m.peaks[old].At <= at-windows[len(windows)-1] {
		old++
	}
	m.peaks = slices.Delete(m.peaks, 0, old)
	if len(m.peaks) > maximaRoom {
		m.merge()
	}
}

// merge makes the two neighbours one whose values differ by the smallest part.
func (m *maxima) merge() {
	closest, ratio := 0, -1.0
	for i := range len(m.peaks) - 1 {
		if r := m.peaks[i+1].Value / m.peaks[i].Value; r > ratio {
			closest, ratio = i, r
		}
	}
	m.peaks[closest].At = m.peaks[closest+1].At
	m.peaks = slices.Delete(m.peaks, closest+1, closest+2)
}

// last is the largest value seen after now-span; 0 when there is none.
func (m *maxima) last(now, span time.Duration) float64 {
	i, _ := slices.BinarySearchFunc(m.peaks, now-span, func(p peak, start time.Duration) int {
		if p.At <= start {
			return -1
		}
		return 1
	})
	if i == len(m.peaks) {
		return 0
	}
	return m.peaks[i].Value
}
