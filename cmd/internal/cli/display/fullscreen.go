package display

import (
	"io"
	"strings"
)

// FullScreen draws on all of a terminal, and leaves it as it was. The zero value is not useful; use NewFullScreen. It
// is for one goroutine.
type FullScreen struct{ out io.Writer }

// Codes of xterm that other terminals understand too: the alternate screen, and the cursor.
const (
	enterAlternate = "\x1b[?1049h\x1b[?25l"
	leaveAlternate = "\x1b[?25h\x1b[?1049l"
)

// NewFullScreen returns a screen that writes to a terminal, and enters its alternate screen: what the terminal has
// shown comes back with Leave.
func NewFullScreen(out io.Writer) (*FullScreen, error) {
	_, err := io.WriteString(out, enterAlternate)
	return &FullScreen{out: out}, err
}

// Draw shows the lines, of which a terminal of height rows shows as many as fit. Lines end as a terminal in raw mode
// needs it.
func (s *FullScreen) Draw(lines []string, height int) error {
	lines = lines[:min(len(lines), max(height, 1))]
	var text strings.Builder
	text.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			text.WriteString("\r\n")
		}
		text.WriteString(line + "\x1b[K")
	}
	text.WriteString("\x1b[J")
	_, err := io.WriteString(s.out, text.String())
	return err
}

// Leave gives the terminal back.
func (s *FullScreen) Leave() error {
	_, err := io.WriteString(s.out, leaveAlternate)
	return err
}
