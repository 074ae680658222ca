package usage

import (
	"math"
	"slices"
)

// Limits of a Scout: 16 KiB and the names. With 2,000 names each is looked at once in 256 attempts.
const (
	// MaxScouted is how many names are looked at together, and looks for how many attempts.
	MaxScouted = 128
	looks      = 16
)

// Scout looks for the numbers that peaks go up and down with among more than a History follows: so many at a time, in
// the order of the names, for a few attempts each, and then the next ones, for ever. What it finds is only worth
// following: whether it explains anything is learned of attempts after those that it was chosen by, or the best of
// thousands would be believed for its luck. The zero value has looked at nothing.
type Scout struct {
	// Names are looked at now; Columns are their values by attempt, and Ratios how much these took of what was expected.
	Names   []string    `json:"names,omitempty"`
	Columns [][]float64 `json:"columns,omitempty"`
	Ratios  []float64   `json:"ratios,omitempty"`
	// After is the last of the names that were looked at before; empty where all were.
	After string `json:"after,omitempty"`
}

// Look takes what was known of an attempt that took ratio times what was expected of it, and returns the name that is
// worth following beside those that are, once one is known.
func (s *Scout) Look(features Features, followed []string, ratio float64) (name string, found bool) {
	if !(ratio > 0) || math.IsInf(ratio, 0) || !s.begin(features, followed) {
		return "", false
	}
	s.Ratios = append(s.Ratios, ratio)
	for i, name := range s.Names {
		s.Columns[i] = append(s.Columns[i], features.Value(name))
	}
	if len(s.Ratios) < looks {
		return "", false
	}
	// Two standard errors of a correlation: the best of so many is above it by chance too, and then makes room for others.
	best := 2 / math.Sqrt(looks)
	var order [looks]int // on the stack, as all attempts of a stage of many names are looked at
	var left, ranks [looks]float64
	ranksIn(left[:], order[:], s.Ratios)
	for i, one := range s.Names {
		if s.Columns[i][looks-1] <= 0 || slices.Contains(followed, one) { // what nobody knows now is taken for gone
			continue
		}
		ranksIn(ranks[:], order[:], s.Columns[i])
		if together := correlation(left[:], ranks[:]); together > best {
			name, best, found = one, together, true
		}
	}
	s.look(nil)
	return name, found
}

// look begins to look at these names, in the room of those before.
func (s *Scout) look(names []string) {
	s.Names, s.Columns, s.Ratios = append(s.Names[:0], names...), s.Columns[:0], s.Ratios[:0]
	for i := range s.Names {
		if i < cap(s.Columns) && cap(s.Columns[:i+1][i]) >= looks {
			s.Columns = s.Columns[:i+1]
			s.Columns[i] = s.Columns[i][:0]
			continue
		}
		s.Columns = append(s.Columns, make([]float64, 0, looks))
	}
}

// begin chooses the names that are looked at next, where none are; false where there are no others than are followed.
func (s *Scout) begin(features Features, followed []string) bool {
	if len(s.Names) > 0 && len(s.Columns) == len(s.Names) && len(s.Names) <= MaxScouted && s.even() {
		return true
	}
	var room [MaxScouted]string
	others := room[:0] // on the stack, while they are few
	for name := range features.Named {
		if !slices.Contains(followed, name) && name != "" && len(name) <= MaxFeatureName && !IsCategory(name) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	next, last := slices.BinarySearch(others, s.After)
	if last { // it was looked at
		next++
	}
	if next == len(others) {
		next = 0
	}
	s.look(others[next:min(next+MaxScouted, len(others))])
	if s.After = ""; len(s.Names) > 0 {
		s.After = s.Names[len(s.Names)-1]
	}
	return len(s.Names) > 0
}

// even reports whether all columns are as long as the ratios; those of a checkpoint that was tampered with may not be.
func (s *Scout) even() bool {
	return len(s.Ratios) < looks &&
		!slices.ContainsFunc(s.Columns, func(column []float64) bool { return len(column) != len(s.Ratios) })
}

// Exchange makes the history follow a name from the given attempt on, where that is its newest, instead of the one that
// it has followed for the longest and that is not kept, where there is no room for both. It reports whether it does;
// the bytes of the input are kept.
func (h *History) Exchange(name string, newest Attempt, kept []string) bool {
	if !h.valid() || name == "" || len(name) > MaxFeatureName {
		return false
	}
	if h.Forget(); full(h.Names, name) && !slices.Contains(h.Names, name) {
		oldest := slices.IndexFunc(h.Names, func(one string) bool {
			return one != InputBytes && !slices.Contains(kept, one) && !IsCategory(one)
		})
		if oldest < 0 {
			return false
		}
		h.drop(oldest)
	}
	if !h.Follow(name) {
		return false
	}
	if n := len(h.Peaks); n > 0 { // a peak may have taken the place of a kill that it explains
		if place := h.place(n - 1); h.Peaks[place] == newest.Peak {
			h.Columns[slices.Index(h.Names, name)][place] = newest.Features.Value(name)
		}
	}
	return true
}
