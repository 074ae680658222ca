package memory

import (
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Change tells when the code of a stage took to another need. The zero value has seen none.
type Change struct {
	// Build is that of the last attempt whose peak was about what was expected, or with which the need changed.
	Build string `json:"build,omitempty"`
	// Strange counts attempts in a row whose peaks were far above what was expected; below 0 they were far below.
	Strange int `json:"strange,omitempty"`
	// Attempts is how many attempts the model had seen when the need last changed, 0 for never; At is when that was, and
	// Factor what the new need is of the one before.
	Attempts int          `json:"attempts,omitempty"`
	At       fact.Instant `json:"at,omitempty"`
	Factor   float64      `json:"factor,omitempty"`
}

const (
	// enoughStrange is how many attempts in a row tell that a build has another need. One in ten is above the middle 80
	// percent by chance, three in a row are one in a thousand, and that far above it they are much rarer.
	enoughStrange = 3
	// far is by what factor a strange peak is beyond the interval that was expected.
	far = 2
)

// changes notices that the code of a stage has another need than that of the build before: enoughStrange attempts in a
// row of another build took far more, or far less, than was expected of them. What was learned of the build before is
// forgotten then: five attempts among sixty would be taken for outliers for long. With the same build it is the inputs
// that are others, and what was learned of earlier ones may be needed again.
func (m *Model) changes(e fact.Record, peak float64, now fact.Instant) {
	expected, c := e.Predicted.Memory, &m.Change
	began := now - fact.Instant(min(max(e.Usage.Wall+e.Start, 0), fact.MaxWall))
	if e.Venue != fact.Pool || e.Predicted.Guess || !(expected.Mid > 0) || began < c.At {
		return // of the last, it was expected to be as before
	}
	switch {
	case peak > far*expected.High:
		c.Strange = max(c.Strange, 0) + 1
	case far*peak < expected.Low:
		c.Strange = min(c.Strange, 0) - 1
	default:
		c.Strange, c.Build = 0, e.Stage.Build
		return
	}
	if -enoughStrange < c.Strange && c.Strange < enoughStrange {
		return
	}
	if c.Build == "" || c.Build == e.Stage.Build {
		c.Strange = 0
		return
	}
	*c = Change{Build: e.Stage.Build, Attempts: m.Attempts, At: now, Factor: peak / expected.Mid}
	m.Memory.KeepLatest(enoughStrange)
	m.MemoryError, m.MemoryFallen, m.MemoryTerm = usage.Series{}, false, usage.Term{}
}
