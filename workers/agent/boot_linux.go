package agent

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot is how long ago this machine was started, the time for which it slept included: CLOCK_MONOTONIC, which
// package time goes by, stands still while a laptop is shut, and a lease does not.
func sinceBoot() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &at); err != nil {
		return time.Since(began) // a kernel from before 2.6.39
	}
	return time.Duration(at.Nano())
}
