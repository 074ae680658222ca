package torch

import "golang.org/x/sys/unix"

// passingSockets returns a pair of sockets that keep messages apart; no other program is given them.
func passingSockets() ([2]int, error) {
	return unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
}
