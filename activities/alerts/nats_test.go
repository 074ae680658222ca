package alerts_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities/alerts"
	"github.com/spillway-ml/spillway/activities/natstest"
)

func TestMain(m *testing.M) {
	// The server's own goroutines may outlive its shutdown by a moment; goleak waits for them.
	goleak.VerifyTestMain(m)
}

// startNATS returns a JetStream context on an in-process server with the stream of alerts, and its connection.
func startNATS(t *testing.T) (jetstream.JetStream, *nats.Conn) {
	t.Helper()
	js := natstest.Start(t).Connect()
	if err := alerts.EnsureStream(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	return js, js.Conn()
}
