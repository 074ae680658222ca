package loop_test

import (
	"context"
	"net"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/predictor"
)

func TestMain(m *testing.M) {
	// The server's own goroutines may outlive its shutdown by a moment; goleak waits for them.
	goleak.VerifyTestMain(m)
}

// server is an in-process NATS server that can be stopped and started again on the same files and port.
type server struct {
	t       *testing.T
	dir     string
	port    int
	running *natsserver.Server
}

func startServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), port: natsserver.RANDOM_PORT}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *server) start() {
	s.t.Helper()
	running, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: s.port, JetStream: true, StoreDir: s.dir, NoSigs: true, NoLog: true,
		JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 256 << 20,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	running.Start()
	if !running.ReadyForConnections(10 * time.Second) {
		s.t.Fatal("NATS is not ready")
	}
	s.running = running
	s.port = running.Addr().(*net.TCPAddr).Port
}

func (s *server) stop() {
	s.running.Shutdown()
	s.running.WaitForShutdown()
}

// connect returns a JetStream context on a connection of its own.
func (s *server) connect() jetstream.JetStream {
	s.t.Helper()
	connection, err := nats.Connect(s.running.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(connection.Close)
	js, err := jetstream.New(connection)
	if err != nil {
		s.t.Fatal(err)
	}
	return js
}

// stream returns a JetStream context with the loop's streams.
func stream(t *testing.T) jetstream.JetStream {
	t.Helper()
	js := startServer(t).connect()
	ensure(t, js)
	return js
}

func ensure(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	if err := loop.EnsureStreams(t.Context(), js); err != nil {
		t.Fatal(err)
	}
}

// background runs work until the test ends or the returned function is called, which waits for it and returns its error.
func background(t *testing.T, work func(ctx context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = work(ctx)
	}()
	stop = func() error {
		cancel()
		<-done
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

// receive returns the next value, or fails the test after some seconds.
func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: nothing came", what)
		panic("unreachable")
	}
}

var stage = predictor.StageID{App: "digits", Build: "b1", Name: "train"}
