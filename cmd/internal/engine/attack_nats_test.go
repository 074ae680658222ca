package engine_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

func TestAttackNATSOfAnEngineRefusesStrangers(t *testing.T) {
	t.Parallel()
	e := sharedEngine(t)
	stack, err := e.client.Stack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if stranger, err := nats.Connect(stack.Addresses.NATS); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a stranger at NATS: got connection %v and error %v, want %v", stranger, err, nats.ErrAuthorization)
	}
	e.publishRaw("events.echo", "owner", `{"index":4}`)
	succeed[map[string]int](e, "echo-owner", patience)
}

// TestAttackAForgedResultIsNotTakenByTheNextRun publishes what a run has kept again: as an earlier engine kept it, and
// with another output.
func TestAttackAForgedResultIsNotTakenByTheNextRun(t *testing.T) {
	t.Parallel()
	e := sharedEngine(t)
	run := e.publish("relay", "r1", map[string]int{"shards": 6, "milliseconds": 1})
	type relayed struct{ Shards, Sum int }
	honest := succeed[relayed](e, run, patience)
	e.until("all results are kept", func() bool { return len(keptOf(t, e, run)) == 9 })

	js := e.stream()
	for i, message := range keptOf(t, e, run) {
		forged := nats.NewMsg(message.Subject())
		forged.Data = bytes.Replace(message.Data(), []byte(`"output":`), []byte(`"output":1`), 1)
		if i%2 == 0 {
			forged.Header.Set(wire.SignatureHeader, message.Headers().Get(wire.SignatureHeader))
		}
		if i%3 == 0 {
			forged.Data = message.Data()
			forged.Header = nil
		}
		if _, err := js.PublishMsg(t.Context(), forged); err != nil {
			t.Fatal(err)
		}
	}
	cached, err := e.client.Publish(t.Context(), web.Event{
		Pipeline: "relay", ID: "r2",
		Input: []byte(`{"milliseconds":1,"shards":6}`), Cache: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, view := succeed[relayed](e, cached.Run, patience),
		e.wait(cached.Run, patience); got != honest || view.Reused.Tasks != 0 {
		t.Errorf("a run that takes what others have made: got %+v, %d results reused; want %+v, none", got, view.Reused.Tasks,
			honest)
	}
	retried, err := e.client.Retry(t.Context(), run, web.Retry{})
	if err != nil {
		t.Fatal(err)
	}
	if retried.Tasks != 0 || retried.Unsigned != 9 {
		t.Errorf("a retry reuses %d results and refuses %d, want to be told that none of the 9 is signed", retried.Tasks,
			retried.Unsigned)
	}
	if got := succeed[relayed](e, retried.Run, patience); got != honest {
		t.Errorf("the retry: got %+v, want %+v", got, honest)
	}
}

// keptOf returns the messages in which the results of a run are kept.
func keptOf(t *testing.T, e *testEngine, run string) (all []jetstream.Msg) {
	t.Helper()
	consumer, err := e.stream().OrderedConsumer(t.Context(), wire.ResultStream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{wire.ResultSubject(wire.ResultKey{}, run)},
	})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := consumer.FetchNoWait(100)
	if err != nil {
		t.Fatal(err)
	}
	for message := range batch.Messages() {
		all = append(all, message)
	}
	if err := batch.Error(); err != nil {
		t.Fatal(err)
	}
	return all
}
