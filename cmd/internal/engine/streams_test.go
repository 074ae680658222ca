package engine_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// What is in memory is gone after NATS had to open its store anew.
func TestBucketsInMemoryThatAreGoneAreMadeAnew(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0))
	e.leads()
	succeed[map[string]int](e, e.publish("echo", "before", map[string]int{"index": 1}), time.Minute)

	connection := e.dialNATS()
	defer connection.Close()
	js, err := jetstream.New(connection)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"KV_spillway_hosts", "KV_spillway_lead"} {
		if err := js.DeleteStream(t.Context(), name); err != nil {
			t.Errorf("delete %s: %v", name, err)
		}
	}
	e.until("the host is there again", func() bool {
		stack, err := e.client.Stack(t.Context())
		return err == nil && len(stack.Hosts) == 1
	})
	succeed[map[string]int](e, e.publish("echo", "after", map[string]int{"index": 2}), 2*time.Minute)
	e.leads()
}
