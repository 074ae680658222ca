package app

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// conceal makes this process one that others of its user cannot look into: neither into its memory nor into the
// environment that it was started with, which has the password of its build. Root sees everything all the same.
func conceal() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keep other programs of this user out of this process: %w", err)
	}
	return nil
}
