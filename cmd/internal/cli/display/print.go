package display

import (
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Own is text of ours that may act on the terminal, such as a line with colours. What it holds of others is clean
// already.
type Own string

// Printf writes to a terminal or a file. Every text among args is taken as one from outside, whoever wrote it, unless
// it is Own: names of runs, subjects, reasons and errors hold what users, programs and other users' messages say.
func Printf(w io.Writer, format string, args ...any) {
	_ = TryPrintf(w, format, args...) // a display that is gone stops nothing
}

// TryPrintf is Printf for who has nothing to do but to print: it says that a display is gone.
func TryPrintf(w io.Writer, format string, args ...any) error {
	cleaned := make([]any, len(args))
	for i, arg := range args {
		cleaned[i] = cleanArgument(arg)
	}
	_, err := fmt.Fprintf(w, format, cleaned...)
	return err
}

func cleanArgument(arg any) any {
	switch text := arg.(type) {
	case Own:
		return string(text)
	case error:
		return Clean(text.Error())
	case fmt.Stringer:
		return Clean(text.String())
	}
	if value := reflect.ValueOf(arg); value.Kind() == reflect.String {
		return Clean(value.String())
	}
	return arg
}

// CleanLines is text from outside whose lines stay apart, such as what a compiler says.
func CleanLines(text string) Own {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, CleanLine(strings.TrimRight(line, "\r\n")))
	}
	return Own(strings.Join(lines, "\n"))
}

// CleanWriter writes JSON that does nothing to a terminal; the values stay the same.
type CleanWriter struct{ To io.Writer }

// Write writes whole values.
func (w CleanWriter) Write(encoded []byte) (int, error) {
	if _, err := w.To.Write(CleanJSON(encoded)); err != nil {
		return 0, err
	}
	return len(encoded), nil
}
