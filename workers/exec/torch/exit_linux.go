package torch

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitExit returns once process pid, a child of this process, has ended, and leaves it to be waited for.
func awaitExit(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}
