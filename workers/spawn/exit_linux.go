package spawn

import (
	"errors"

	"golang.org/x/sys/unix"
)

// AwaitExit returns once process pid, a child of this process, has ended, and leaves it to be waited for: until then
// its number is no other's.
func AwaitExit(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}
