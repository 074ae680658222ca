package cli

import (
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
)

// own is text of ours that may act on the terminal, such as a line with colours. What it holds of others is clean already.
type own string

// printf writes to a terminal or a file. Every text among args is taken as one from outside, whoever wrote it, unless it is own: names of runs,
// subjects, reasons and errors hold what users, programs and other users' messages say.
func printf(w io.Writer, format string, args ...any) {
	_ = tryPrintf(w, format, args...) // a display that is gone stops nothing
}

// tryPrintf is printf for who has nothing to do but to print: it says that a display is gone.
func tryPrintf(w io.Writer, format string, args ...any) error {
	cleaned := make([]any, len(args))
	for i, arg := range args {
		cleaned[i] = cleanArgument(arg)
	}
	_, err := fmt.Fprintf(w, format, cleaned...)
	return err
}

func cleanArgument(arg any) any {
	switch text := arg.(type) {
	case own:
		return string(text)
	case error:
		return display.Clean(text.Error())
	case fmt.Stringer:
		return display.Clean(text.String())
	}
	if value := reflect.ValueOf(arg); value.Kind() == reflect.String {
		return display.Clean(value.String())
	}
	return arg
}

// cleanLines is text from outside whose lines stay apart, such as what a compiler says.
func cleanLines(text string) own {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, display.CleanLine(strings.TrimRight(line, "\r\n")))
	}
	return own(strings.Join(lines, "\n"))
}

// cleanWriter writes JSON that does nothing to a terminal; the values stay the same.
type cleanWriter struct{ to io.Writer }

// Write writes whole values.
func (w cleanWriter) Write(encoded []byte) (int, error) {
	if _, err := w.to.Write(display.CleanJSON(encoded)); err != nil {
		return 0, err
	}
	return len(encoded), nil
}
