package usage

import (
	"math"
	"slices"
)

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
	// Cores are those that the attempts had, by place; 0 where that was not known. Empty where it never was.
	Cores []float64 `json:"cores,omitempty"`
}

// notKnown is the value of a feature that was not known.
const notKnown = -1

// Follow makes the named feature be remembered from now on. It reports whether it is: one that comes after MaxFeatures
// is not, nor one with a name longer than MaxFeatureName.
func (t *Times) Follow(name string) bool {
	if slices.Contains(t.Names, name) {
		return true
	}
	if full(t.Names, name) || name == "" || len(name) > MaxFeatureName || !t.valid() {
		return false
	}
	column := make([]float64, len(t.Values), MaxTimes)
	for place := range column {
		column[place] = notKnown
	}
	t.Names, t.Columns = append(t.Names, name), append(t.Columns, column)
	return true
}

// Forget makes room for other features where MaxFeatures are followed: it drops those that no attempt which is
// remembered knows anything of. A stage whose code has other parameters now would otherwise be explained by none of
// them for ever.
func (t *Times) Forget() {
	if !full(t.Names, "") || len(t.Values) == 0 || !t.valid() {
		return
	}
	t.drop(func(name string) bool { return name != InputBytes && unknown(t.Columns[slices.Index(t.Names, name)]) })
}

// Room reports whether another number may be remembered.
func (t *Times) Room() bool { return !full(t.Names, "") }

// Categorise makes the categories be remembered that a history follows, and no others.
func (t *Times) Categorise(by *History) {
	if t.valid() && (slices.ContainsFunc(by.Names, IsCategory) || slices.ContainsFunc(t.Names, IsCategory)) {
		t.categorise(categoriesOf(by.Names))
	}
}

func (t *Times) categorise(wanted []string) {
	t.drop(func(name string) bool { return IsCategory(name) && !slices.Contains(wanted, name) })
	for _, name := range wanted {
		t.Follow(name)
	}
}

// only makes these names be remembered, as far as they may, and no others.
func (t *Times) only(names []string) {
	t.drop(func(name string) bool { return !slices.Contains(names, name) })
	for _, name := range names {
		t.Follow(name)
	}
}

// Exchange makes a name be remembered from the newest attempt on, which has these features, instead of the one that has
// been remembered for the longest and is not kept, where there is no room for both. It reports whether it is; the bytes
// of the input are kept.
func (t *Times) Exchange(name string, newest Features, kept string) bool {
	if !t.valid() || len(t.Values) == 0 || name == "" || len(name) > MaxFeatureName {
		return false
	}
	if t.Forget(); full(t.Names, name) && !slices.Contains(t.Names, name) {
		oldest := slices.IndexFunc(t.Names, func(one string) bool {
			return one != InputBytes && one != kept && !IsCategory(one)
		})
		if oldest < 0 {
			return false
		}
		gone := t.Names[oldest]
		t.drop(func(one string) bool { return one == gone })
	}
	if !t.Follow(name) {
		return false
	}
	t.Columns[slices.Index(t.Names, name)][(t.Next+len(t.Values)-1)%len(t.Values)] = newest.Value(name)
	return true
}

// drop forgets the names that are gone; copies of t go on with theirs.
func (t *Times) drop(gone func(name string) bool) {
	if !slices.ContainsFunc(t.Names, gone) {
		return
	}
	var names []string
	var columns [][]float64
	for i, name := range t.Names {
		if !gone(name) {
			names, columns = append(names, name), append(columns, t.Columns[i])
		}
	}
	t.Names, t.Columns = names, columns
}

// unknown reports whether a column, which is not empty, has no value that was known.
func unknown(column []float64) bool { return slices.Max(column) < 0 }

// Add remembers an attempt whose cores are not known; what Series.Push leaves out is left out.
func (t *Times) Add(seconds float64, features Features) { t.AddAt(0, seconds, features) }

// AddAt remembers an attempt that had so many cores.
func (t *Times) AddAt(cores, seconds float64, features Features) {
	t.add(cores, seconds, features, MaxTimes)
}

// add remembers an attempt, instead of the oldest of limit.
func (t *Times) add(cores, seconds float64, features Features, limit int) {
	if !t.valid() {
		return
	}
	place, before := t.Next, len(t.Values)
	t.Push(seconds, limit)
	grown := len(t.Values) > before
	if !grown && t.Next == place {
		return // not taken
	}
	if grown {
		place = before
	}
	t.had(place, cores)
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

// had notes the cores of the attempt at a place.
func (t *Times) had(place int, cores float64) {
	if !(cores > 0) || math.IsInf(cores, 0) {
		cores = 0
	}
	if len(t.Cores) == 0 && cores == 0 {
		return
	}
	if t.Cores == nil {
		t.Cores = make([]float64, 0, max(cap(t.Values), len(t.Values)))
	}
	for len(t.Cores) < len(t.Values) {
		t.Cores = append(t.Cores, 0)
	}
	t.Cores[place] = cores
}

// Reference is how many cores the newest attempt had of which that is known; 0 where it is known of none.
func (t *Times) Reference() float64 {
	for i := range t.Cores {
		if cores := t.Cores[(t.Next+len(t.Cores)-1-i)%len(t.Cores)]; cores > 0 {
			return cores
		}
	}
	return 0
}

// At is what the attempts would have taken with so many cores, as far as it is known how many they had.
func (t *Times) At(cores float64, speed Speed) Times {
	brought := *t
	if !t.Mixed(cores) {
		return brought
	}
	brought.Values = slices.Clone(t.Values)
	for i, had := range t.Cores {
		if had > 0 {
			brought.Values[i] *= speed.Slower(had, cores)
		}
	}
	return brought
}

// Mixed reports whether an attempt is known to have had other cores than these.
func (t *Times) Mixed(cores float64) bool {
	other := func(had float64) bool { return had > 0 && had != cores }
	return cores > 0 && t.valid() && slices.ContainsFunc(t.Cores, other)
}

// FeaturesOf is what was known of the attempt at a place.
func (t *Times) FeaturesOf(place int) Features {
	found := Features{Named: make(map[string]float64, len(t.Names))}
	for i, name := range t.Names {
		switch value := t.Columns[i][place]; {
		case value == notKnown:
		case name == InputBytes:
			found.Input = value
		default:
			found.Named[name] = value
		}
	}
	return found
}

// MeanLog is the mean of the natural logarithms of the named feature of the attempts that have one above 0; 0 where
// none has.
func (t *Times) MeanLog(name string) float64 { return meanLog(t.Names, t.Columns, name) }

// kind is the value of a category of the attempt at a place; 0 where it was not known.
func (t *Times) kind(name string, place int) float64 {
	if column := slices.Index(t.Names, name); column >= 0 {
		return max(0, t.Columns[column][place])
	}
	return 0
}

// valid reports whether the columns fit each other; a checkpoint that was tampered with may not.
func (t *Times) valid() bool {
	if len(t.Values) > MaxTimes || t.Next < 0 || t.Next >= max(1, len(t.Values)) || len(t.Names) > maxNames ||
		len(t.Columns) != len(t.Names) || len(t.Cores) > 0 && len(t.Cores) != len(t.Values) {
		return false
	}
	for _, column := range t.Columns {
		if len(column) != len(t.Values) {
			return false
		}
	}
	return true
}

// What is thought of how far run times of a stage lie apart before it is known: their logarithms by UsualScatter, a
// quarter more or less two times in three, which is worth UsualScatterTimes of them.
const (
	UsualScatter      = 0.25
	UsualScatterTimes = 2
)

// Normal80 is by how many standard deviations the ends of an 80 percent interval lie from the middle of a normal
// distribution.
const Normal80 = 1.2815515655446004

// Residuals are the logarithms of the run times relative to what d says of their inputs; those of which it says nothing
// are left out.
func (t *Times) Residuals(d Duration) []float64 { return t.relative(d) }

// relative is the logarithm of each run time relative to what d says of its input; those of which it says nothing are
// left out.
func (t *Times) relative(d Duration) []float64 {
	if !t.valid() {
		return nil
	}
	column := slices.Index(t.Names, d.Feature)
	logs := make([]float64, 0, len(t.Values))
	for i, value := range t.Values {
		log := math.Log(min(max(value, leastSeconds), mostSeconds))
		if d.Attempts > 0 && d.Feature != "" {
			if column < 0 || t.Columns[column][i] < 0 || t.Columns[column][i] == 0 && d.From > 0 {
				continue
			}
			log -= d.curve(min(max(t.Columns[column][i], d.From), d.To))
		}
		log -= math.Log(d.Levels.of(t.kind(d.Levels.Name, i)))
		logs = append(logs, log)
	}
	return logs
}
