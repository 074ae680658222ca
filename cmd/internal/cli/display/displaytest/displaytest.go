// Package displaytest has text that a terminal would obey, for tests of what is printed.
package displaytest

import (
	"strings"
	"unicode/utf8"
)

// Hostile is what somebody may call a run, a subject or a file: it clears the screen, sets the title, ends the line,
// turns text around, and does so again in the eight-bit codes and in bytes that are no UTF-8.
const Hostile = "a\x1b[2J\x1b]0;title\x07b\r\nc\u202ed\u2066e\u009b2Jf\x9b31mg\x7fh\u2028i"

// Obeyed reports whether a terminal may act on text: whether it has any of the characters that hostile names, or bytes
// that are no UTF-8.
func Obeyed(text string) bool {
	return !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\a\r\n\x7f\u009b\u202e\u2066\u2028")
}
