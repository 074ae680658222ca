package devserver

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
)

// opening is JetStream that has not opened its streams yet.
type opening struct{ jetstream.JetStream }

func (opening) Stream(context.Context, string) (jetstream.Stream, error) {
	return nil, jetstream.ErrStreamNotFound
}

// TestNoStreamIsMadeInThePlaceOfOneThatIsNotOpenYet has whoever keeps the streams look while NATS opens its store anew: what is stored must stay.
func TestNoStreamIsMadeInThePlaceOfOneThatIsNotOpenYet(t *testing.T) {
	t.Parallel()
	server := startNATSAlone(t, t.TempDir(), slog.New(slog.DiscardHandler))
	connection, err := nats.Connect("", nats.InProcessServer(server.nats.server), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	bare, err := jetstream.New(connection)
	if err != nil {
		t.Fatal(err)
	}
	if err := loop.EnsureStreams(t.Context(), server.Streams(bare)); err != nil {
		t.Fatal(err)
	}
	const messages = 10
	for range messages {
		if _, err := bare.Publish(t.Context(), wire.LoopSubject(wire.KindScheduled), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := loop.ContinueStream(t.Context(), server.Streams(opening{bare}), messages); !errors.Is(err, ErrNotOpen) {
		t.Errorf("while it is opened: got %v, want %v", err, ErrNotOpen)
	}
	if err := loop.EnsureStreams(t.Context(), server.Streams(opening{bare})); !errors.Is(err, ErrNotOpen) {
		t.Errorf("while they are opened: got %v, want %v", err, ErrNotOpen)
	}
	// It has just been opened: it is there, and is as it was after the next time, too.
	if err := loop.ContinueStream(t.Context(), opening{bare}, messages); err != nil {
		t.Error(err)
	}
	if err := server.nats.reopen(); err != nil {
		t.Fatal(err)
	}
	stream, err := bare.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	if got := stream.CachedInfo().State.Msgs; got != messages {
		t.Errorf("%d messages are there, want %d", got, messages)
	}
}
