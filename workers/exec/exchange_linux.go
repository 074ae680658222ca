package exec

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// exchange swaps two directories at once, so that either has its name at every moment.
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return swap(a, b) // the file system cannot
	}
	if err != nil {
		return fmt.Errorf("exchange %s and %s: %w", a, b, err)
	}
	return nil
}
