//go:build !linux

package devserver

import (
	"context"
	"sync"
)

// reservation keeps a loopback TCP port for a server that can only be told a number, by listening on it until handOver.
// Between that and the server's own listen another program could take the port; see reserve_linux.go for where that
// cannot happen.
type reservation struct {
	port  int
	close func() error
}

// reserve reserves port, or a free one for 0. It fails with syscall.EADDRINUSE when something listens on port.
func reserve(ctx context.Context, port int) (*reservation, error) {
	l, err := listen(ctx, port)
	if err != nil {
		return nil, err
	}
	return &reservation{port: portOf(l), close: sync.OnceValue(l.Close)}, nil
}

// handOver makes way for the server that will listen.
func (r *reservation) handOver() { _ = r.close() }

// free ends the reservation. Whoever listens on the port goes on.
func (r *reservation) free() { _ = r.close() }
