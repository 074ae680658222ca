package devserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// PortError says that a configured port is taken, and what to do.
type PortError struct {
	// Name is how a user knows the port: "http-port", "temporal-port", "ui-port" or "nats-port".
	Name string
	// Port is the configured port.
	Port int
	// Err is the cause.
	Err error
}

// Error implements error.
func (e *PortError) Error() string {
	if !errors.Is(e.Err, syscall.EADDRINUSE) {
		return fmt.Sprintf("--%s %d cannot be listened on: %v; choose another, or leave the flag out for a free one",
			e.Name, e.Port, e.Err)
	}
	return fmt.Sprintf("--%s %d is taken; stop the program that listens on it, choose another, or leave the flag out for "+
		"a free one", e.Name, e.Port)
}

// Unwrap returns the cause.
func (e *PortError) Unwrap() error { return e.Err }

// FreePort returns a loopback TCP port that was free a moment ago. Nothing keeps it free, so prefer a server that is
// given port 0.
func FreePort(ctx context.Context) (int, error) {
	l, err := listen(ctx, 0)
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return portOf(l), l.Close()
}

// ChoosePort returns preferred when nothing listens on that loopback TCP port, and otherwise a free one with taken
// true. Zero prefers none. An error means that there is no free port, or that preferred cannot be listened on for
// another reason than being taken.
func ChoosePort(ctx context.Context, preferred int) (port int, taken bool, err error) {
	if preferred == 0 {
		port, err = FreePort(ctx)
		return port, false, err
	}
	l, err := listen(ctx, preferred)
	if errors.Is(err, syscall.EADDRINUSE) {
		port, err = FreePort(ctx)
		return port, true, err
	}
	if err != nil {
		return 0, false, fmt.Errorf("try port %d: %w", preferred, err)
	}
	return preferred, false, l.Close()
}

// listen listens on a loopback port; 0 takes a free one.
func listen(ctx context.Context, port int) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", hostPort(port))
}

func portOf(l net.Listener) int {
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

func hostPort(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
