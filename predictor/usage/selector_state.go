package usage

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
)

// selectorState is a Selector as JSON. It leaves out the statistics, which follow from the rest.
type selectorState struct {
	Options SelectorOptions `json:"options"`
	Samples int             `json:"samples,omitempty"`
	At      int64           `json:"at_unix_ns,omitempty"`
	Stale   int             `json:"stale,omitempty"`
	Clock   time.Duration   `json:"clock_ns,omitempty"`
	Limit   float64         `json:"limit,omitempty"`
	Chosen  int             `json:"chosen,omitempty"`
	Regret  float64         `json:"regret,omitempty"`
	Charges []charge        `json:"charges,omitempty"`
	Maxima  []peak          `json:"maxima,omitempty"`
	Unit    float64         `json:"unit,omitempty"`
	Top     int             `json:"top,omitempty"`
	Zeros   float64         `json:"zeros,omitempty"`
	Weights []float64       `json:"weights,omitempty"`
}

// MarshalJSON writes all that the Selector remembers, so that one read from it goes on in the same way.
func (s *Selector) MarshalJSON() ([]byte, error) {
	state := selectorState{
		Options: s.options, Samples: s.samples, At: s.at, Stale: s.stale, Clock: s.clock, Limit: s.limit, Chosen: s.chosen,
		Regret: s.regret,
		Maxima: s.maxima.peaks, Unit: s.decayed.unit, Top: s.decayed.top, Zeros: s.decayed.zeros,
	}
	if s.samples > 0 {
		state.Charges, state.Weights = s.charges[:], s.decayed.weights[:]
	}
	return json.Marshal(state)
}

// ErrSelectorState is wrapped by the errors of UnmarshalJSON about a state that no Selector of this version writes.
var ErrSelectorState = errors.New("not the state of a selector of this version; start with an empty one")

// UnmarshalJSON reads what MarshalJSON wrote. After an error the Selector is as it was.
func (s *Selector) UnmarshalJSON(data []byte) error {
	var state selectorState
	if err := json.Unmarshal(data, &state); err != nil {
		return fmt.Errorf("read the state of a selector: %w", err)
	}
	if err := state.Options.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrSelectorState, err)
	}
	if fault := state.fault(); fault != "" {
		return fmt.Errorf("%w: %s", ErrSelectorState, fault)
	}
	read := Selector{
		options: state.Options, samples: state.Samples, at: state.At, stale: state.Stale, clock: state.Clock,
		limit: state.Limit, chosen: state.Chosen, regret: state.Regret, maxima: maxima{peaks: state.Maxima},
	}
	copy(read.charges[:], state.Charges)
	read.decayed = histogram{unit: state.Unit, top: state.Top, zeros: state.Zeros}
	copy(read.decayed.weights[:], state.Weights)
	if read.samples > 0 {
		read.measure()
	}
	*s = read
	return nil
}

// fault says what no Selector would have written; empty when there is nothing.
func (s selectorState) fault() string {
	if s.Samples == 0 {
		if s.Charges != nil || s.Maxima != nil || s.Weights != nil || s.Limit != 0 || s.Chosen != 0 || s.Clock != 0 ||
			s.Zeros != 0 {
			return "a past without observations"
		}
		return ""
	}
	switch {
	case s.Samples < 0 || s.Stale < 0 || s.Clock < 0 || s.Clock > math.MaxInt64/2 || s.Chosen < 0 || s.Chosen > modelCount:
		return "a count out of range"
	case len(s.Charges) != modelCount || len(s.Weights) != bucketCount || len(s.Maxima) == 0 || len(s.Maxima) > maximaRoom:
		return "other models or buckets"
	case s.Top < 0 || s.Top > maxExponent || s.Unit > 0 &&
		math.Log(s.Unit)+float64(s.Top)*logGrowth > math.Log(2*raised*largestValue):
		return "a bucket out of range"
	}
	values := append([]float64{s.Limit, s.Regret, s.Unit, s.Zeros}, s.Weights...)
	for _, c := range s.Charges {
		values = append(values, c.Cost, c.Held)
	}
	for _, value := range values {
		// What follows from observations is at most twice raised times the largest.
		if !(value >= 0 && value <= 2*raised*largestValue) {
			return "a value out of range"
		}
	}
	var before peak
	for i, p := range s.Maxima {
		if p.At < max(before.At, 1) || p.At > s.Clock || p.Value < 0 || p.Value > raised*largestValue ||
			i > 0 && p.Value >= before.Value {
			return "maxima out of order"
		}
		before = p
	}
	return ""
}

// maxExponent is a little above the bucket of 1e300 when the unit is the smallest number.
const maxExponent = 30_000
