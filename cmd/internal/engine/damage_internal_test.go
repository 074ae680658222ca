package engine

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/natstest"
	streammarks "github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// watched are stores with a stream of events, of which config says more, that has ten messages and is remembered.
func watched(t *testing.T, config jetstream.StreamConfig) (*stores, jetstream.Stream) {
	t.Helper()
	js := natstest.Start(t).Connect()
	config.Name, config.Subjects = wire.EventStream, []string{"events.>", trigger.UnreadSubject}
	stream, err := js.CreateStream(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := js.Publish(t.Context(), "events.one", nil); err != nil {
			t.Fatal(err)
		}
	}
	ledger, err := ledgerstore.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ledger.Close(); err != nil {
			t.Error(err)
		}
	})
	life := &lifecycle{logger: slog.New(slog.DiscardHandler)}
	s := &stores{base: &base{lifecycle: life, config: &Config{Clock: time.Now}}, stream: js, ledger: ledger}
	if err := s.remember(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, stream
}

func TestALossIsTheSameUntilItIsRemembered(t *testing.T) {
	t.Parallel()
	s, stream := watched(t, jetstream.StreamConfig{})
	find := func() string {
		t.Helper()
		losses, err := s.findLosses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(losses) == 0 {
			return ""
		}
		if len(losses) > 1 || losses[0].Messages != 1 || losses[0].Stream != wire.EventStream {
			t.Errorf("found %+v, want one message of %s", losses, wire.EventStream)
		}
		return losses[0].behind()
	}
	var found []string
	for sequence := range uint64(2) {
		if err := stream.DeleteMsg(t.Context(), 4+2*sequence); err != nil {
			t.Fatal(err)
		}
		first := find()
		if _, err := s.stream.Publish(t.Context(), "events.one", nil); err != nil { // the engine went on, and was killed
			t.Fatal(err)
		}
		if again := find(); again != first || first == "" {
			t.Errorf("it was found behind %q, and again behind %q", first, again)
		}
		if err := s.remember(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := find(); left != "" {
			t.Errorf("found again behind %q after it was remembered", left)
		}
		found = append(found, first)
	}
	if found[0] == found[1] {
		t.Errorf("both losses are behind %q", found[0])
	}
}

// TestAStreamThatCannotGoOnBehindWhatIsKnownSaysWhatToDo has a stream lose its end and take no more messages, as on a
// full disk.
func TestAStreamThatCannotGoOnBehindWhatIsKnownSaysWhatToDo(t *testing.T) {
	t.Parallel()
	s, _ := watched(t, jetstream.StreamConfig{MaxMsgs: 10, Discard: jetstream.DiscardNew})
	err := s.ledger.Remember(t.Context(), map[string]streammarks.Mark{wire.EventStream: {First: 1, Last: 15}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.findLosses(t.Context())
	for _, want := range []string{wire.EventStream, "maximum messages", "make room in the state directory"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want that it says %q", err, want)
		}
	}
}
