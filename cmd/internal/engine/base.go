package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/cmd/internal/devserver"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// portTries is how often usual ports are chosen anew when another program takes one between the choice and its use.
const portTries = 3

// base is what everything else of an engine stands on: the embedded servers, and the port of the API. Each later part
// of the engine embeds the one before, so that what a part needs is there when it is opened.
type base struct {
	*lifecycle

	config    *Config
	listener  net.Listener
	servers   *devserver.Server
	addresses web.Addresses
}

// openBase opens the port of the API and starts the servers.
func openBase(ctx context.Context, life *lifecycle, config *Config) (*base, error) {
	listener, err := listen(ctx, config.Ports)
	if err != nil {
		return nil, err
	}
	life.onClose("the port of the API", func(context.Context) error {
		if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	for try := 1; ; try++ {
		servers, err := startServers(ctx, config)
		var occupied *devserver.DirError
		if err != nil && config.Ports.Usual && try < portTries && !errors.As(err, &occupied) {
			life.logger.DebugContext(ctx, "start the servers again on other ports", "error", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		life.onClose("the servers", func(context.Context) error { return servers.Close() })
		return &base{life, config, listener, servers, web.Addresses{
			HTTP: "http://" + listener.Addr().String(), Temporal: servers.TemporalAddress(), TemporalUI: servers.UIURL(),
			NATS: servers.NATSURL(),
		}}, nil
	}
}

// listen opens the port of the API: the one that was asked for, else the usual one while it is free, else any.
func listen(ctx context.Context, ports Ports) (net.Listener, error) {
	open := func(port int) (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	port := ports.HTTP
	if port == 0 && ports.Usual {
		if listener, err := open(UsualHTTP); err == nil {
			return listener, nil
		}
	}
	listener, err := open(port)
	if err != nil {
		return nil, &devserver.PortError{Name: "http-port", Port: port, Err: err}
	}
	return listener, nil
}

// startServers starts the servers, on the usual ports where those are wanted and free.
func startServers(ctx context.Context, config *Config) (*devserver.Server, error) {
	ports := config.Ports
	if ports.Usual {
		for _, port := range []struct {
			chosen *int
			usual  int
		}{{&ports.Temporal, UsualTemporal}, {&ports.UI, UsualUI}, {&ports.NATS, UsualNATS}} {
			if *port.chosen != 0 {
				continue
			}
			free, _, err := devserver.ChoosePort(ctx, port.usual)
			if err != nil {
				return nil, err
			}
			*port.chosen = free
		}
	}
	return devserver.Start(ctx, devserver.Options{
		Dir: config.StateDir, TemporalPort: ports.Temporal, UIPort: ports.UI, NATSPort: ports.NATS, NoUI: config.NoUI,
		Logger: config.Logger,
		// What a killed engine has left must not make anybody show a token at a port that is not this engine's.
		BeforeLock: func() error { return web.RemoveStackFile(config.StateDir) },
	})
}

// connectNATS returns JetStream on a connection of its own.
func (b *base) connectNATS(name string) (jetstream.JetStream, error) {
	connection, err := nats.Connect("", nats.InProcessServer(b.servers.NATSInProcess()), nats.MaxReconnects(-1),
		nats.Name(name),
		nats.CustomInboxPrefix("_INBOX_engine")) // builds of earlier versions read _INBOX
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	b.onClose("the connection to NATS of "+name, func(context.Context) error { connection.Close(); return nil })
	stream, err := jetstream.New(connection)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return b.servers.Streams(stream), nil
}
