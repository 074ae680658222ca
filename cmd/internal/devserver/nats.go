package devserver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

const (
	// natsStartTimeout bounds the start of NATS: about 12 ms when its store is empty, longer when it recovers large streams.
	natsStartTimeout = 30 * time.Second
	// natsCheckTimeout bounds the check of NATS.
	natsCheckTimeout = time.Second
)

// natsServer is the NATS server with its JetStream store.
type natsServer struct {
	server *natsserver.Server
	url    string
	fatal  *fatality
}

// startNATS starts NATS on o.NATSPort and returns once it accepts connections. A server that comes with an error is to be stopped.
func startNATS(ctx context.Context, o Options) (*natsServer, error) {
	r, err := reserve(ctx, o.NATSPort)
	if err != nil {
		return nil, &PortError{Name: "nats-port", Port: o.NATSPort, Err: err}
	}
	defer r.free()
	s, err := natsserver.NewServer(&natsserver.Options{
		ServerName: "spillway",
		Host:       loopback,
		Port:       r.port,
		MaxPayload: MaxPayload,
		JetStream:  true,
		StoreDir:   filepath.Join(o.Dir, "nats"),
		SyncAlways: o.SyncAlways,
		NoSigs:     true,
	})
	if err != nil {
		return nil, fmt.Errorf("start nats in %s: %w", o.Dir, err)
	}
	n := &natsServer{server: s, fatal: &fatality{}}
	s.SetLoggerV2(natsLog{o.Logger, n.fatal}, false, false, false)
	r.handOver()
	s.Start()
	if err := n.ready(ctx, natsStartTimeout); err != nil {
		return n, fmt.Errorf("start nats in %s: %w", o.Dir, err)
	}
	n.url = s.ClientURL()
	return n, nil
}

// check reports whether NATS accepts connections.
func (n *natsServer) check(ctx context.Context) error {
	return n.ready(ctx, natsCheckTimeout)
}

// ready waits until NATS accepts connections, no longer than ctx and limit.
func (n *natsServer) ready(ctx context.Context, limit time.Duration) error {
	if d, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(d))
	}
	accepts := n.server.ReadyForConnections(limit)
	switch {
	case n.fatal.cause() != nil:
		return n.fatal.cause()
	case ctx.Err() != nil:
		return ctx.Err()
	case !accepts:
		return fmt.Errorf("it did not accept connections within %v", limit.Round(time.Millisecond))
	case !n.server.JetStreamEnabled():
		return errors.New("its JetStream store is off; see the log for why, and look at the free space of the state directory")
	}
	return nil
}

// stop ends client connections and flushes the store.
func (n *natsServer) stop(ctx context.Context) error {
	return await(ctx, "stop nats", func() error {
		n.server.Shutdown()
		n.server.WaitForShutdown()
		return nil
	})
}
