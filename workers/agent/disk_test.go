package agent

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/command"
)

func TestWhatCannotBeginOnAFullDiskIsNoFailedAttempt(t *testing.T) {
	t.Parallel()
	for _, full := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		wrapped := fmt.Errorf("fetch the command's code: %w", &os.PathError{Op: "copy_file_range", Path: "w", Err: full})
		for name, f := range map[string]finish{
			"a command": unprepared(t.Context(), wrapped), "a child": unstarted(t.Context(), wrapped, "output"),
		} {
			if ending, _ := ended(f); ending.Outcome != predictor.Lost || ending.Message != wrapped.Error() {
				t.Errorf("%s, %v: got %+v, want it lost", name, full, ending)
			}
		}
	}
	for _, full := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		var f finish
		f.collected(wire.CommandResult{}, fmt.Errorf("keep output model: %w",
			&os.PathError{Op: "write", Path: "a", Err: full}))
		if ending, _ := ended(f); ending.Outcome != predictor.Lost {
			t.Errorf("outputs that do not fit on the disk: got %+v, want it lost", ending)
		}
	}
	invalid := fmt.Errorf("%w: %w", command.ErrInvalid, syscall.ENOSPC)
	if ending, _ := ended(unprepared(t.Context(), invalid)); ending.Outcome != predictor.Failed || !ending.Permanent {
		t.Errorf("a command that is not valid: got %+v, want it failed for good", ending)
	}
}
