package usage

import (
	"math"
	"slices"
)

// Limits of what is remembered of a stage's attempts.
const (
	// MaxAttempts is how many of the latest attempts a History keeps. Stages of learning pipelines change with their data,
	// so the latest say more than all.
	MaxAttempts = 64
	// MaxFeatures is how many numbers a History follows; those that come later are left out.
	MaxFeatures = 8
	// MaxRare is how many attempts a History keeps beyond the latest ones, because few of these are like them: enough of
	// one kind, and some of others. A fit takes no longer for them than for an eighth more of attempts.
	MaxRare = 8
	// mostAttempts are all that are remembered at a time.
	mostAttempts = MaxAttempts + MaxRare
	// MaxFeatureName bounds the name of a feature that is followed, in bytes. Names travel in plans, which must fit into
	// one message, once for each term; an input whose keys are texts would keep every other stage from its plan.
	MaxFeatureName = 100
)

// InputBytes is the feature that every attempt has: the bytes of its encoded input and of the artifacts that it names.
const InputBytes = "input_bytes"

// Attempt is what one attempt tells about the need of the next ones.
type Attempt struct {
	// Peak is what it took at most, in bytes; of one that ran out of memory, the limit that was not enough.
	Peak float64
	// Exceeded says that the attempt needed more than Peak (a censored observation).
	Exceeded bool
	// Features are the numbers that were known before it ran.
	Features Features
}

// Features are the numbers that are known of an attempt before it runs. The zero value knows an input of no bytes.
type Features struct {
	// Input is the value of InputBytes.
	Input float64
	// Named are the others by name; 0 or more each. Those of categories are made by [CategoryName] and [Category].
	Named map[string]float64
}

// mostValue bounds the numbers that are known of an attempt: their fourth powers, which are summed where a square
// explains a peak, are finite.
const mostValue = 1e60

// Value returns the named number, 1e60 at most: 0 where it is not known, or no finite positive number.
func (f Features) Value(name string) float64 {
	value := f.Named[name]
	if name == InputBytes {
		value = f.Input
	}
	if !(value > 0) || math.IsInf(value, 0) {
		return 0
	}
	return min(value, mostValue)
}

// History is what is remembered of the attempts of one stage: the latest MaxAttempts, and at most MaxRare that are
// older and of which these know too few like them, with at most MaxFeatures numbers and MaxCategories categories each.
// The zero value remembers nothing. It keeps its size in memory and as JSON, and adding to it allocates nothing once it
// is full.
type History struct {
	// Names are the features that are followed, in the order in which they came.
	Names []string `json:"names,omitempty"`
	// Next is where the next attempt goes once the columns are full.
	Next int `json:"next,omitempty"`
	// Peaks are Attempt.Peak, and Exceeded has the bit of each place that was exceeded.
	Peaks    []float64 `json:"peaks,omitempty"`
	Exceeded uint64    `json:"exceeded,omitempty"`
	// Columns are the values of Names: 0 where an attempt did not have one, and below 0 where nobody followed it yet.
	Columns [][]float64 `json:"columns,omitempty"`
	// Rare are those that are kept beyond the latest, the oldest first.
	Rare []Kept `json:"rare,omitempty"`
}

// Kept is an attempt that is older than the latest ones: what it took at most, in bytes, and its values of
// History.Names.
type Kept struct {
	Peak   float64   `json:"peak"`
	Values []float64 `json:"values"`
}

// Follow makes the history remember the named feature from now on. It reports whether it does: one that comes after
// MaxFeatures is not, nor one with a name longer than MaxFeatureName.
func (h *History) Follow(name string) bool {
	if slices.Contains(h.Names, name) {
		return true
	}
	if full(h.Names, name) || name == "" || len(name) > MaxFeatureName {
		return false
	}
	column := make([]float64, len(h.Peaks), MaxAttempts)
	for place := range column {
		column[place] = notKnown
	}
	h.Names, h.Columns = append(h.Names, name), append(h.Columns, column)
	for i := range h.Rare {
		h.Rare[i].Values = append(h.Rare[i].Values, notKnown)
	}
	return true
}

// Full reports whether no other number is followed before one makes room.
func (h *History) Full() bool { return full(h.Names, "") }

// Room reports whether another number may be followed, once those that are gone are forgotten.
func (h *History) Room() bool {
	if !h.Full() {
		return true
	}
	for i := range h.Names {
		if h.gone(i) {
			return true
		}
	}
	return false
}

// Forget makes room for other features where MaxFeatures are followed: it drops those that are gone. A stage whose code
// has other parameters now would otherwise be explained by none of them for ever.
func (h *History) Forget() {
	if !h.Full() {
		return
	}
	for i := range slices.Backward(h.Names) {
		if h.gone(i) {
			h.drop(i)
		}
	}
}

// drop forgets a feature.
func (h *History) drop(i int) {
	h.Names, h.Columns = slices.Delete(h.Names, i, i+1), slices.Delete(h.Columns, i, i+1)
	for k, kept := range h.Rare {
		h.Rare[k].Values = slices.Delete(kept.Values, i, i+1)
	}
}

// gone reports whether no attempt has more of a feature than nothing, though one tells it or all may; that of the input
// stays.
func (h *History) gone(i int) bool {
	if h.Names[i] == InputBytes || len(h.Peaks) == 0 || !h.valid() {
		return false
	}
	most := slices.Max(h.Columns[i])
	return most == 0 || most < 0 && len(h.Peaks) == MaxAttempts
}

// Add remembers a. Peaks that are not finite or not positive are left out, and so are such features; it reports whether
// a was taken.
//
// A measured peak takes the place of an attempt with the same features that ran out of memory below it: that it needed
// more is then known exactly, and no longer has to be guessed.
func (h *History) Add(a Attempt) bool { return h.AddTo(a, Term{}) }

// AddTo remembers a as Add does, where a term explains the peaks: what is rare in its features is kept beyond the
// latest attempts; see [History.keep].
func (h *History) AddTo(a Attempt, explains Term) bool {
	if !(a.Peak > 0) || math.IsInf(a.Peak, 0) || !h.valid() {
		return false
	}
	var row [maxNames]float64
	for i, name := range h.Names {
		row[i] = a.Features.Value(name)
	}
	place := len(h.Peaks)
	if known := h.explained(a, row); known >= 0 {
		place = known
	} else if place < MaxAttempts {
		h.Peaks = append(h.Peaks, 0)
		for i := range h.Columns {
			h.Columns[i] = append(h.Columns[i], 0)
		}
	} else {
		place = h.Next % MaxAttempts
		h.Next = (place + 1) % MaxAttempts
		h.keep(place, explains)
	}
	h.Peaks[place] = a.Peak
	h.Exceeded &^= 1 << place
	if a.Exceeded {
		h.Exceeded |= 1 << place
	}
	for i := range h.Columns {
		h.Columns[i][place] = row[i]
	}
	if !a.Exceeded { // a retry tells more than what ran out of memory
		h.supersede(row[:len(h.Names)], explains)
	}
	return true
}

// KeepLatest forgets all attempts but the latest n.
func (h *History) KeepLatest(n int) {
	if n >= len(h.Peaks) || !h.valid() {
		return
	}
	latest := History{Names: h.Names, Columns: make([][]float64, len(h.Columns))}
	for i := len(h.Peaks) - max(n, 0); i < len(h.Peaks); i++ {
		place := h.place(i)
		if h.exceeded(place) {
			latest.Exceeded |= 1 << len(latest.Peaks)
		}
		latest.Peaks = append(latest.Peaks, h.Peaks[place])
		for k, column := range h.Columns {
			latest.Columns[k] = append(latest.Columns[k], column[place])
		}
	}
	*h = latest
}

// explained finds the place of an attempt that ran out of memory and whose need a measured one with the same features
// shows; -1 when there is none. What was not followed yet when it ran tells it apart from none.
func (h *History) explained(a Attempt, row [maxNames]float64) int {
	if a.Exceeded || h.Exceeded == 0 {
		return -1
	}
	for place, limit := range h.Peaks {
		if !h.exceeded(place) || limit > a.Peak {
			continue
		}
		same := true
		for i := range h.Columns {
			same = same && (h.Columns[i][place] == row[i] || h.Columns[i][place] < 0 || h.before(i, place))
		}
		if same {
			return place
		}
	}
	return -1
}

// before reports whether no attempt up to the one at a place had a value of a feature: it came later, or none had it.
// In a history of an earlier version nothing else tells that it was not followed yet.
func (h *History) before(column, place int) bool {
	for i := range h.Peaks {
		at := h.place(i)
		if h.Columns[column][at] > 0 {
			return false
		}
		if at == place {
			break
		}
	}
	return true
}

// valid reports whether the columns fit each other; a checkpoint that was tampered with may not.
func (h *History) valid() bool {
	if len(h.Peaks) > MaxAttempts || len(h.Names) > maxNames || len(h.Columns) != len(h.Names) || h.Next < 0 {
		return false
	}
	for _, column := range h.Columns {
		if len(column) != len(h.Peaks) {
			return false
		}
	}
	for _, kept := range h.Rare {
		if len(h.Rare) > MaxRare || len(kept.Values) != len(h.Names) || !(kept.Peak > 0) || math.IsInf(kept.Peak, 0) {
			return false
		}
	}
	return true
}

// Len is how many of the latest attempts are remembered.
func (h *History) Len() int { return len(h.Peaks) }

// place is where the i-th attempt is, the oldest first.
func (h *History) place(i int) int {
	if len(h.Peaks) < MaxAttempts {
		return i
	}
	return (h.Next + i) % MaxAttempts
}

// exceeded reports whether the attempt at place needed more than its Peak.
func (h *History) exceeded(place int) bool { return h.Exceeded&(1<<place) != 0 }

// Measured are the peaks of the latest attempts that were measured to their end, in no order.
func (h *History) Measured() []float64 {
	measured := make([]float64, 0, len(h.Peaks))
	for place, peak := range h.Peaks {
		if !h.exceeded(place) {
			measured = append(measured, peak)
		}
	}
	return measured
}

// Known is how many of the attempts ended with a peak that was measured to its end.
func (h *History) Known() int {
	known := len(h.Rare) + len(h.Peaks)
	for place := range h.Peaks {
		if h.exceeded(place) {
			known--
		}
	}
	return known
}

// Largest is the largest value of the named feature, 0 when it is not followed.
func (h *History) Largest(name string) float64 {
	largest := 0.0
	for i, known := range h.Names {
		if known == name {
			for _, value := range h.Columns[i] {
				largest = max(largest, value)
			}
			for _, kept := range h.Rare {
				largest = max(largest, kept.Values[i])
			}
		}
	}
	return largest
}

// MeanLog is the mean of the natural logarithms of the named feature of the latest attempts that have one above 0; 0
// where none has.
func (h *History) MeanLog(name string) float64 { return meanLog(h.Names, h.Columns, name) }

// meanLog is that of the named column.
func meanLog(names []string, columns [][]float64, name string) float64 {
	at := slices.Index(names, name)
	if at < 0 {
		return 0
	}
	sum, count := 0.0, 0.0
	for _, value := range columns[at] {
		if finite(value) {
			sum, count = sum+math.Log(value), count+1
		}
	}
	return sum / max(count, 1)
}

// Features are those of every attempt that is remembered, the first Len of them those of the latest.
func (h *History) Features() []Features {
	found := make([]Features, len(h.Peaks)+len(h.Rare))
	for at := range found {
		for i, name := range h.Names {
			var value float64
			if at < len(h.Peaks) {
				value = h.Columns[i][at]
			} else {
				value = h.Rare[at-len(h.Peaks)].Values[i]
			}
			if name == InputBytes {
				found[at].Input = max(0, value)
				continue
			}
			if found[at].Named == nil {
				found[at].Named = make(map[string]float64, len(h.Names))
			}
			found[at].Named[name] = max(0, value)
		}
	}
	return found
}

// Unmet is the largest limit that was not enough and that no measured peak has passed since, in bytes; 0 when there is
// none.
func (h *History) Unmet() float64 {
	unmet := 0.0
	for place, limit := range h.Peaks {
		if h.exceeded(place) {
			unmet = max(unmet, limit)
		}
	}
	if unmet <= h.LargestPeak() {
		return 0
	}
	return unmet
}

// LargestPeak is the largest peak that was measured to its end, in bytes; 0 when there is none.
func (h *History) LargestPeak() float64 {
	largest := 0.0
	for place, peak := range h.Peaks {
		if !h.exceeded(place) {
			largest = max(largest, peak)
		}
	}
	for _, kept := range h.Rare {
		largest = max(largest, kept.Peak)
	}
	return largest
}

// full reports whether no other feature like the named one is followed beside these.
func full(names []string, name string) bool {
	categories := 0
	for _, one := range names {
		if IsCategory(one) {
			categories++
		}
	}
	if IsCategory(name) {
		return categories >= MaxCategories
	}
	return len(names)-categories >= MaxFeatures
}

// Categorise makes the history follow categories among the named features. Where there are more of them than it
// follows, one makes room for the next by name that has been followed for all attempts that are remembered, or for as
// many as a [Scout] looks at and had never the same value twice or always the same: the identity of a task or a path
// tells nothing. Those stay that are kept, because they explain what attempts take.
func (h *History) Categorise(named map[string]float64, kept ...string) {
	if !h.valid() {
		return
	}
	var others []string
	for name, value := range named {
		if value > 0 && IsCategory(name) && len(name) <= MaxFeatureName && !slices.Contains(h.Names, name) {
			others = append(others, name)
		}
	}
	if len(others) == 0 {
		return
	}
	slices.Sort(others)
	for _, name := range others {
		h.Follow(name)
	}
	newest := ""
	for _, name := range h.Names {
		if IsCategory(name) {
			newest = name
		}
	}
	for i, name := range h.Names {
		if full(h.Names, categorySuffix) && !slices.Contains(kept, name) && IsCategory(name) && h.idle(i) {
			next, _ := slices.BinarySearch(others, newest)
			h.drop(i)
			h.Follow(others[next%len(others)])
			return
		}
	}
}

// idle reports whether a category may make room for another.
func (h *History) idle(i int) bool {
	counts := make(map[float64]int, MaxAttempts)
	known := 0
	for _, value := range h.Columns[i] {
		if value > 0 {
			counts[value]++
			known++
		}
	}
	return known == MaxAttempts || known >= looks && (len(counts) == 1 || len(counts) == known) ||
		known == 0 && len(h.Peaks) == MaxAttempts
}

// categoriesOf are those among the names of features.
func categoriesOf(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !IsCategory(name) })
}
