package devserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/access/natsaccess"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// natsStartTimeout bounds the start of NATS: about 12 ms when its store is empty, longer when it recovers large
	// streams.
	natsStartTimeout = 30 * time.Second
	// natsCheckTimeout bounds the check of NATS.
	natsCheckTimeout = time.Second
	// recoverPause is the time between two looks at whether the store still writes.
	recoverPause = 2 * time.Second
	// mostTries is how often the store is opened anew for the sake of a stream that could not be read: it may be damaged,
	// and the others must go on.
	mostTries = 30
)

// natsServer is the NATS server with its JetStream store.
type natsServer struct {
	server  *natsserver.Server
	clients *natsClients
	url     string
	fatal   *fatality
	logger  *slog.Logger

	front     bool                       // it keeps nothing, and is a leaf node of others
	store     natsserver.JetStreamConfig // of the open store
	opening   sync.RWMutex               // held while the store is opened anew, and read while a stream is made
	mu        sync.Mutex
	damaged   []string      // the streams that could not be read at the start and were not made since; guarded by mu
	stopping  chan struct{} // closed when recoverStore shall end
	recovered chan struct{} // closed when recoverStore has ended; nil before it began
}

// startNATS starts NATS on o.NATSPort and returns once it accepts connections. A server that comes with an error is to
// be stopped.
func startNATS(ctx context.Context, o Options, keys *access.Keys) (*natsServer, error) {
	r, err := reserve(ctx, o.NATSPort)
	if err != nil {
		return nil, &PortError{Name: "nats-port", Port: o.NATSPort, Err: err}
	}
	defer r.free()
	storeDir := filepath.Join(o.Dir, "nats")
	clients := &natsClients{keys: keys, logger: o.Logger}
	options := &natsserver.Options{
		ServerName: "spillway",
		Host:       loopback,
		Port:       r.port,
		MaxPayload: MaxPayload,
		JetStream:  true,
		StoreDir:   storeDir,
		SyncAlways: o.SyncAlways,
		NoSigs:     true,
		MaxConn:    maxClients,
		MaxPending: maxPending,
		MaxSubs:    maxSubscriptions,

		CustomClientAuthentication: clients,
	}
	if o.Front != nil {
		if err := lean(ctx, o.Front, options); err != nil {
			return nil, err
		}
	}
	s, err := natsserver.NewServer(options)
	if err != nil {
		return nil, fmt.Errorf("start nats in %s: %w", o.Dir, err)
	}
	n := &natsServer{
		server: s, clients: clients, front: o.Front != nil, fatal: &fatality{}, logger: o.Logger,
		stopping: make(chan struct{}),
	}
	s.SetLoggerV2(natsLog{o.Logger, n.fatal}, false, false, false)
	r.handOver()
	s.Start()
	if n.front {
		err = n.join(ctx)
	} else {
		err = n.ready(ctx, natsStartTimeout)
	}
	if err != nil {
		return n, fmt.Errorf("start nats in %s: %w", o.Dir, err)
	}
	n.url = s.ClientURL()
	rights := &natsaccess.Options{
		Genuine: results.Signing{Public: keys.PublicKey()}.Genuine, Given: wire.Opener(keys.OpenGiven), Logger: o.Logger,
	}
	if n.front {
		rights.Instance = strings.ToLower(rand.Text())
	}
	clients.proxy.Store(natsaccess.New(s, rights))
	if n.front {
		return n, nil
	}
	if err := writeContext(o.Dir, n.url, keys); err != nil {
		return n, err
	}
	n.store = *s.JetStreamConfig()
	n.store.StoreDir = storeDir
	n.damaged = n.shut()
	if len(n.damaged) > 0 {
		n.logger.ErrorContext(ctx, "nats cannot read streams that are on the disk; those that the engine needs are made "+
			"with what is left of them", "streams", n.damaged)
	}
	n.recovered = make(chan struct{})
	go n.recoverStore()
	return n, nil
}

// check reports whether NATS accepts connections and keeps what is published.
func (n *natsServer) check(ctx context.Context) error {
	return n.ready(ctx, natsCheckTimeout)
}

// writes reports that the store is closed, or else the first stream that has failed to write; of a server that keeps
// nothing, that it has lost the others.
func (n *natsServer) writes() error {
	if n.front {
		return n.joined()
	}
	if !n.server.JetStreamEnabled() {
		return errors.New("its JetStream store is off; see the log for why, and look at the free space of the " +
			"state directory")
	}
	for _, e := range n.unhealthy("write error") {
		return fmt.Errorf("%s; make room in the state directory: it is tried again every %v", e.Error, recoverPause)
	}
	return nil
}

// shut names the streams that are on the disk and not open.
func (n *natsServer) shut() (streams []string) {
	for _, e := range n.unhealthy("could not be recovered") {
		streams = append(streams, e.Stream)
	}
	return streams
}

// unhealthy lists what NATS says of streams in words that contain symptom.
func (n *natsServer) unhealthy(symptom string) []natsserver.HealthzError {
	return slices.DeleteFunc(n.server.Healthz(&natsserver.HealthzOptions{Details: true}).Errors,
		func(e natsserver.HealthzError) bool {
			return e.Type != natsserver.HealthzErrorStream || !strings.Contains(e.Error, symptom)
		})
}

// lost names the streams that are not open and were at the start: opening the store failed for them, as it does on a
// full disk.
func (n *natsServer) lost() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(n.shut(), func(stream string) bool { return slices.Contains(n.damaged, stream) })
}

// setAside takes the description of a stream that could not be read at the start out of the way of whoever makes the
// stream again: NATS writes none where there is one. What the stream holds stays.
func (n *natsServer) setAside(stream string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Contains(n.damaged, stream) {
		return nil
	}
	description := filepath.Join(n.streamDir(stream), "meta.inf")
	if err := os.Rename(description, description+".damaged"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("make the damaged stream %s again: %w", stream, err)
	}
	n.damaged = slices.DeleteFunc(n.damaged, func(other string) bool { return other == stream })
	return nil
}

// streamDir is where a stream is stored. Only the account of the engine has any.
func (n *natsServer) streamDir(stream string) string {
	return filepath.Join(n.store.StoreDir, "jetstream", natsserver.DEFAULT_GLOBAL_ACCOUNT, "streams", stream)
}

// recoverStore opens the store anew whenever a stream has failed to write, or to open, until stop. NATS refuses
// everything to such a stream from then on, even when the disk has room again; opened anew it has all that it ever
// acknowledged.
func (n *natsServer) recoverStore() {
	defer close(n.recovered)
	lately := mostTries // how often the store was opened since it last wrote badly; mostTries before it ever did
	for {
		select {
		case <-n.stopping:
			return
		case <-time.After(recoverPause):
		}
		if n.fatal.cause() != nil {
			continue
		}
		err := n.writes()
		switch {
		case err != nil:
			lately = 0
		case lately < mostTries:
			// Only a store that was opened anew can have lost a stream; opening it once more helps as soon as the disk has room.
			lost := n.lost()
			if len(lost) == 0 {
				lately = mostTries
				continue
			}
			err = fmt.Errorf("streams were not opened: %s", strings.Join(lost, ", "))
		default:
			continue
		}
		lately++
		n.logger.Error("nats keeps nothing, or not all; its store is opened anew", "error", err)
		if err := n.reopen(); err != nil {
			n.logger.Error("nats cannot open its store", "error", err)
		}
	}
}

// reopen closes the store, if it is open, and opens it. Clients stay connected.
func (n *natsServer) reopen() error {
	n.opening.Lock()
	defer n.opening.Unlock()
	if err := n.server.ShutdownJetStream(); err != nil {
		return fmt.Errorf("close it: %w", err)
	}
	store := n.store
	return n.server.EnableJetStream(&store)
}

// ready waits until NATS accepts connections, no longer than ctx and limit, and reports whether it keeps what is
// published.
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
		if n.recovered != nil {
			close(n.stopping)
			<-n.recovered
		}
		if proxy := n.clients.proxy.Load(); proxy != nil {
			proxy.Close()
		}
		n.server.Shutdown()
		n.server.WaitForShutdown()
		return nil
	})
}
