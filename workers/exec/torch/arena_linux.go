package torch

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// newArena returns a file in memory that has no name: it is gone with the last process that has it open.
func newArena() (*os.File, error) {
	fd, err := unix.MemfdCreate("spillway-tensors", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make shared memory: %w", os.NewSyscallError("memfd_create", err))
	}
	return os.NewFile(uintptr(fd), "tensors"), nil
}
