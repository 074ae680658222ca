package loop_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/predictor"
)

func TestMain(m *testing.M) {
	// The server's own goroutines may outlive its shutdown by a moment; goleak waits for them.
	goleak.VerifyTestMain(m)
}

// stream returns a JetStream context with the loop's streams.
func stream(t *testing.T) jetstream.JetStream {
	t.Helper()
	js := natstest.Start(t).Connect()
	ensure(t, js)
	return js
}

func ensure(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	if err := loop.EnsureStreams(t.Context(), js); err != nil {
		t.Fatal(err)
	}
}

// background runs work until the test ends or the returned function is called, which waits for it and returns its
// error.
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

var stage = predictor.StageID{App: "digits", Build: "b1", Name: "train"}
