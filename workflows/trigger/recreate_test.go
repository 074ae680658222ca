package trigger

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
)

func TestAttackDeletedStreamsOfEventsAreMadeAnew(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "before")
	s.settled()
	for _, name := range []string{wire.EventStream, wire.DeadStream, wire.DoneStream} {
		if err := s.js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	reader := consumerPrefix + s.Bindings()[0].Key
	s.await("the binding has its reader again", func() (bool, string) {
		_, err := s.js.Consumer(t.Context(), wire.EventStream, reader)
		return err == nil, "no reader"
	})
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "after")
	s.await("the event starts its run", func() (bool, string) { return s.mem.get("digits-after").Run != "", "no run" })
	s.publish("events.unknown", `{}`, "Nats-Msg-Id", "nobody's")
	s.await("there are dead letters again", func() (bool, string) { return len(s.reasons()) == 1, "no dead letter" })
	told := map[string]bool{}
	for len(told) < 3 { // they may be found to be gone at different times
		for _, name := range <-s.lost {
			told[name] = true
		}
	}
}

// Whoever publishes before the trigger has looked makes the stream, and its event is for the binding that was there all
// the time.
func TestAttackAnEventInAStreamThatWasJustMadeAnewIsNotLost(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "before")
	s.settled()
	stream, err := s.js.Stream(t.Context(), wire.EventStream)
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	if err := s.js.DeleteStream(t.Context(), wire.EventStream); err != nil {
		t.Fatal(err)
	}
	if _, err := s.js.CreateStream(t.Context(), config); err != nil &&
		!errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		t.Fatal(err)
	}
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "at-once")
	s.await("the event starts its run", func() (bool, string) { return s.mem.get("digits-at-once").Run != "", "no run" })
	if lost := <-s.lost; !slices.Contains(lost, wire.EventStream) {
		t.Errorf("told of the loss of %v, want the events'", lost)
	}
}

func TestAttackADeletedReaderOfEventsIsMadeAnew(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "before")
	s.settled()
	reader := consumerPrefix + s.Bindings()[0].Key
	if err := s.js.DeleteConsumer(t.Context(), wire.EventStream, reader); err != nil {
		t.Fatal(err)
	}
	s.await("the binding has its reader again", func() (bool, string) {
		_, err := s.js.Consumer(t.Context(), wire.EventStream, reader)
		return err == nil, "no reader"
	})
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "after")
	s.await("the event starts its run", func() (bool, string) { return s.mem.get("digits-after").Run != "", "no run" })
}

// Whoever publishes by NATS names the event.
func TestAttackAnEventWhoseIDCannotBePrintedStartsNothing(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	bad := map[string]string{
		"a\x1b]0;owned\a": "U+001B", "abc\u202egnp": "U+202E", "a\tb": "U+0009", "a\x7f": "U+007F", "a\xff": "not UTF-8",
		strings.Repeat("x", 1001): "1001 bytes",
	}
	for id := range bad {
		s.publish("events.digits", `{}`, wire.IDHeader, id)
	}
	s.publish("events.digits", `{}`, wire.IDHeader, "größe")
	s.settled()
	if names := s.mem.names(); len(names) != 1 {
		t.Errorf("runs %q, want one", names)
	}
	dead, err := s.DeadLetters(t.Context(), 100)
	if err != nil || len(dead) != len(bad) {
		t.Errorf("dead letters %+v, %v; want %d", dead, err, len(bad))
	}
	for _, letter := range dead {
		want := bad[letter.Event]
		if want == "" || !strings.Contains(letter.Reason, want) || !strings.Contains(letter.Reason, "an ID of letters") {
			t.Errorf("of event %.40q it is said: %s", letter.Event, letter.Reason)
		}
		if wire.CheckText(letter.Reason, len(letter.Reason)) != nil {
			t.Errorf("the reason cannot be printed: %q", letter.Reason)
		}
	}
}

func TestStreamsOfBeforeAreGivenABoundAndThoseOfAnOperatorKeepTheirs(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	for _, test := range []struct {
		name        string
		stored, now int64
	}{
		{wire.DoneStream, -1, keepBytes},
		{wire.DeadStream, 5 << 30, 5 << 30},
		{wire.EventStream, -1, -1}, // events may be waiting
	} {
		stream, err := s.js.Stream(t.Context(), test.name)
		if err != nil {
			t.Fatal(err)
		}
		config := stream.CachedInfo().Config
		config.MaxBytes = test.stored
		if _, err := s.js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		stream, err = s.ensureStream(t.Context(), test.name, config.Subjects, config.Duplicates)
		if err != nil {
			t.Fatal(err)
		}
		if got := stream.CachedInfo().Config.MaxBytes; got != test.now {
			t.Errorf("stream %s with a bound of %d: got %d bytes, want %d", test.name, test.stored, got, test.now)
		}
	}
}
