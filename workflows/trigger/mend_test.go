package trigger

import (
	"testing"

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
