// Package tool is what every command gets of the process that runs it: dependencies, streams, terminal, state
// directory.
package tool

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
)

// Tool is what all commands share.
type Tool struct {
	Deps     Deps
	Out, Err io.Writer
	State    string // the value of --state
	Server   string // the value of --server
	Config   string // the value of --config
	Quiet    bool   // the value of --quiet: no progress is shown
}

// Complain writes to standard error; if that is gone there is nobody left to tell.
func (t *Tool) Complain(format string, args ...any) { display.Printf(t.Err, format, args...) }

// Say writes to standard output.
func (t *Tool) Say(format string, args ...any) { display.Printf(t.Out, format, args...) }

// StateDir returns the absolute path of the state directory; it may not exist.
func (t *Tool) StateDir() (string, error) {
	dir := t.State
	if dir == "" {
		if home, set := t.Deps.Environment("XDG_STATE_HOME"); set && filepath.IsAbs(home) {
			dir = filepath.Join(home, "spillway")
		} else if home, set := t.Deps.Environment("HOME"); set && home != "" {
			dir = filepath.Join(home, ".local", "state", "spillway")
		} else {
			return "", &fault.UsageError{
				Problem: "neither XDG_STATE_HOME nor HOME is set",
				Hint:    "say where the state is kept with --state DIR",
			}
		}
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("state directory %s: %w", dir, err)
	}
	return absolute, nil
}

// MakeStateDir returns the state directory and makes it when it is not there.
func (t *Tool) MakeStateDir() (string, error) {
	dir, err := t.StateDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fault.Advise(fmt.Errorf("make the state directory: %w", err), "choose another with --state DIR")
	}
	return dir, nil
}

// Note writes a line about a run to standard error, so that standard output has the program's own only.
func (t *Tool) Note(format string, args ...any) {
	if !t.Quiet {
		t.Complain("spillway: "+format+"\n", args...)
	}
}

// WriteJSON writes one indented JSON value to standard output.
func (t *Tool) WriteJSON(value any) error {
	encoder := json.NewEncoder(display.CleanWriter{To: t.Out})
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}
