package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/cmd/internal/devserver"
	"github.com/spillway-ml/spillway/cmd/internal/host"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// portTries is how often usual ports are chosen anew when another program takes one between the choice and its use.
const portTries = 3

// base is what everything else of an engine stands on: the servers, and the port of the API. Each later part
// of the engine embeds the one before, so that what a part needs is there when it is opened.
type base struct {
	*lifecycle

	config    *Config
	listener  net.Listener
	servers   *servers
	addresses web.Addresses
	self      loop.Server // what this server tells the others, but for its address
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
	servers, err := openServers(ctx, config)
	if err != nil {
		return nil, err
	}
	life.onClose("the servers", func(context.Context) error { return servers.Close() })
	return &base{life, config, listener, servers, web.Addresses{
		HTTP: "http://" + listener.Addr().String(), Temporal: servers.TemporalAddress(), TemporalUI: servers.own.UIURL(),
		NATS: servers.NATSURL(),
	}, loop.Server{
		ID: newServerID(), Name: host.Name(), Origin: originOf(config.StateDir), Version: config.Version,
		Alone: AloneBecause(config), StartedAt: config.Clock(),
	}}, nil
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

// connectNATS returns JetStream on a connection of its own.
func (b *base) connectNATS(name string) (jetstream.JetStream, error) {
	connection, err := b.servers.ConnectNATS(name)
	if err != nil {
		return nil, err
	}
	b.onClose("the connection to NATS of "+name, func(context.Context) error { connection.Close(); return nil })
	stream, err := jetstream.New(connection)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return b.servers.Streams(stream), nil
}
