package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Mistake is something wrong with the settings, and where.
type Mistake struct {
	// Where is the file, the environment variable or the flag.
	Where string `json:"where"`
	// Line and Column count from 1 in a file, and are 0 elsewhere.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Setting is the one that is wrong; empty of a key that there is not, and of the whole file.
	Setting string `json:"setting,omitempty"`
	// Text says what is wrong.
	Text string `json:"text"`
	// Do says what to do about it.
	Do string `json:"do,omitempty"`
}

// String writes the mistake as compilers do: "spillway.yaml:3:12: what is wrong; what to do".
func (m Mistake) String() string {
	where := m.Where
	if m.Line > 0 {
		where = fmt.Sprintf("%s:%d:%d", m.Where, m.Line, m.Column)
	}
	text := where + ": " + m.Text
	if m.Do != "" {
		text += "; " + m.Do
	}
	return text
}

// Sort puts mistakes in the order in which they stand: those of files first, by line.
func Sort(mistakes []Mistake) {
	slices.SortStableFunc(mistakes, func(a, b Mistake) int {
		return cmp.Or(cmp.Compare(min(b.Line, 1), min(a.Line, 1)), strings.Compare(a.Where, b.Where),
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// advice is what an error says to do; empty for nothing.
func advice(err error) string {
	if adviser, ok := errors.AsType[interface {
		error
		Advice() string
	}](err); ok {
		return adviser.Advice()
	}
	return ""
}
