package display

import (
	"fmt"
	"io"
	"strings"
)

// Screen rewrites the same lines of a terminal. The zero value is not useful; use NewScreen. It is for one goroutine.
type Screen struct {
	out   io.Writer
	drawn int
}

// NewScreen returns a screen that writes to a terminal.
func NewScreen(out io.Writer) *Screen { return &Screen{out: out} }

// Draw replaces what was drawn last by lines, of which a terminal of height rows shows as many as fit, the first and
// the last ones. A height of 0 is unknown, and all are shown.
func (s *Screen) Draw(lines []string, height int) error {
	if most := height - 1; height > 1 && len(lines) > most {
		tail := max(0, most-len(lines)/2)
		head := most - tail
		lines = append(lines[:head:head], lines[len(lines)-tail:]...)
	}
	var text strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&text, "\x1b[%dA\r", s.drawn)
	}
	for _, line := range lines {
		text.WriteString(line + "\x1b[K\n")
	}
	text.WriteString("\x1b[J")
	s.drawn = len(lines)
	_, err := io.WriteString(s.out, text.String())
	return err
}

// Clear removes what was drawn.
func (s *Screen) Clear() error { return s.Draw(nil, 0) }
