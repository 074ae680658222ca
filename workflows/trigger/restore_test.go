package trigger

import (
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
)

// The bucket of bindings is emptied as damage to its file does it: without a word that they were removed.
func TestABindingThatIsGoneFromItsBucketIsMadeAgain(t *testing.T) {
	t.Parallel()
	js, mem := newJetStream(t), newMemory()
	declared := digits(wire.Binding{Subject: "data.declared"})
	s := restart(t, js, mem, declared)
	var keys []string
	for _, subject := range []string{"data.kept", "data.removed", "data.held"} {
		bound, err := s.Bind(t.Context(), wire.Binding{Pipeline: "digits", Subject: subject, MaxRuns: 1})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, bound.Key)
	}
	kept, removed, held := keys[0], keys[1], keys[2]
	// One run goes on, so that the event behind it waits, and its reader stays when the binding is removed.
	s.publish("data.removed", `{}`, wire.IDHeader, "going")
	s.await("a run goes on", func() (bool, string) { return len(mem.names()) == 1, "none" })
	s.stop()
	s.publish("data.removed", `{}`, wire.IDHeader, "waiting")
	if err := s.Unbind(t.Context(), removed); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "KV_"+wire.BindingBucket)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{kept, held} {
		if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("$KV."+wire.BindingBucket+"."+key)); err != nil {
			t.Fatal(err)
		}
	}

	again := idle(t, js, mem)
	told := make(chan []string, 10)
	again.Trigger.restored = func(keys []string) { told <- keys }
	if err := again.SetTargets(t.Context(), []Target{declared}); err != nil {
		t.Fatal(err)
	}
	again.run()
	bound := func(key string) Origin {
		for _, one := range again.Bindings() {
			if one.Key == key {
				return one.Origin
			}
		}
		return ""
	}
	if bound(kept) != Command || bound(held) != Command || bound(removed) == Command {
		t.Errorf("bound are %+v; want %s and %s, and not %s", again.Bindings(), kept, held, removed)
	}
	want := []string{kept, held}
	slices.Sort(want)
	if keys := natstest.Receive(t, told, "bindings that were made again"); !slices.Equal(keys, want) {
		t.Errorf("told of %q, want %q", keys, want)
	}
	again.publish("data.kept", `{}`, wire.IDHeader, "after")
	again.await("its events start runs", func() (bool, string) { return mem.get("digits-after").Run != "", "no run" })
	again.stop()
	if len(told) > 0 {
		t.Errorf("told of %q again", <-told)
	}
	last := restart(t, js, mem, declared)
	if len(last.Bindings()) < 3 {
		t.Errorf("after another start: %+v", last.Bindings())
	}
}
