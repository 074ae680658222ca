package usage

import "slices"

// MaxTimes is how many of the latest run times Times keep.
const MaxTimes = 32

// Times are the run times of the latest attempts, in seconds, with what was known of each attempt before it ran. The
// zero value remembers nothing. What was stored as a Series is one of attempts of which nothing was known.
//
// It keeps its size in memory and as JSON, and adding to it allocates nothing once it is full.
type Times struct {
	Series
	// Names are the features that are followed, in the order in which they came, and Columns their values by place; below
	// 0 where a value was not known.
	Names   []string    `json:"names,omitempty"`
	Columns [][]float64 `json:"columns,omitempty"`
}

// notKnown is the value of a feature that was not known.
const notKnown = -1

// Follow makes the named feature be remembered from now on. It reports whether it is: one that comes after MaxFeatures
// is not.
func (t *Times) Follow(name string) bool {
	if slices.Contains(t.Names, name) {
		return true
	}
	if len(t.Names) >= MaxFeatures || name == "" || !t.valid() {
		return false
	}
	column := make([]float64, len(t.Values), MaxTimes)
	for place := range column {
		column[place] = notKnown
	}
	t.Names, t.Columns = append(t.Names, name), append(t.Columns, column)
	return true
}

// Add remembers an attempt; what Series.Push leaves out is left out.
func (t *Times) Add(seconds float64, features Features) {
	if !t.valid() {
		return
	}
	place, before := t.Next, len(t.Values)
	t.Push(seconds, MaxTimes)
	grown := len(t.Values) > before
	if !grown && t.Next == place {
		return // not taken
	}
	for i, name := range t.Names {
		value := float64(notKnown)
		if _, known := features.Named[name]; known || name == InputBytes {
			value = features.Value(name)
		}
		if grown {
			t.Columns[i] = append(t.Columns[i], value)
			continue
		}
		t.Columns[i][place] = value
	}
}

// valid reports whether the columns fit each other; a checkpoint that was tampered with may not.
func (t *Times) valid() bool {
	if len(t.Values) > MaxTimes || t.Next < 0 || t.Next >= max(1, len(t.Values)) || len(t.Names) > MaxFeatures ||
		len(t.Columns) != len(t.Names) {
		return false
	}
	for _, column := range t.Columns {
		if len(column) != len(t.Values) {
			return false
		}
	}
	return true
}
