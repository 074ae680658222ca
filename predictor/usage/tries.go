package usage

import "math"

// How much is remembered of attempts at different sizes.
const (
	// maxTried is at how many sizes, and maxTries of how many attempts at each. A stage is at few sizes: what it was
	// declared with, what it was given since, and one above or below.
	maxTried, maxTries = 4, 8
	// triesFade is for how many attempts what was seen at a size counts: what held attempts back once holds their like
	// back until the stage has changed.
	triesFade = 512
)

// Tries are what the latest attempts of a stage took at the sizes that they had: what [Speed] is learned from. The zero
// value remembers nothing. Adding allocates nothing once it is full.
type Tries struct {
	Sizes []Tried `json:"sizes,omitempty"`
	// Attempts is how many ended attempts were added.
	Attempts int `json:"attempts,omitempty"`
}

// Tried is what attempts of one size took.
type Tried struct {
	// Cores is the limit; 0 for those of which none is known.
	Cores float64 `json:"cores"`
	// Last is how many attempts there were with the last one of this size that ended.
	Last int `json:"last"`
	// Running is what a running attempt of this size took since the last one ended.
	Running Running `json:"running,omitzero"`
	// Times is how long they ran, and Rates, Held and Active what they took: see [Try].
	Times  Times  `json:"times"`
	Rates  Series `json:"rates"`
	Held   Series `json:"held"`
	Active Series `json:"active,omitzero"`
}

// Try is what an attempt took that has ended.
type Try struct {
	// Cores is the limit that it had; 0 for none that is known.
	Cores float64
	// Seconds is how long it ran; 0 where that is not known.
	Seconds float64
	// Rate is how many cores it used in the mean.
	Rate float64
	// Held is the part of its time in which the limit held it back, summed over the cores where that was on several.
	Held float64
	// Active is the part of its time that lies in periods of the limit in which it ran at all: about 1 for one that waits
	// often, and as much as it does not wait for one that waits in one piece. 0 where nobody counts it.
	Active float64
}

// Running is what a running attempt takes that its limit holds back. It is one phase of an attempt, which says that the
// limit holds it back, but not for which part of its whole time; so it is not counted with attempts that ended. The
// zero value is of none.
type Running struct {
	// At is how many attempts had ended then; below 0 where more have ended since than were added.
	At int `json:"at,omitempty"`
	// Rate is how many cores it used, and Held the part of the time in which the limit held it back, from 0 to 1; above 0
	// where there is one.
	Rate float64 `json:"rate"`
	Held float64 `json:"held"`
}

// sameSize is by what part sizes may differ and count as one.
const sameSize = 0.02

// Add remembers an attempt, of which these features were known before it ran; those with these names are followed. It
// takes the place of what running attempts of its size told.
func (t *Tries) Add(attempt Try, features Features, names []string) {
	if !believed(attempt.Cores, attempt.Rate, attempt.Held) {
		return
	}
	t.Attempts++
	tried := t.at(attempt.Cores)
	tried.Last, tried.Running = t.Attempts, Running{}
	tried.Rates.Push(attempt.Rate, maxTries)
	tried.Held.Push(attempt.Held, maxTries)
	if attempt.Active > 0 && attempt.Active <= mostCores {
		tried.Active.Push(min(attempt.Active, 1), maxTries)
	}
	if attempt.Seconds > 0 && attempt.Cores > 0 {
		tried.Times.only(names)
		tried.Times.add(attempt.Cores, attempt.Seconds, features, maxTries)
	}
}

// believed reports whether an attempt may have taken this; NaN is not.
func believed(cores, rate, held float64) bool {
	for _, value := range []float64{cores, rate, held} {
		if !(value >= 0 && value <= mostCores) {
			return false
		}
	}
	return cores == 0 || cores >= leastCores
}

// Note notes that a limit of so many cores, above 0, holds an attempt back for the part held of its time that has not
// ended, and that uses rate of them meanwhile. Ago is since how many ended attempts that is so, 0 for now. It reports
// whether that may change what [Tries.Learn] says.
func (t *Tries) Note(cores, rate, held float64, ago int) (changes bool) {
	if !believed(cores, rate, held) || cores == 0 || held == 0 {
		return false
	}
	tried := t.at(cores)
	if len(tried.Rates.Values) == 0 {
		tried.Last = t.Attempts - ago
	}
	again := t.holds(*tried, 0)
	tried.Running = Running{At: t.Attempts - ago, Rate: rate, Held: held}
	return !again || len(tried.Rates.Values) == 0
}

// is reports whether a size counts as the one that was tried.
func (t *Tried) is(cores float64) bool { return math.Abs(t.Cores-cores) <= sameSize*cores }

// at is what is remembered of a size; a new one takes the place of the one that was not seen for longest.
func (t *Tries) at(cores float64) *Tried {
	oldest := 0
	for i := range t.Sizes {
		if tried := &t.Sizes[i]; tried.is(cores) {
			return tried
		}
		if t.Sizes[i].Last < t.Sizes[oldest].Last {
			oldest = i
		}
	}
	if len(t.Sizes) < maxTried {
		t.Sizes = append(t.Sizes, Tried{Cores: cores})
		return &t.Sizes[len(t.Sizes)-1]
	}
	t.Sizes[oldest] = Tried{Cores: cores}
	return &t.Sizes[oldest]
}

// HeldBack is the largest limit at which attempts are held back for more than part of their time, or one that runs is,
// and still count; 0 where none are.
func (t *Tries) HeldBack(part float64) (cores float64) {
	for _, tried := range t.Sizes {
		ended := t.Attempts-tried.Last <= triesFade && tried.Held.Quantile(0.5) > part
		if ended || t.holds(tried, part) {
			cores = max(cores, tried.Cores)
		}
	}
	return cores
}

// holds reports whether a running attempt of this size is held back for more than part of its time, and still counts.
func (t *Tries) holds(tried Tried, part float64) bool {
	return tried.Running.Held > part && t.Attempts-tried.Running.At <= triesFade
}
