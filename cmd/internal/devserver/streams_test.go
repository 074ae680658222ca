package devserver

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
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

// TestNoStreamIsMadeInThePlaceOfOneThatIsNotOpenYet has whoever keeps the streams look while NATS opens its store anew:
// what is stored must stay.
func TestNoStreamIsMadeInThePlaceOfOneThatIsNotOpenYet(t *testing.T) {
	t.Parallel()
	server, bare := startStreams(t, t.TempDir())
	if err := loop.EnsureStreams(t.Context(), server.Streams(bare)); err != nil {
		t.Fatal(err)
	}
	const messages = 10
	for range messages {
		if _, err := bare.Publish(t.Context(), wire.LoopSubject(wire.KindScheduled), nil); err != nil {
			t.Fatal(err)
		}
	}
	// It has just been opened: it is there, and is as it was after the next time, too.
	for _, js := range []jetstream.JetStream{server.Streams(opening{bare}), opening{bare}} {
		if err := loop.ContinueStream(t.Context(), js, messages); err != nil {
			t.Error(err)
		}
	}
	if err := server.nats.reopen(); err != nil {
		t.Fatal(err)
	}
	if got := count(t, bare); got != messages {
		t.Errorf("%d messages are there, want %d", got, messages)
	}
}

// TestAStreamThatNATSCannotOpenIsMadeWithWhatIsLeftOfIt damages the description of a stream on the disk: NATS starts
// without the stream, and whoever keeps the streams makes it of what is there.
func TestAStreamThatNATSCannotOpenIsMadeWithWhatIsLeftOfIt(t *testing.T) {
	t.Parallel()
	const messages = 10
	dir := t.TempDir()
	t.Run("whole", func(t *testing.T) {
		server, js := startStreams(t, dir)
		if err := loop.EnsureStreams(t.Context(), server.Streams(js)); err != nil {
			t.Fatal(err)
		}
		for range messages {
			if _, err := js.Publish(t.Context(), wire.LoopSubject(wire.KindScheduled), nil); err != nil {
				t.Fatal(err)
			}
		}
	})
	description := filepath.Join(dir, "nats", "jetstream", "$G", "streams", wire.LoopStream, "meta.inf")
	if err := os.WriteFile(description, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("damaged", func(t *testing.T) {
		server, js := startStreams(t, dir)
		if err := server.nats.check(t.Context()); err != nil {
			t.Error(err)
		}
		if got := server.nats.damaged; len(got) != 1 {
			t.Errorf("damaged are %v, want one stream", got)
		}
		if err := loop.ContinueStream(t.Context(), server.Streams(js), messages); err != nil {
			t.Error(err)
		}
		if err := loop.EnsureStreams(t.Context(), server.Streams(js)); err != nil {
			t.Fatal(err)
		}
		if got := count(t, js); got != messages {
			t.Errorf("%d messages are there, want %d", got, messages)
		}
		if got := server.nats.lost(); len(got) > 0 {
			t.Errorf("lost are %v", got)
		}
	})
	t.Run("afterwards", func(t *testing.T) {
		server, js := startStreams(t, dir)
		if got := server.nats.damaged; len(got) > 0 {
			t.Errorf("damaged are %v", got)
		}
		if got := count(t, js); got != messages {
			t.Errorf("%d messages are there, want %d", got, messages)
		}
	})
}

// startStreams starts NATS in dir and connects to it.
func startStreams(t *testing.T, dir string) (*Server, jetstream.JetStream) {
	t.Helper()
	server := startNATSAlone(t, dir, slog.New(slog.DiscardHandler))
	connection, err := nats.Connect("", nats.InProcessServer(server.nats.server), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(connection.Close)
	js, err := jetstream.New(connection)
	if err != nil {
		t.Fatal(err)
	}
	return server, js
}

// count returns how many messages the loop's stream holds.
func count(t *testing.T, js jetstream.JetStream) uint64 {
	t.Helper()
	stream, err := js.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}
