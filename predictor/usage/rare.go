package usage

import "slices"

// keep keeps the attempt at a place, which makes room, where few of those that stay are like it by what explains the
// peaks, and none of the others took as much: a job of each night that begins with many small tasks would otherwise
// have forgotten what its few large ones take (TestANightOfSmallTasksForgetsNoLargeOne). Of one kind the newest are
// kept, with the latest ones Enough of it; of all kinds the newest. What ran out of memory is not kept, for it says
// less than its retry.
//
// What is not known before an attempt runs makes none rare: such a peak is left out of limits, or not, by its weight
// (TestAPeakOfAnOrdinaryInputIsNoRareOne).
func (h *History) keep(place int, explains Term) {
	if h.exceeded(place) || explains == (Term{}) {
		return
	}
	var values [maxNames]float64
	for i := range h.Columns {
		values[i] = h.Columns[i][place]
	}
	row, alike := values[:len(h.Names)], 0
	for other, peak := range h.Peaks {
		switch {
		case other == place:
		case !h.beyond(row, func(i int) float64 { return h.Columns[i][other] }, explains):
			alike++
		case peak >= h.Peaks[place]:
			return
		}
	}
	if alike >= Enough {
		return
	}
	kept := Kept{Peak: h.Peaks[place]}
	if oldest := h.alike(row, explains, Enough-alike); oldest >= 0 || len(h.Rare) == MaxRare {
		oldest = max(0, oldest)
		kept.Values = h.Rare[oldest].Values[:0]
		h.Rare = slices.Delete(h.Rare, oldest, oldest+1)
	}
	kept.Values = append(kept.Values, row...)
	h.Rare = append(h.Rare, kept)
}

// alike is the oldest that is kept and that an attempt with these values is like, where there are as many as that or
// more; -1 where there are fewer.
func (h *History) alike(row []float64, explains Term, many int) int {
	oldest, found := -1, 0
	for i := range slices.Backward(h.Rare) {
		values := h.Rare[i].Values
		if !h.beyond(values, func(k int) float64 { return row[k] }, explains) {
			oldest, found = i, found+1
		}
	}
	if found < many {
		return -1
	}
	return oldest
}

// supersede forgets the oldest of those that are kept and that a new attempt is like: what its kind takes now is told
// by the latest again.
func (h *History) supersede(row []float64, explains Term) {
	if len(h.Rare) == 0 {
		return
	}
	if oldest := h.alike(row, explains, 1); oldest >= 0 {
		h.Rare = slices.Delete(h.Rare, oldest, oldest+1)
	}
}

// beyond reports whether values are far above others, or of another kind, in something that explains the peaks: by as
// much as values must differ before a slope over them is believed.
func (h *History) beyond(values []float64, others func(i int) float64, explains Term) bool {
	for i, name := range h.Names {
		if !explains.uses(name) || !(values[i] > 0) {
			continue
		}
		other := others(i)
		if other >= 0 && (IsCategory(name) && values[i] != other || !IsCategory(name) && values[i] > spread*other) {
			return true
		}
	}
	return false
}
