package chain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/workflows/nearest"
)

// Problem is one thing that is wrong with a chain, and where.
type Problem struct {
	// File is the file as Parse was told it; Line and Column count from 1. Of Validate it is the place within the chain,
	// and both are 0.
	File         string
	Line, Column int
	// Text says what is wrong and what to do.
	Text string
}

// String writes the problem as compilers do: "chain.yaml:12:7: what is wrong; what to do".
func (p Problem) String() string {
	if p.Line == 0 {
		return p.File + ": " + p.Text
	}
	return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Text)
}

// Error is all that is wrong with a chain.
type Error struct {
	// Problems is not empty; it is in the order of the file.
	Problems []Problem
}

// Error writes one problem a line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, problem := range e.Problems {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

// newError puts problems in the order of the file and drops what is there twice: an alias is read wherever it stands.
func newError(problems []Problem) *Error {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Text, b.Text))
	})
	return &Error{Problems: slices.Compact(problems)}
}

// maxProblems is how many problems are looked for: a file with more is no chain.
const maxProblems = 1000

// suggestion says which of the known names name may have meant, for the end of a message.
func suggestion(name string, known []string) string {
	const longest = 128 // comparing two names takes the product of their lengths
	known = slices.DeleteFunc(slices.Clone(known), func(one string) bool { return len(one) > longest })
	sorted := slices.Sorted(slices.Values(known))
	if len(name) > longest {
		name = ""
	}
	if near := nearest.Names(name, sorted); len(near) > 0 {
		return "nearest: " + strings.Join(near, ", ")
	}
	const shown = 16
	switch {
	case len(sorted) == 0:
		return "there are none"
	case len(sorted) <= shown:
		return "known: " + strings.Join(sorted, ", ")
	default:
		return fmt.Sprintf("known: %s and %d more", strings.Join(sorted[:shown], ", "), len(sorted)-shown)
	}
}
