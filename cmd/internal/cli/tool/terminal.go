package tool

import (
	"io"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
)

const (
	usualWidth  = 80
	usualHeight = 24
)

// WordEvery is how often what takes long, as a build, is told of where its line cannot be rewritten.
const WordEvery = 15 * time.Second

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(file.Fd()))
}

// StyleOf returns how lines are written to w, and how many fit on it; 0 when it is no terminal, and nothing is cut.
// Colours are left out where NO_COLOR is set (https://no-color.org) or the terminal is a dumb one.
func (t *Tool) StyleOf(w io.Writer) (style display.Style, height int) {
	style.Width = usualWidth
	style.ASCII = !t.SpeaksUTF8()
	if !IsTerminal(w) {
		style.Whole = true
		return style, 0
	}
	noColor, _ := t.Deps.Environment("NO_COLOR")
	kind, _ := t.Deps.Environment("TERM")
	style.Color = noColor == "" && kind != "dumb"
	height = usualHeight
	if file, ok := w.(interface{ Fd() uintptr }); ok {
		if columns, rows, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 && rows > 0 {
			style.Width, height = columns, rows
		}
	}
	return style, height
}

// SpeaksUTF8 reports whether the locale's character set is UTF-8, by the first of the variables that is set, as POSIX
// has it.
func (t *Tool) SpeaksUTF8() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value, _ := t.Deps.Environment(name); value != "" {
			upper := strings.ToUpper(value)
			return strings.Contains(upper, "UTF-8") || strings.Contains(upper, "UTF8")
		}
	}
	return false
}
