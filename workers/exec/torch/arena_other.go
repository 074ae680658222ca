//go:build !linux

package torch

import (
	"errors"
	"fmt"
	"os"
)

// newArena returns a file whose name is removed at once: it is gone with the last process that has it open.
func newArena() (*os.File, error) {
	file, err := os.CreateTemp("", "spillway-tensors-*")
	if err != nil {
		return nil, fmt.Errorf("make shared memory: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("make shared memory: %w", err), file.Close())
	}
	return file, nil
}
