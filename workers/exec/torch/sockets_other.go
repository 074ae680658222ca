//go:build !linux

package torch

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// passingSockets returns a pair of sockets that keep messages apart; no other program is given them. Systems such as
// macOS have no SOCK_SEQPACKET between processes of a machine, and no SOCK_CLOEXEC.
func passingSockets() ([2]int, error) {
	syscall.ForkLock.RLock() // nothing is forked before they are marked
	defer syscall.ForkLock.RUnlock()
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err == nil {
		unix.CloseOnExec(sockets[0])
		unix.CloseOnExec(sockets[1])
	}
	return sockets, err
}
