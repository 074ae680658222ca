package devserver

import (
	"context"
	"fmt"
	"os"
	"syscall"
)

// reservation keeps a loopback TCP port for a server that can only be told a number.
//
// It is a socket that is bound and never listens. On Linux such a socket has two properties: as long as it is open the
// kernel gives its port to nobody who asks for a free one, and a listener that asks for the port by number gets it all
// the same, both having set SO_REUSEADDR, as Go's listeners do. So nothing can slip in between choosing the port and
// listening on it.
type reservation struct {
	fd, port int
}

// reserve reserves port, or a free one for 0. It fails with syscall.EADDRINUSE when something listens on port.
func reserve(_ context.Context, port int) (*reservation, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	r := &reservation{fd: fd}
	if r.port, err = bind(fd, port); err != nil {
		r.free()
		return nil, err
	}
	return r, nil
}

func bind(fd, port int) (int, error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	a, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return 0, fmt.Errorf("getsockname: got a %T for an IPv4 socket", name)
	}
	return a.Port, nil
}

// handOver makes way for the server that will listen; on Linux the reservation need not end for that.
func (*reservation) handOver() {}

// free ends the reservation. Whoever listens on the port goes on. Closing a socket that never connected cannot fail.
func (r *reservation) free() { _ = syscall.Close(r.fd) }
