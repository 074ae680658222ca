package trigger

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/workflows/nearest"
)

// suggestion says which of the known names name may have meant, for the end of a message.
func suggestion(name string, known []string) string {
	if near := nearest.Names(name, known); len(near) > 0 {
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
