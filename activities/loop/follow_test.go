package loop_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
)

// seen is one call of a follower's function.
type seen struct {
	sequence uint64
	message  wire.Message
}

// follow collects what Follow hands out.
func follow(t *testing.T, js jetstream.JetStream, from uint64) (<-chan seen, func() error) {
	t.Helper()
	calls := make(chan seen, 1024)
	return calls, background(t, func(ctx context.Context) error {
		return loop.Follow(ctx, js, from, nil, func(line loop.Line) error {
			calls <- seen{line.Sequence, line.Message}
			return nil
		})
	})
}

func recordTasks(t *testing.T, r *loop.Recorder, from, to int) {
	t.Helper()
	for task := from; task < to; task++ {
		if err := r.Record(t.Context(), record(fmt.Sprintf("train-%d", task), 1)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFollowStartsAtAnySequenceAndGoesOnLive(t *testing.T) {
	t.Parallel()
	js := stream(t)
	r := recorder(t, js, nil)
	recordTasks(t, r, 1, 11)
	for _, from := range []uint64{0, 1, 4, 10, 11, 13} {
		t.Run(fmt.Sprint("from ", from), func(t *testing.T) {
			calls, stop := follow(t, js, from)
			for want := max(from, 1); want <= 10; want++ {
				got := natstest.Receive(t, calls, "message")
				if diff := cmp.Diff(seen{want, wire.Message{Event: record(fmt.Sprintf("train-%d", want), 1)}}, got,
					cmp.AllowUnexported(seen{})); diff != "" {
					t.Errorf("call (-want +got):\n%s", diff)
				}
			}
			if err := stop(); !errors.Is(err, context.Canceled) {
				t.Errorf("Follow ended with %v", err)
			}
		})
	}
	calls, _ := follow(t, js, 13)
	recordTasks(t, r, 11, 14)
	if got := natstest.Receive(t, calls, "live message").sequence; got != 13 {
		t.Errorf("first live message has sequence %d, want 13", got)
	}
}

func TestUnreadableMessagesKeepTheirSequence(t *testing.T) {
	t.Parallel()
	js := stream(t)
	for _, data := range []string{
		"", "{", `{"v":99,"kind":"record","body":{}}`, `{"v":1,"kind":"gossip","body":{}}`,
		`{"v":1,"kind":"record","body":7}`,
	} {
		if _, err := js.Publish(t.Context(), wire.LoopSubject(wire.KindRecord), []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	recordTasks(t, recorder(t, js, nil), 1, 2)
	calls, _ := follow(t, js, 0)
	for want := uint64(1); want <= 6; want++ {
		got := natstest.Receive(t, calls, "message")
		if readable := got.message.Event != nil; got.sequence != want || readable != (want == 6) {
			t.Errorf("got sequence %d, %+v; want %d, readable only the sixth", got.sequence, got.message, want)
		}
	}
}

func TestFollowReturnsTheErrorOfItsFunction(t *testing.T) {
	t.Parallel()
	js := stream(t)
	recordTasks(t, recorder(t, js, nil), 1, 3)
	full := errors.New("disk is full")
	calls := 0
	err := loop.Follow(t.Context(), js, 0, nil, func(loop.Line) error { calls++; return full })
	if !errors.Is(err, full) || calls != 1 {
		t.Errorf("Follow = %v after %d calls, want %v after 1", err, calls, full)
	}
}

func TestFollowHandsOutEverythingOnceAcrossARestartOfTheServer(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.Connect()
	ensure(t, js)
	r := recorder(t, js, nil)
	calls, _ := follow(t, js, 0)
	recordTasks(t, r, 1, 6)
	for want := uint64(1); want <= 5; want++ {
		if got := natstest.Receive(t, calls, "before").sequence; got != want {
			t.Fatalf("got sequence %d, want %d", got, want)
		}
	}
	server.Stop()
	server.Restart()
	recordTasks(t, r, 6, 11)
	for want := uint64(6); want <= 10; want++ {
		if got := natstest.Receive(t, calls, "after").sequence; got != want {
			t.Fatalf("got sequence %d, want %d", got, want)
		}
	}
}
