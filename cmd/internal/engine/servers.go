package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"

	"github.com/spillway-ml/spillway/cmd/internal/devserver"
	"github.com/spillway-ml/spillway/cmd/internal/external"
	"github.com/spillway-ml/spillway/cmd/internal/payloads"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// temporalServer is the Temporal that an engine runs on: one in this process, or one of somebody else.
type temporalServer interface {
	TemporalAddress() string
	// TemporalOptions lack a logger, and what the engine's data needs.
	TemporalOptions() client.Options
	// DialTemporal connects with all rights that the engine has; the caller closes the connection.
	DialTemporal(options ...grpc.DialOption) (*grpc.ClientConn, error)
	Namespace() string
	// Retention is for how long closed runs are kept: the horizon of what is known of them, and of which event has started
	// its run.
	Retention() time.Duration
}

// natsServer is the NATS that an engine runs on, likewise.
type natsServer interface {
	NATSURL() string
	// ConnectNATS connects with all rights that the engine has; the caller closes the connection.
	ConnectNATS(name string) (*nats.Conn, error)
	// Streams returns what streams are made with.
	Streams(js jetstream.JetStream) jetstream.JetStream
}

var (
	_ temporalServer = (*devserver.Server)(nil)
	_ temporalServer = (*external.Temporal)(nil)
	_ natsServer     = (*devserver.Server)(nil)
	_ natsServer     = (*external.NATS)(nil)
)

// servers are both, with what is of this process in any case: the lock and the credentials of the state directory, and
// the door through which builds reach NATS.
type servers struct {
	temporalServer
	natsServer

	own    *devserver.Server
	keys   *payloads.Keys    // nil for none
	codec  *payloads.Codec   // what Temporal is given goes through it
	coded  []grpc.DialOption // has a connection do so
	checks []func(context.Context) error
	closes []func() error // in the order of opening
}

// openServers connects to the servers of somebody else and starts those that are left.
func openServers(ctx context.Context, config *Config) (_ *servers, err error) {
	s := &servers{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.readKeys(config); err != nil {
		return nil, err
	}
	options := devserver.Options{
		Dir: config.StateDir, TemporalPort: config.Ports.Temporal, UIPort: config.Ports.UI, NATSPort: config.Ports.NATS,
		NoUI: config.NoUI, UIDial: s.coded, Logger: config.Logger,
		// What a killed engine has left must not make anybody show a token at a port that is not this engine's.
		BeforeLock: func() error { return web.RemoveStackFile(config.StateDir) },
	}
	if config.Temporal.Address != "" {
		temporal, err := external.OpenTemporal(ctx, config.Temporal, config.Logger)
		if err != nil {
			return nil, err
		}
		s.add(temporal.Check, temporal.Close)
		s.temporalServer, options.NoTemporal = temporal, true
	}
	if len(config.NATS.URLs) > 0 {
		nats, err := external.OpenNATS(ctx, config.NATS, config.Logger)
		if err != nil {
			return nil, err
		}
		s.add(nats.Check, nats.Close)
		s.natsServer, options.Front = nats, nats.Leaf()
		options.NoNATS = options.Front == nil
	}
	if s.own, err = startOwn(ctx, config.Ports.Usual, options); err != nil {
		return nil, err
	}
	s.add(s.own.Check, s.own.Close)
	if s.temporalServer == nil {
		s.temporalServer = s.own
	}
	if s.natsServer == nil {
		s.natsServer = s.own
	}
	return s, nil
}

// readKeys reads the keys of payloads, before anything is started: what is wrong with them is said at once.
func (s *servers) readKeys(config *Config) (err error) {
	var keys *payloads.Keys
	if config.PayloadKeys != "" {
		if keys, err = payloads.ReadKeys(config.PayloadKeys); err != nil {
			return fmt.Errorf("read the payload keys: %w", err)
		}
	}
	s.keys, s.codec = keys, payloads.New(keys, config.Logger)
	s.coded, err = s.codec.DialOptions()
	return err
}

// TemporalOptions implements temporalServer. What is sent by them is encrypted where there are keys.
func (s *servers) TemporalOptions() client.Options {
	options := s.temporalServer.TemporalOptions()
	options.ConnectionOptions.DialOptions = append(options.ConnectionOptions.DialOptions, s.coded...)
	return options
}

// DialTemporal implements temporalServer, likewise: what lies behind the proxies of builds and hosts is encrypted, and
// they need no key.
func (s *servers) DialTemporal(options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return s.temporalServer.DialTemporal(append(slices.Clone(options), s.coded...)...)
}

func (s *servers) add(check func(context.Context) error, end func() error) {
	s.checks, s.closes = append(s.checks, check), append(s.closes, end)
}

// startOwn starts what is of this process, on the usual ports where those are wanted and free; again where another
// program has taken one meanwhile.
func startOwn(ctx context.Context, usual bool, options devserver.Options) (*devserver.Server, error) {
	for try := 1; ; try++ {
		chosen := options
		if usual {
			if err := chooseUsual(ctx, &chosen); err != nil {
				return nil, err
			}
		}
		own, err := devserver.Start(ctx, chosen)
		var occupied *devserver.DirError
		if err == nil || !usual || try == portTries || errors.As(err, &occupied) {
			return own, err
		}
		options.Logger.DebugContext(ctx, "start the servers again on other ports", "error", err)
	}
}

// chooseUsual chooses the ports that are still open: the usual ones where they are free.
func chooseUsual(ctx context.Context, options *devserver.Options) error {
	for _, port := range []struct {
		chosen *int
		usual  int
	}{{&options.TemporalPort, UsualTemporal}, {&options.UIPort, UsualUI}, {&options.NATSPort, UsualNATS}} {
		if *port.chosen != 0 {
			continue
		}
		free, _, err := devserver.ChoosePort(ctx, port.usual)
		if err != nil {
			return err
		}
		*port.chosen = free
	}
	return nil
}

// Check reports whether both serve.
func (s *servers) Check(ctx context.Context) error {
	for _, check := range s.checks {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close ends what was started, and the connections to the others.
func (s *servers) Close() error {
	var errs []error
	for _, end := range slices.Backward(s.closes) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}
