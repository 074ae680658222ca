package ledgerstore

import (
	"errors"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// endQuiet has a connection end when what was sent stays without a sign of the other host for quietMost.
func endQuiet(network, _ string, connection syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failed error
	err := connection.Control(func(descriptor uintptr) {
		failed = unix.SetsockoptInt(int(descriptor), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(quietMost.Milliseconds()))
	})
	return errors.Join(err, failed)
}
