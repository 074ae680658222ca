// Package natstest runs a real NATS server with JetStream for tests.
package natstest

import (
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// readyWait bounds the start of a server on a busy machine.
const readyWait = 10 * time.Second

// Server is a server in this process that can be stopped and started again on the same files and port.
type Server struct {
	tb      testing.TB
	dir     string
	port    int
	running *server.Server
}

// Start returns a server that runs until the test ends.
func Start(tb testing.TB) *Server {
	tb.Helper()
	return StartOn(tb, tb.TempDir())
}

// StartOn returns a server that runs until the test ends on the files of another one that is not running.
func StartOn(tb testing.TB, dir string) *Server {
	tb.Helper()
	s := &Server{tb: tb, dir: dir, port: server.RANDOM_PORT}
	s.Restart()
	tb.Cleanup(s.Stop)
	return s
}

// Restart starts a server that was stopped.
func (s *Server) Restart() {
	s.tb.Helper()
	running, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: s.port, JetStream: true, StoreDir: s.dir, NoSigs: true, NoLog: true,
		JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 256 << 20,
	})
	if err != nil {
		s.tb.Fatal(err)
	}
	running.Start()
	if !running.ReadyForConnections(readyWait) {
		s.tb.Fatal("NATS is not ready")
	}
	s.running = running
	s.port = running.Addr().(*net.TCPAddr).Port
}

// Stop stops the server; one that is stopped stays so.
func (s *Server) Stop() {
	s.running.Shutdown()
	s.running.WaitForShutdown()
}

// Connect returns JetStream on a connection of its own, which lasts until the test ends and comes back when the server does.
func (s *Server) Connect() jetstream.JetStream {
	s.tb.Helper()
	connection, err := nats.Connect(s.running.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		s.tb.Fatal(err)
	}
	s.tb.Cleanup(connection.Close)
	js, err := jetstream.New(connection)
	if err != nil {
		s.tb.Fatal(err)
	}
	return js
}
