package display

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// escapes are the escape sequences of ECMA-48 with their parameters, and the strings of terminals that end with BEL or
// ST.
var escapes = regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?`)

// acts reports whether a terminal obeys r: control characters of both sets, breaks of lines, and those that turn the
// order of text around.
func acts(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// harmless is text without escape sequences and without bytes that are no UTF-8, which some terminals obey as well.
func harmless(text string) string {
	return escapes.ReplaceAllString(strings.ToValidUTF8(text, "\uFFFD"), "")
}

// Clean makes text from outside one line that does nothing to a terminal: without escape sequences, with a space for
// what would act on it or end the line.
func Clean(text string) string { return strings.Join(strings.FieldsFunc(harmless(text), acts), " ") }

// CleanLine is Clean for a line that a program printed: its tabs stay, and what would act on the terminal leaves no
// gap.
func CleanLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\t' && acts(r) {
			return -1
		}
		return r
	}, harmless(text))
}

// Name makes the name of a file one that is shown whole: quoted as Go quotes where it is not plain, so that no other
// name looks the same.
func Name(name string) string {
	if name == "" || strings.HasPrefix(name, `"`) || strings.ContainsFunc(name, acts) || !utf8.ValidString(name) {
		return strconv.Quote(name)
	}
	return name
}

// CleanJSON writes characters on which a terminal acts, and that JSON lets stand, as escapes of JSON: the value stays
// the same.
func CleanJSON(encoded []byte) []byte {
	var out strings.Builder
	for _, r := range strings.ToValidUTF8(string(encoded), "\uFFFD") {
		if acts(r) && r != '\n' && r != '\t' {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	return []byte(out.String())
}
