// Package nearest finds the names that a mistyped name most likely means.
package nearest

import (
	"cmp"
	"slices"
	"strings"
)

// most is how many names are offered: more than three are a list to read, not a suggestion.
const most = 3

// Names returns the candidates that name most likely means, best first, at most three: those that begin with name or
// differ from it in at most a third of its characters (at least two), upper and lower case being equal. Without any it
// returns nil.
func Names(name string, candidates []string) []string {
	type scored struct {
		name     string
		distance int
	}
	lower := strings.ToLower(name)
	allowed := max(2, len([]rune(name))/3)
	var found []scored
	for _, candidate := range candidates {
		other := strings.ToLower(candidate)
		distance := Distance(lower, other)
		if lower != "" && strings.HasPrefix(other, lower) {
			distance = min(distance, 1)
		}
		if distance <= allowed && distance < len([]rune(candidate)) {
			found = append(found, scored{candidate, distance})
		}
	}
	slices.SortFunc(found, func(a, b scored) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var names []string
	for _, one := range found[:min(most, len(found))] {
		names = append(names, one.name)
	}
	return slices.Compact(names)
}

// Distance returns the least number of characters to insert, delete, replace or swap with their neighbour that turns a
// into b: the restricted Damerau-Levenshtein distance
// (https://en.wikipedia.org/wiki/Damerau%E2%80%93Levenshtein_distance#Optimal_string_alignment_distance). It needs
// three rows of len(b) and len(a) x len(b) steps.
func Distance(a, b string) int {
	from, to := []rune(a), []rune(b)
	before := make([]int, len(to)+1)
	last := make([]int, len(to)+1)
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(from); i++ {
		before, last, row = last, row, before
		row[0] = i
		for j := 1; j <= len(to); j++ {
			replace := last[j-1]
			if from[i-1] != to[j-1] {
				replace++
			}
			row[j] = min(replace, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && from[i-1] == to[j-2] && from[i-2] == to[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(to)]
}
