package devserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// natsStartTimeout bounds the start of NATS: about 12 ms when its store is empty, longer when it recovers large streams.
	natsStartTimeout = 30 * time.Second
	// natsCheckTimeout bounds the check of NATS.
	natsCheckTimeout = time.Second
	// mendPause is the time between two looks at whether the store still writes.
	mendPause = 2 * time.Second
)

// natsServer is the NATS server with its JetStream store.
type natsServer struct {
	server  *natsserver.Server
	clients *natsClients
	url     string
	fatal   *fatality
	logger  *slog.Logger

	store    natsserver.JetStreamConfig // of the open store
	stopping chan struct{}              // closed when mend shall end
	mended   chan struct{}              // closed when mend has ended; nil before it began
}

// startNATS starts NATS on o.NATSPort and returns once it accepts connections. A server that comes with an error is to be stopped.
func startNATS(ctx context.Context, o Options, keys *access.Keys) (*natsServer, error) {
	r, err := reserve(ctx, o.NATSPort)
	if err != nil {
		return nil, &PortError{Name: "nats-port", Port: o.NATSPort, Err: err}
	}
	defer r.free()
	storeDir := filepath.Join(o.Dir, "nats")
	clients := &natsClients{keys: keys, builds: map[string]wire.Rights{}}
	s, err := natsserver.NewServer(&natsserver.Options{
		ServerName: "spillway",
		Host:       loopback,
		Port:       r.port,
		MaxPayload: MaxPayload,
		JetStream:  true,
		StoreDir:   storeDir,
		SyncAlways: o.SyncAlways,
		NoSigs:     true,
		MaxConn:    maxClients,

		CustomClientAuthentication: clients,
	})
	if err != nil {
		return nil, fmt.Errorf("start nats in %s: %w", o.Dir, err)
	}
	n := &natsServer{server: s, clients: clients, fatal: &fatality{}, logger: o.Logger, stopping: make(chan struct{})}
	s.SetLoggerV2(natsLog{o.Logger, n.fatal}, false, false, false)
	r.handOver()
	s.Start()
	if err := n.ready(ctx, natsStartTimeout); err != nil {
		return n, fmt.Errorf("start nats in %s: %w", o.Dir, err)
	}
	n.url = s.ClientURL()
	if err := writeContext(o.Dir, n.url, keys); err != nil {
		return n, err
	}
	n.store = *s.JetStreamConfig()
	n.store.StoreDir = storeDir
	n.mended = make(chan struct{})
	go n.mend()
	return n, nil
}

// check reports whether NATS accepts connections and keeps what is published.
func (n *natsServer) check(ctx context.Context) error {
	return n.ready(ctx, natsCheckTimeout)
}

// writes reports that the store is closed, or else the first stream that has failed to write or that is on the disk and not open.
func (n *natsServer) writes() error {
	if !n.server.JetStreamEnabled() {
		return errors.New("its JetStream store is off; see the log for why, and look at the free space of the state directory")
	}
	for _, e := range n.server.Healthz(&natsserver.HealthzOptions{Details: true}).Errors {
		if e.Type == natsserver.HealthzErrorStream && (strings.Contains(e.Error, "write error") || strings.Contains(e.Error, "could not be recovered")) {
			return fmt.Errorf("%s; make room in the state directory: it is tried again every %v", e.Error, mendPause)
		}
	}
	return nil
}

// mend opens the store anew whenever a stream has failed to write, or to open, until stop. NATS refuses everything to such a stream from then on, even
// when the disk has room again; opened anew it has all that it ever acknowledged.
func (n *natsServer) mend() {
	defer close(n.mended)
	for {
		select {
		case <-n.stopping:
			return
		case <-time.After(mendPause):
		}
		err := n.writes()
		if err == nil || n.fatal.cause() != nil {
			continue
		}
		n.logger.Error("nats keeps nothing; its store is opened anew", "error", err)
		if err := n.reopen(); err != nil {
			n.logger.Error("nats cannot open its store", "error", err)
		}
	}
}

// reopen closes the store, if it is open, and opens it. Clients stay connected.
func (n *natsServer) reopen() error {
	if err := n.server.ShutdownJetStream(); err != nil {
		return fmt.Errorf("close it: %w", err)
	}
	store := n.store
	return n.server.EnableJetStream(&store)
}

// ready waits until NATS accepts connections, no longer than ctx and limit, and reports whether it keeps what is published.
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
	}
	return n.writes()
}

// stop ends client connections and flushes the store.
func (n *natsServer) stop(ctx context.Context) error {
	return await(ctx, "stop nats", func() error {
		if n.mended != nil {
			close(n.stopping)
			<-n.mended
		}
		n.server.Shutdown()
		n.server.WaitForShutdown()
		return nil
	})
}
