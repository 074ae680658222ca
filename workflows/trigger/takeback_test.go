package trigger

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
)

// A process that is killed gives nothing back: the server would deliver what it had in hand after AckWait, here an
// hour.
func TestWhatAKilledTriggerHadInHandIsTakenByTheNextAtOnce(t *testing.T) {
	t.Parallel()
	js, mem := newJetStream(t), newMemory()
	targets := []Target{digits()}
	killed := idle(t, js, mem)
	killed.ackWait = time.Hour
	if err := killed.SetTargets(t.Context(), targets); err != nil {
		t.Fatal(err)
	}
	killed.publish("events.digits", `{}`, wire.IDHeader, "done")
	killed.publish("events.digits", `{}`, wire.IDHeader, "in-hand")
	killed.publish("events.digits", `{}`, wire.IDHeader, "done-too")
	killed.publish("events.digits", `{`, wire.IDHeader, "taken-by-an-earlier-build")
	killed.publish("events.nobody", `{}`, wire.IDHeader, "dead")
	take := func(consumer string, events int, acknowledge func(i int) bool) {
		reader, err := js.Consumer(t.Context(), wire.EventStream, consumer)
		if err != nil {
			t.Fatal(err)
		}
		batch, err := reader.Fetch(events, jetstream.FetchContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		for i := range events {
			message := <-batch.Messages()
			if acknowledge(i) {
				if err := message.DoubleAck(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, run := range []string{"done", "done-too", "taken-by-an-earlier-build"} {
		mem.runs["digits-"+run] = Start{}
	}
	take(consumerPrefix+killed.Bindings()[0].Key, 4, func(i int) bool { return i != 1 })
	take(unboundConsumer, 5, func(int) bool { return false })

	next := idle(t, js, mem)
	next.ackWait = time.Hour
	if err := next.SetTargets(t.Context(), targets); err != nil {
		t.Fatal(err)
	}
	next.run()
	next.await("the event starts its run", func() (bool, string) {
		return mem.get("digits-in-hand").Run != "", "no run"
	})
	next.await("the event that nobody reads is dead", func() (bool, string) {
		return len(next.reasons()) == 1, "no dead letter"
	})
	next.settled()
	if reasons := next.reasons(); len(reasons) != 1 {
		t.Errorf("dead letters %q, want the one that nobody reads: the others have their runs", reasons)
	}
	if names := mem.names(); len(names) != 4 {
		t.Errorf("runs %q, want four", names)
	}
}
