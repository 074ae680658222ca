package hindsight

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// leastExplained is how many attempts it takes until a feature can explain what came.
const leastExplained = 5

// beyondChance is by how many standard deviations a rank correlation must differ from that of what has nothing to do
// with each other: two, which chance passes once in twenty times. One of five attempts in perfect order is just that.
const beyondChance = 2

// mostRanked is how many attempts a feature is chosen by, evenly taken where there are more: chance correlates 2,000 by
// a fiftieth, and a run of 250,000 would be ranked for seconds, feature by feature.
const mostRanked = 2000

// explaining returns the feature that explains best what came of the attempts, and its values. Where none does it has
// no name, and the values count the attempts from 1.
//
// What explains is measured by Spearman's rank correlation, which asks only that more of one means more of the other,
// or less, and not in which form: over n independent pairs it has mean 0 and variance 1/(n-1) (Kendall and Gibbons,
// Rank Correlation Methods, 1990). Attempts that were killed count with the limit that was not enough.
func explaining(attempts []*Attempt, points []Point) (feature string, values []float64) {
	if len(points) >= leastExplained {
		feature = explainingAmong(attempts, points)
	}
	values = make([]float64, len(points))
	for i, a := range attempts {
		if feature == "" {
			values[i] = float64(i + 1)
		} else {
			values[i] = a.value(feature)
		}
	}
	return feature, values
}

// explainingAmong returns the feature that explains best; empty where none does.
func explainingAmong(attempts []*Attempt, points []Point) (feature string) {
	places := make([]int, len(points))
	for i := range places {
		places[i] = i
	}
	places = evenly(places, mostRanked)
	actual := make([]float64, len(places))
	for i, place := range places {
		actual[i] = points[place].Actual
	}
	actual = ranks(actual)
	best := beyondChance / math.Sqrt(float64(len(places)-1))
	for _, name := range names(attempts) {
		column := make([]float64, len(places))
		for i, place := range places {
			column[i] = attempts[place].value(name)
		}
		const same = 1e-9 // correlations that differ by less are equal: the feature that came first stays
		how := math.Abs(stat.Correlation(ranks(column), actual, nil))
		if how >= best-same && (feature == "" || how > best+same) {
			feature, best = name, how
		}
	}
	return feature
}

// value is that of the named feature; 0 where it was not known.
func (a *Attempt) value(name string) float64 {
	if place := slices.Index(a.Names, name); place >= 0 && place < len(a.Values) {
		return finite(float64(a.Values[place]))
	}
	return 0
}

// names are the features that attempts have: those of the one that knows most, since names are only added.
func names(attempts []*Attempt) (most []string) {
	for _, a := range attempts {
		if len(a.Names) > len(most) {
			most = a.Names
		}
	}
	return most
}

// finite is the value, or 0 for what is no number.
func finite(value float64) float64 {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return 0
	}
	return value
}

// ranks are the places of values in their order, from 0; equal values share the middle of theirs.
func ranks(values []float64) []float64 {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		switch {
		case values[i] < values[j]:
			return -1
		case values[i] > values[j]:
			return 1
		default:
			return 0
		}
	})
	places := make([]float64, len(values))
	for start := 0; start < len(order); {
		end := start
		for end < len(order) && values[order[end]] == values[order[start]] {
			end++
		}
		for _, i := range order[start:end] {
			places[i] = float64(start+end-1) / 2
		}
		start = end
	}
	return places
}
