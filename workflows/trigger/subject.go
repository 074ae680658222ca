package trigger

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/activities/wire"
)

// checkSubject refuses what is no NATS subject, and what a binding must not read.
// Rules: https://docs.nats.io/nats-concepts/subjects.
func checkSubject(subject string) error {
	if subject == "" {
		return errors.New(`subject is empty: give one such as "data.new" or "data.>"`)
	}
	if err := wire.CheckText(subject, 255); err != nil {
		return fmt.Errorf("subject %.60q: %w", subject, err)
	}
	tokens := strings.Split(subject, ".")
	for i, token := range tokens {
		switch {
		case token == "":
			return fmt.Errorf("subject %q has an empty part: put exactly one dot between the parts", subject)
		case strings.ContainsRune(token, ' '): // the only one that can be printed
			return fmt.Errorf("subject %q has a space: leave it out", subject)
		case token == ">" && i != len(tokens)-1:
			return fmt.Errorf("subject %q has > before its end: only the last part may be >", subject)
		case len(token) > 1 && strings.ContainsAny(token, "*>"):
			return fmt.Errorf("subject %q has a wildcard inside %q: * and > must stand alone between dots", subject, token)
		}
	}
	switch first := tokens[0]; {
	case first == "*" || first == ">":
		return fmt.Errorf("subject %q begins with a wildcard: name its first part, such as %q", subject, "data.>")
	case strings.HasPrefix(first, "$"), strings.HasPrefix(first, "_INBOX"), first == "_R_", first == "_GR_",
		first == "spillway": // those with _ are of answers
		return reserved(subject)
	}
	return nil
}

// reserved refuses a subject that is not for events.
func reserved(subject string) error {
	first, _, _ := strings.Cut(subject, ".")
	return fmt.Errorf("subject %q is reserved: choose one that does not begin with %q", subject, first)
}

// isWildcard reports whether pattern can match more than one subject.
func isWildcard(pattern string) bool {
	return slices.ContainsFunc(strings.Split(pattern, "."), func(token string) bool {
		return token == "*" || token == ">"
	})
}

// isCovered reports whether every subject that narrow matches is matched by wide; a subject without wildcards matches
// itself.
func isCovered(narrow, wide string) bool {
	n, w := strings.Split(narrow, "."), strings.Split(wide, ".")
	for i, token := range w {
		switch {
		case i >= len(n):
			return false
		case token == ">":
			return true
		case n[i] == ">":
			return false
		case token == "*" || token == n[i]:
		default:
			return false
		}
	}
	return len(n) == len(w)
}

// overlaps reports whether some subject is matched by both patterns.
func overlaps(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		switch {
		case i >= len(x) || i >= len(y):
			return false
		case x[i] == ">" || y[i] == ">":
			return true
		case x[i] != "*" && y[i] != "*" && x[i] != y[i]:
			return false
		}
	}
	return true
}

// cover returns the fewest of the subjects that match all that the subjects match, sorted. A stream cannot hold
// subjects that overlap, so it fails for two of which neither covers the other.
func cover(subjects []string) ([]string, error) {
	subjects = slices.Compact(slices.Sorted(slices.Values(subjects)))
	var kept []string
	for _, subject := range subjects {
		if !slices.ContainsFunc(subjects, func(other string) bool { return other != subject && isCovered(subject, other) }) {
			kept = append(kept, subject)
		}
	}
	for i, a := range kept {
		for _, b := range kept[i+1:] {
			if overlaps(a, b) {
				return nil, fmt.Errorf("subjects %q and %q overlap and neither contains the other, which one stream cannot hold: "+
					"bind a wider one, or narrow one of them", a, b)
			}
		}
	}
	return kept, nil
}

// concrete returns a subject that pattern matches.
func concrete(pattern string) string {
	tokens := strings.Split(pattern, ".")
	for i, token := range tokens {
		if token == "*" || token == ">" {
			tokens[i] = "manual"
		}
	}
	return strings.Join(tokens, ".")
}
