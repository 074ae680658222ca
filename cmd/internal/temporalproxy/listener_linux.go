package temporalproxy

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// listen makes a socket in the abstract namespace, which leaves no file behind however this process ends. Its name is
// no secret and others can connect to it: who may is decided by who the kernel says it is.
func listen(ctx context.Context) (*listener, error) {
	name := "spillway-" + rand.Text()
	socket, err := new(net.ListenConfig).Listen(ctx, "unix", "@"+name)
	if err != nil {
		return nil, fmt.Errorf("listen on the abstract socket %s: %w", name, err)
	}
	return newListener(socket, "unix-abstract:"+name, ""), nil
}

// peer is the process that made the connection. One that cannot be told is no process.
func peer(connection net.Conn) (pid int, known bool) {
	socket, is := connection.(*net.UnixConn)
	if !is {
		return 0, true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, true
	}
	err = raw.Control(func(descriptor uintptr) {
		credentials, failed := unix.GetsockoptUcred(int(descriptor), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if failed == nil {
			pid = int(credentials.Pid)
		}
	})
	if err != nil {
		return 0, true
	}
	return pid, true
}
