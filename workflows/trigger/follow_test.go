package trigger

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
)

// oneServer is a trigger of one of several servers.
type oneServer struct {
	*stack

	leads atomic.Bool
}

// serve makes a trigger that follows what others bind, and runs only where lead says so.
func serve(t *testing.T, js jetstream.JetStream, mem *memory, targets ...Target) *oneServer {
	t.Helper()
	s := &oneServer{stack: idle(t, js, mem)}
	s.Trigger.several, s.Trigger.leads = true, s.leads.Load
	if err := s.SetTargets(t.Context(), targets); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() { s.Follow(ctx) })
	t.Cleanup(func() { cancel(); following.Wait() })
	return s
}

func (s *oneServer) lead() {
	s.leads.Store(true)
	s.run()
}

func (s *oneServer) standBy() {
	s.stop()
	s.leads.Store(false)
}

func TestOneOfSeveralTriggersTakesEvents(t *testing.T) {
	t.Parallel()
	js, mem := newJetStream(t), newMemory()
	target := digits(wire.Binding{Subject: "data.declared"})
	first, second := serve(t, js, mem, target), serve(t, js, mem, target)
	if _, err := js.Stream(t.Context(), wire.EventStream); err == nil {
		t.Error("a stream was made although nobody leads")
	}
	first.lead()
	started := func(by *oneServer, run string) {
		t.Helper()
		by.await("run "+run+" is started", func() (bool, string) { return mem.get(run).Run != "", "it is not" })
	}
	first.await("the first reads", func() (bool, string) {
		_, err := js.Consumer(t.Context(), wire.EventStream, unboundConsumer)
		return err == nil, "no reader"
	})
	first.publish("data.declared", `{}`, wire.IDHeader, "one")
	started(first, "digits-one")

	// What is bound at the second is read by the first once that says so, and nothing of it is a dead letter.
	bound, err := second.Bind(t.Context(), wire.Binding{Pipeline: "digits", Subject: "data.later", Schedule: "0 4 * * *"})
	if err != nil {
		t.Fatal(err)
	}
	second.publish("data.later", `{}`, wire.IDHeader, "two")
	started(second, "digits-two")
	second.await("the first has made the schedule", func() (bool, string) {
		keys, _ := mem.Keys(t.Context())
		return slices.Equal(keys, []string{bound.Key}), "none"
	})
	knows := func(s *oneServer) bool {
		return slices.ContainsFunc(s.Bindings(), func(one Bound) bool {
			return one.Key == bound.Key && one.Origin == Command
		})
	}
	if !knows(first) || !knows(second) {
		t.Errorf("the first knows %+v, the second %+v; want %s in both", first.Bindings(), second.Bindings(), bound.Key)
	}

	first.standBy()
	second.publish("data.later", `{}`, wire.IDHeader, "three")
	second.lead()
	started(second, "digits-three")
	if err := first.Unbind(t.Context(), bound.Key); err != nil {
		t.Fatal(err)
	}
	second.await("the second has taken the binding out of force", func() (bool, string) {
		keys, _ := mem.Keys(t.Context())
		return len(keys) == 0 && !knows(second), "it has not"
	})
	second.settled()
	if dead, err := js.Stream(t.Context(), wire.DeadStream); err != nil || dead.CachedInfo().State.Msgs != 0 {
		t.Errorf("dead letters: %v, %v", dead.CachedInfo().State.Msgs, err)
	}
	if runs := mem.names(); len(runs) != 3 {
		t.Errorf("runs %v, want three", runs)
	}
}
