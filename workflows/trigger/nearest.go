package trigger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// nearest returns up to three of the known names that are most like name, the most alike first. A name is alike when no more than a third of
// its letters (at least two) must change, or when one contains the other.
func nearest(name string, known []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var near []candidate
	lower := strings.ToLower(name)
	for _, other := range known {
		distance := editDistance(lower, strings.ToLower(other))
		contained := name != "" && (strings.Contains(strings.ToLower(other), lower) || strings.Contains(lower, strings.ToLower(other)))
		if distance <= max(2, len(name)/3) || contained {
			near = append(near, candidate{other, distance})
		}
	}
	slices.SortFunc(near, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), strings.Compare(a.name, b.name))
	})
	var names []string
	for _, c := range near[:min(3, len(near))] {
		names = append(names, c.name)
	}
	return names
}

// editDistance is the Levenshtein distance in runes: the fewest insertions, deletions and replacements that make b of a.
// https://en.wikipedia.org/wiki/Levenshtein_distance, the form with one row.
func editDistance(a, b string) int {
	x, y := []rune(a), []rune(b)
	row := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := range x {
		diagonal := row[0]
		row[0] = i + 1
		for j := range y {
			replace := diagonal
			if x[i] != y[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(y)]
}

// suggestion says which of the known names name may have meant, for the end of a message.
func suggestion(name string, known []string) string {
	if near := nearest(name, known); len(near) > 0 {
		return "nearest: " + strings.Join(near, ", ")
	}
	switch sorted := slices.Sorted(slices.Values(known)); {
	case len(sorted) == 0:
		return "there are none yet: start one with spillway dev --app DIR"
	case len(sorted) <= 8:
		return "known: " + strings.Join(sorted, ", ")
	default:
		return fmt.Sprintf("known: %s and %d more", strings.Join(sorted[:8], ", "), len(sorted)-8)
	}
}
