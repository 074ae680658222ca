package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// stackFileName is the file of the state directory that says where the running engine is.
const stackFileName = "stack.json"

// StackFile says where the engine that runs on a state directory is found.
type StackFile struct {
	// HTTP is the URL of the engine's API.
	HTTP string `json:"http"`
	// PID is the engine's process.
	PID int `json:"pid"`
	// Version is that of the engine.
	Version string `json:"version"`
	// StartedAt is when it was ready.
	StartedAt time.Time `json:"started_at"`
}

// Write puts the file into the state directory, whole or not at all. The engine calls it once its API answers.
func (f StackFile) Write(stateDir string) error {
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", stackFileName, err)
	}
	scratch, err := os.CreateTemp(stateDir, "."+stackFileName+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", stackFileName, err)
	}
	_, err = scratch.Write(append(text, '\n'))
	if err := errors.Join(err, scratch.Close()); err != nil {
		return fmt.Errorf("write %s: %w", stackFileName, errors.Join(err, os.Remove(scratch.Name())))
	}
	if err := os.Rename(scratch.Name(), filepath.Join(stateDir, stackFileName)); err != nil {
		return fmt.Errorf("write %s: %w", stackFileName, errors.Join(err, os.Remove(scratch.Name())))
	}
	return nil
}

// ReadStackFile returns what the engine wrote last; it wraps fs.ErrNotExist when none runs. The engine may have died
// since: ask its health before trusting the file.
func ReadStackFile(stateDir string) (StackFile, error) {
	text, err := os.ReadFile(filepath.Join(stateDir, stackFileName))
	if err != nil {
		return StackFile{}, fmt.Errorf("find the running engine: %w", err)
	}
	var file StackFile
	if json.Unmarshal(text, &file) != nil || file.HTTP == "" {
		return StackFile{}, fmt.Errorf("find the running engine: %s is damaged; stop the engine and start it again: it "+
			"writes it anew",
			filepath.Join(stateDir, stackFileName))
	}
	return file, nil
}

// RemoveStackFile removes the file; the engine calls it when it ends. It is no error when there is none.
func RemoveStackFile(stateDir string) error {
	if err := os.Remove(filepath.Join(stateDir, stackFileName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", stackFileName, err)
	}
	return nil
}
