package command

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"
)

func TestAFullDiskThatPipMeetsIsKnown(t *testing.T) {
	t.Parallel()
	w := &Workspace{options: Options{Assist: func(cmd *exec.Cmd) error {
		_, err := cmd.Stderr.Write([]byte("ERROR: Could not install packages due to an OSError: [Errno 28] No space left " +
			"on device\n"))
		return errors.Join(err, errors.New("exit status 1"))
	}}}
	_, err := w.python3(t.Context(), "pip install", "python3")
	if !errors.Is(err, syscall.ENOSPC) || !errors.Is(err, ErrRequirements) {
		t.Errorf("got %v, want that there is no space left", err)
	}
}
