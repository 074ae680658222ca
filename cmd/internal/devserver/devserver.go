// Package devserver runs a real Temporal server with its web UI and a real NATS JetStream server inside this process,
// or only one of them, or none, where an engine uses those of somebody else. The state directory is locked, and has its
// credentials, in any case.
//
// Everything listens on 127.0.0.1 only and keeps its state under one directory, so a server that is started again on
// that directory goes on where the last one stopped, however it stopped:
//
//	lock            who uses the directory
//	keys            its credentials (see package access)
//	temporal.db     namespaces, runs and their histories (SQLite, write-ahead log)
//	nats/jetstream  streams, key-value buckets and object stores
//
// It is the only importer of go.temporal.io/server, which takes minutes to compile.
package devserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/external"
)

// loopback is the only address that anything here listens on.
const loopback = "127.0.0.1"

// Namespace is the Temporal namespace that every server of this package has.
const Namespace = "default"

// Retention is how long closed runs are kept. An event starts its run exactly once only while that run is retained: a
// redelivery of the event after that would start it again.
const Retention = 30 * 24 * time.Hour

// MaxPayload is the largest NATS message, in bytes.
const MaxPayload = 8 << 20

// closeTimeout bounds Close. A quiet server closes in about two seconds, most of it Temporal draining its requests.
const closeTimeout = 20 * time.Second

// Options says where a server keeps its state and where it listens. Only Dir is required.
type Options struct {
	// Dir is the state directory; it is made if it is missing. Only one server at a time may use it. It must not be
	// removed while the process that served from it lives: Temporal's SQLite driver keeps its one connection open until
	// the process ends.
	Dir string
	// TemporalPort is the port of Temporal's gRPC frontend; 0 takes a free one.
	TemporalPort int
	// UIPort is the port of Temporal's web UI; 0 takes a free one.
	UIPort int
	// NATSPort is the port of NATS clients outside this process; 0 takes a free one.
	NATSPort int
	// NoUI leaves the web UI out.
	NoUI bool
	// UIDial is added to the connection of that UI to Temporal; nil adds nothing. It may read what is encrypted there.
	UIDial []grpc.DialOption
	// NoTemporal leaves Temporal out, and its web UI: another one is used.
	NoTemporal bool
	// NoNATS leaves NATS out: another one is used.
	NoNATS bool
	// Front makes NATS one that keeps nothing: it lets builds in, and hands what they may ask on to the servers that it is
	// a leaf node of. Nil has it keep what is published.
	Front *external.Leaf
	// SyncAlways flushes every write of NATS and of SQLite to the disk before it is acknowledged. Without it, a killed
	// process loses nothing, but a power cut may lose what was acknowledged last: the last transactions of Temporal and up
	// to two minutes of NATS.
	SyncAlways bool
	// BeforeLock is called, perhaps several times, when no other server has the directory, before anybody sees that this
	// one has it (see [access.EngineLives]) and before anything of it is used. An error keeps the server from starting.
	// Nil does nothing.
	BeforeLock func() error
	// Logger receives what the servers log as an error; nil discards it.
	Logger *slog.Logger

	// unfair makes Temporal serve tasks in the order in which they came, as it did until 2026-11-22; for tests of
	// databases from before.
	unfair bool
}

// validate refuses options that no server can be started with.
func (o Options) validate() error {
	if o.Dir == "" {
		return errors.New("start the embedded servers: no state directory is given; choose one with --state")
	}
	for _, p := range o.ports() {
		if p.port < 0 || p.port > 65535 {
			return fmt.Errorf("start the embedded servers: %s is %d; a port lies in 1 to 65535, and 0 takes a free one", p.name,
				p.port)
		}
	}
	return nil
}

// namedPort is a configured port with the name that a user knows it by.
type namedPort struct {
	name string
	port int
}

func (o Options) ports() []namedPort {
	return []namedPort{{"temporal-port", o.TemporalPort}, {"ui-port", o.UIPort}, {"nats-port", o.NATSPort}}
}

// Server is a running pair of servers. Its methods may be called concurrently. The zero value is not useful; use Start.
type Server struct {
	lock     *dirLock
	keys     *access.Keys
	nats     *natsServer     // nil when another NATS is used
	temporal *temporalServer // nil when another Temporal is used
	ui       *uiServer       // nil when the UI is off

	close  func() error
	closed chan struct{}
}

// Start starts the servers and returns once a workflow can be started and a message be published. A *PortError says
// that a configured port is taken, a *DirError that the state directory cannot be used. When ctx ends first, Start
// stops what it had started and returns ctx's error; afterwards ctx has no effect on the server, which runs until
// Close.
func Start(ctx context.Context, o Options) (*Server, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("start the embedded servers in %s: %w", o.Dir, err)
	}
	o.Dir = dir

	s := &Server{closed: make(chan struct{})}
	s.close = sync.OnceValue(s.shutdown)
	if err := s.start(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// start fills s part by part; after an error the parts it has are those to stop.
func (s *Server) start(ctx context.Context, o Options) error {
	var err error
	if s.lock, err = lockDir(o.Dir, o.BeforeLock); err != nil {
		return err
	}
	if s.keys, err = access.Open(o.Dir); err != nil {
		return err
	}
	if !o.NoUI && !o.NoTemporal { // before what takes longer, so that a taken port is told at once
		if s.ui, err = listenUI(ctx, o); err != nil {
			return err
		}
	}
	if !o.NoNATS {
		if s.nats, err = startNATS(ctx, o, s.keys); err != nil {
			return err
		}
	}
	if o.NoTemporal {
		return nil
	}
	if s.temporal, err = startTemporal(ctx, o, gate{s.keys}); err != nil {
		return err
	}
	if err := writeProfile(o.Dir, s.temporal.address, s.keys); err != nil {
		return err
	}
	if s.ui != nil {
		return s.ui.serve(s.temporal.address, s.keys, o)
	}
	return nil
}

// Keys are the credentials of the state directory.
func (s *Server) Keys() *access.Keys { return s.keys }

// Namespace is where runs are.
func (s *Server) Namespace() string { return Namespace }

// Retention is for how long closed runs are kept.
func (s *Server) Retention() time.Duration { return Retention }

// TemporalOptions are how Temporal's SDK connects as the owner. They lack a logger.
func (s *Server) TemporalOptions() client.Options {
	return client.Options{
		HostPort: s.temporal.address, Namespace: Namespace,
		Credentials:       client.NewAPIKeyStaticCredentials(s.keys.Token()),
		ConnectionOptions: client.ConnectionOptions{TLSDisabled: true}, // it does not leave this machine
	}
}

// DialTemporal connects to Temporal's gRPC frontend with all rights, for requests as they come; the caller closes the
// connection.
func (s *Server) DialTemporal(options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return gate{s.keys}.dial(s.temporal.address, options...)
}

// TemporalAddress is the host and port of Temporal's gRPC frontend. It answers who shows the owner's token.
func (s *Server) TemporalAddress() string { return s.temporal.address }

// UIURL is the address of Temporal's web UI, without a final slash; it is empty when Options.NoUI was set.
func (s *Server) UIURL() string {
	if s.ui == nil {
		return ""
	}
	return s.ui.url
}

// NATSURL is the address for NATS clients of other processes, such as nats://127.0.0.1:4222. They show NATSOwner and
// the owner's token, or what AdmitBuild has given them.
func (s *Server) NATSURL() string { return s.nats.url }

// ErrNoFront says that builds cannot be let into a NATS that is not here.
var ErrNoFront = errors.New("workers of builds and other hosts reach the NATS of --nats-url only through this " +
	"process, as a leaf node of it: give the URL where its servers take leaf nodes with --nats-leaf-url")

// AdmitBuild lets the workflow worker of a build connect to NATS until release is called, and returns the address for
// it, which holds its password. It may do what wire.BuildSubjects and wire.CheckTold say. It returns ErrNoFront where
// there is nothing in which to let it.
func (s *Server) AdmitBuild(app wire.App, build string) (address *url.URL, release func(), err error) {
	if s.nats == nil {
		return nil, nil, ErrNoFront
	}
	address, err = url.Parse(s.nats.url)
	if err != nil {
		return nil, nil, fmt.Errorf("address of nats: %w", err)
	}
	if address.User, release, err = s.nats.clients.admit(app, build); err != nil {
		return nil, nil, err
	}
	return address, release, nil
}

// HostsIn has hosts come in to NATS that are admitted, of which shows says whether they have shown that they are who
// they say.
func (s *Server) HostsIn(shows func(host, shown string) bool) {
	if s.nats != nil {
		s.nats.clients.isHost.Store(&shows)
	}
}

// HasNATS reports whether there is a NATS here, which lets builds and hosts in.
func (s *Server) HasNATS() bool { return s.nats != nil }

// AdmitHost lets a host that has joined connect to NATS until release is called, as wire.HostUserPrefix and its name.
// It may do what wire.HostSubjects and wire.CheckHostTold say; proves says that it shows which attempts it was given.
func (s *Server) AdmitHost(host string, proves bool) (release func(), err error) {
	if s.nats == nil {
		return nil, ErrNoFront
	}
	return s.nats.clients.proxy.Load().AdmitHost(host, proves)
}

// ConnectNATS connects to NATS within this process, without a socket and with all rights, under a name that the server
// shows; the caller closes the connection.
func (s *Server) ConnectNATS(name string) (*nats.Conn, error) {
	connection, err := nats.Connect("", nats.InProcessServer(s.nats.server), nats.MaxReconnects(-1), nats.Name(name),
		nats.CustomInboxPrefix("_INBOX_engine")) // builds of earlier versions read _INBOX
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return connection, nil
}

// ErrClosed is Check's answer once Close has been called.
var ErrClosed = errors.New("the embedded servers are closed")

// Check reports whether Temporal's frontend serves requests and NATS accepts connections, where they are here. It waits
// no longer than ctx, and a second at most for NATS. A service of Temporal's that has failed for good is reported for
// ever: the process must be started again.
func (s *Server) Check(ctx context.Context) error {
	select {
	case <-s.closed:
		return ErrClosed
	default:
	}
	if s.temporal != nil {
		if err := s.temporal.check(ctx); err != nil {
			return fmt.Errorf("check temporal at %s: %w", s.temporal.address, err)
		}
	}
	if s.nats != nil {
		if err := s.nats.check(ctx); err != nil {
			return fmt.Errorf("check nats at %s: %w", s.nats.url, err)
		}
	}
	return nil
}

// Close stops the servers, letting running requests end, and frees the ports and the state directory. It takes 20
// seconds at most; what has not stopped by then is named in the error, and the state directory stays locked until the
// process ends. Calls after the first return what the first returned.
//
// About a hundred goroutines stay until the process ends: Temporal never stops some workers of its own system
// workflows, which go on trying the closed port every few seconds, and its SQLite driver keeps one connection.
func (s *Server) Close() error { return s.close() }

func (s *Server) shutdown() error {
	close(s.closed)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()

	var errs []error
	if s.ui != nil {
		errs = append(errs, s.ui.stop(ctx))
	}
	if s.temporal != nil {
		errs = append(errs, s.temporal.stop(ctx))
	}
	if s.nats != nil {
		errs = append(errs, s.nats.stop(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the embedded servers: %w", err)
	}
	if s.lock != nil {
		return s.lock.unlock()
	}
	return nil
}

// await runs f, which cannot be interrupted, and waits for it until ctx ends. After that f is left to end by itself.
func await(ctx context.Context, what string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w; end this process to be rid of it", what, ctx.Err())
	}
}
