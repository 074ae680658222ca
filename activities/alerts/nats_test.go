package alerts_test

import (
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities/alerts"
)

func TestMain(m *testing.M) {
	// The server's own goroutines may outlive its shutdown by a moment; goleak waits for them.
	goleak.VerifyTestMain(m)
}

// startNATS returns a JetStream context on an in-process server with the stream of alerts, and its connection.
func startNATS(t *testing.T) (jetstream.JetStream, *nats.Conn) {
	t.Helper()
	server, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true, JetStreamMaxStore: 1 << 30,
	})
	if err != nil {
		t.Fatal(err)
	}
	server.Start()
	t.Cleanup(func() {
		server.Shutdown()
		server.WaitForShutdown()
	})
	if !server.ReadyForConnections(10 * time.Second) {
		t.Fatal("NATS is not ready")
	}
	connection, err := nats.Connect(server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(connection.Close)
	js, err := jetstream.New(connection)
	if err != nil {
		t.Fatal(err)
	}
	if err := alerts.EnsureStream(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	return js, connection
}
