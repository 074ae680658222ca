package trigger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

func goal(deadline time.Duration) predictor.Goal { return predictor.Goal{Deadline: deadline} }

func TestAnEventStartsARunWithAllThatItBrings(t *testing.T) {
	t.Parallel()
	target := digits()
	target.Pipeline.Goal = goal(time.Hour)
	s := newStack(t, target)
	s.publish("events.digits", ` {"epochs":3} `, "Nats-Msg-Id", "e1", wire.GoalHeader, `{"deadline_ns":5}`)
	s.publish("events.digits", "", "Nats-Msg-Id", "e2")
	s.settled()
	got := []Start{s.mem.get("digits-e1"), s.mem.get("digits-e2")}
	key := s.Bindings()[0].Key
	base := Start{Pipeline: "digits", App: "demo", Build: "b1", TaskQueue: "demo@b1", Binding: key}
	first, second := base, base
	first.Run, first.Event, first.Input, first.Goal = "digits-e1", "e1", json.RawMessage(`{"epochs":3}`), goal(5)
	second.Run, second.Event, second.Input, second.Goal = "digits-e2", "e2", json.RawMessage(`{}`), goal(time.Hour)
	for i := range got { // the server's time
		if got[i].Options.EventAt.IsZero() {
			t.Errorf("%s: the event has no time", got[i].Run)
		}
		got[i].Options.EventAt = time.Time{}
	}
	if diff := cmp.Diff([]Start{first, second}, got); diff != "" {
		t.Errorf("starts: -want +got:\n%s", diff)
	}
	if reasons := s.reasons(); len(reasons) > 0 {
		t.Errorf("dead letters: %q", reasons)
	}
}

func TestEqualBodiesWithoutAnIDAreTwoEvents(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	s.publish("events.digits", `{"epochs":1}`)
	s.publish("events.digits", `{"epochs":1}`)
	s.settled()
	if diff := cmp.Diff([]string{"digits-spillway_events-1", "digits-spillway_events-2"}, s.mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}
}

func TestBadEventsBecomeDeadLetters(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits(), open("scores"))
	large := `{"name":"` + strings.Repeat("x", 3<<18) + `"}`
	for name, test := range map[string]struct {
		subject, body, goal string
		want                []string
		pipeline            string
	}{
		"malformed JSON": {
			"events.digits", "{\"epochs\":1,\n x}", "",
			[]string{"not JSON", "line 2, column 2"},
			"digits",
		},
		"JSON with something after it": {
			"events.digits", `{} {}`, "",
			[]string{"not JSON", "after top-level value"},
			"digits",
		},
		"text that is not UTF-8": {"events.digits", "{\"name\":\"\xff\"}", "", []string{"UTF-8"}, "digits"},
		"a wrong type": {
			"events.digits", `{"epochs":"three"}`, "",
			[]string{"at epochs", `want "integer"`},
			"digits",
		},
		"a wrong type in a nested list": {
			"events.digits", `{"parts":[{"k":1}]}`, "",
			[]string{"at parts[].k", `want "string"`},
			"digits",
		},
		"a null where a value must be": {
			"events.digits", `{"name":null}`, "",
			[]string{"at name", "null has type"},
			"digits",
		},
		"an unknown field": {
			"events.digits", `{"epoch":3}`, "",
			[]string{"does not fit pipeline digits", `["epoch"]; it may have epochs, name, parts`},
			"digits",
		},
		"an array for an object": {
			"events.digits", `[1]`, "",
			[]string{"does not fit pipeline digits", `want "object"`},
			"digits",
		},
		"a goal that is not JSON": {"events.digits", `{}`, "10m", []string{wire.GoalHeader, "no goal"}, "digits"},
		"a goal with an unknown field": {
			"events.digits", `{}`, `{"deadline":"10m"}`,
			[]string{wire.GoalHeader, "deadline"},
			"digits",
		},
		"a negative deadline": {"events.digits", `{}`, `{"deadline_ns":-5}`, []string{"negative"}, "digits"},
		"an unknown objective": {
			"events.digits", `{}`, `{"minimise":"fun"}`,
			[]string{"fun", "latency"},
			"digits",
		},
		"a goal with something behind": {"events.digits", `{}`, `{}{}`, []string{"after it"}, "digits"},
		"an unknown pipeline": {
			"events.digitz", `{}`, "",
			[]string{"no pipeline is bound to subject events.digitz", "nearest: events.digits"},
			"",
		},
		"a body larger than a run's may": {
			"events.scores", `"` + large + large + large + `"`, "",
			[]string{"at most", "artifact"},
			"scores",
		},
		"a subject that nothing is bound": {
			"events.zzzzzzzzzz.y", `{}`, "",
			[]string{"no pipeline is bound", "known: events.digits, events.scores"},
			"",
		},
	} {
		if strings.HasPrefix(name, "a body larger") {
			// NATS itself takes 1 MiB by default, so this one never gets as far as the stream.
			e := newEvent(wire.EventStream, 1, test.subject, nil, []byte(test.body))
			if _, _, err := e.input(); err == nil || !strings.Contains(err.Error(), test.want[1]) {
				t.Errorf("%s: %v, want an error with %q", name, err, test.want)
			}
			continue
		}
		var headers []string
		if test.goal != "" {
			headers = []string{wire.GoalHeader, test.goal}
		}
		s.publish(test.subject, test.body, append(headers, "Nats-Msg-Id", name, "Trace", "kept")...)
		s.settled()
		dead, err := s.DeadLetters(t.Context(), 1)
		if err != nil || len(dead) != 1 {
			t.Fatalf("%s: %d dead letters, %v", name, len(dead), err)
		}
		for _, want := range test.want {
			if !strings.Contains(dead[0].Reason, want) {
				t.Errorf("%s: reason %q, want it to have %q", name, dead[0].Reason, want)
			}
		}
		got := Dead{Event: dead[0].Event, Pipeline: dead[0].Pipeline, Subject: dead[0].Subject, Body: dead[0].Body}
		if diff := cmp.Diff(Dead{Event: name, Pipeline: test.pipeline, Subject: test.subject, Body: []byte(test.body)},
			got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	if names := s.mem.names(); len(names) > 0 {
		t.Errorf("runs: %q, want none", names)
	}
	stats, err := s.Stats(t.Context())
	if err != nil || stats.Unbound != 2 || stats.Bindings[0].Dead != 13 {
		t.Errorf("stats: %+v, %v, want 2 unbound and 13 dead of digits", stats, err)
	}
}

func TestARedeliveryStartsNothingTwice(t *testing.T) {
	t.Parallel()
	s := idle(t, newJetStream(t), newMemory())
	var calls atomic.Int32
	s.mem.fault = func(Start, bool) error {
		if calls.Add(1) < 3 {
			return errAway // after the run was started
		}
		return nil
	}
	if err := s.SetTargets(t.Context(), []Target{digits()}); err != nil {
		t.Fatal(err)
	}
	s.run()
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "e1")
	s.settled()
	stats, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if names, one := s.mem.names(), stats.Bindings[0]; len(names) != 1 || one.Duplicate != 1 || one.Dead != 0 {
		t.Errorf("runs %q, stats %+v, want one run, one duplicate, no dead letter", names, one)
	}
}

func TestACrashBetweenStartAndAcknowledgementStartsNothingTwice(t *testing.T) {
	t.Parallel()
	js, mem := newJetStream(t), newMemory()
	first := idle(t, js, mem)
	hung := make(chan struct{})
	started := make(chan struct{})
	mem.fault = func(_ Start, exists bool) error {
		if !exists {
			close(started)
			<-hung // the process hangs here, with the run started, until it is gone
			return errAway
		}
		return nil
	}
	if err := first.SetTargets(t.Context(), []Target{digits()}); err != nil {
		t.Fatal(err)
	}
	first.run()
	first.publish("events.digits", `{}`, "Nats-Msg-Id", "e1")
	<-started
	go func() {
		time.Sleep(50 * time.Millisecond)
		close(hung)
	}()
	first.stop()
	second := restart(t, js, mem, digits())
	second.settled()
	if diff := cmp.Diff([]string{"digits-e1"}, mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}
}

func TestWhileTemporalIsAwayNothingIsLostAndNothingIsDead(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits(wire.Binding{Subject: "data.new", MaxRuns: 2}), open("free"))
	s.mem.set(func(m *memory) { m.down = true })
	for i := range 2 {
		s.publish("data.new", `{}`, "Nats-Msg-Id", fmt.Sprint("c", i))
		s.publish("events.free", `{}`, "Nats-Msg-Id", fmt.Sprint("f", i))
	}
	time.Sleep(300 * time.Millisecond)
	s.mem.set(func(m *memory) { m.down = false })
	s.settled()
	if diff := cmp.Diff([]string{"digits-c0", "digits-c1", "free-f0", "free-f1"}, s.mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}
	if reasons := s.reasons(); len(reasons) > 0 {
		t.Errorf("dead letters: %q", reasons)
	}
}

func TestAnEventThatMayHaveStartedAForgottenRunStartsNoOther(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		deliveries uint64
		age        time.Duration
		remembered time.Duration
		want       bool
	}{
		"it waited for long, and comes for the first time": {1, 48 * time.Hour, 24 * time.Hour, false},
		"it comes again soon":                              {7, time.Hour, 24 * time.Hour, false},
		"it comes again late":                              {2, 25 * time.Hour, 24 * time.Hour, true},
		"runs are known for ever":                          {2, 1e5 * time.Hour, 0, false},
	} {
		if got := isStale(row.deliveries, row.age, row.remembered); got != row.want {
			t.Errorf("%s: stale is %v, want %v", name, got, row.want)
		}
	}

	// Both starts are lost on their way back; of one run nobody knows any more when its event comes again.
	s := idle(t, newJetStream(t), newMemory())
	s.remembered = time.Nanosecond
	if err := s.SetTargets(t.Context(), []Target{digits()}); err != nil {
		t.Fatal(err)
	}
	s.run()
	s.mem.set(func(m *memory) {
		m.fault = func(start Start, exists bool) error {
			if exists {
				return nil
			}
			if start.Event == "forgotten" {
				delete(m.runs, start.Run)
			}
			return errAway
		}
	})
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "forgotten")
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "known")
	s.settled()
	if diff := cmp.Diff([]string{"digits-known"}, s.mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}
	reasons := s.reasons()
	if len(reasons) != 1 || !strings.Contains(reasons[0], "may have started run digits-forgotten") {
		t.Errorf("dead letters: %q, want that of the event whose run is forgotten", reasons)
	}
}

func TestARunThatIsRefusedBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	s.mem.set(func(m *memory) {
		m.fault = func(Start, bool) error { return fmt.Errorf("%w: the input is too large", ErrRefused) }
	})
	s.publish("events.digits", `{}`)
	s.settled()
	if reasons := s.reasons(); len(reasons) != 1 || !strings.Contains(reasons[0], "too large") {
		t.Errorf("dead letters: %q, want one", reasons)
	}
}

func TestAnInputThatThePipelineItselfRefusesIsADeadLetterAndRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	checking := digits()
	checking.Pipeline.Validates = true
	s := newStack(t, checking, open("free"))
	away := true
	s.mem.set(func(m *memory) {
		m.check = func(start Start) error {
			switch {
			case start.Pipeline != "digits":
				return errors.New("a pipeline that does not validate was asked")
			case strings.Contains(string(start.Input), "-1"):
				return Refuse("input of pipeline digits: epochs is -1: give 1 to 9")
			case away:
				away = false // a worker that is not there yet says nothing of the input
				return errAway
			}
			return nil
		}
	})
	s.publish("events.digits", `{"epochs":-1}`, "Nats-Msg-Id", "bad")
	s.publish("events.digits", `{"epochs":3}`, "Nats-Msg-Id", "good")
	s.publish("events.free", `-1`, "Nats-Msg-Id", "free")
	s.settled()
	if diff := cmp.Diff([]string{"digits-good", "free-free"}, s.mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"input of pipeline digits: epochs is -1: give 1 to 9"}, s.reasons()); diff != "" {
		t.Errorf("dead letters: -want +got:\n%s", diff)
	}

	_, _, err := s.Publish(t.Context(), "digits", "door", []byte(`{"epochs":-1}`), nil, wire.RunOptions{})
	if err == nil || !strings.Contains(err.Error(), "epochs is -1: give 1 to 9") ||
		strings.Contains(err.Error(), ErrRefused.Error()) {
		t.Errorf("at the door: %v, want the reason", err)
	}
	s.mem.set(func(*memory) { away = true })
	if _, _, err := s.Publish(t.Context(), "digits", "later", []byte(`{"epochs":4}`), nil, wire.RunOptions{}); err != nil {
		t.Errorf("while nobody can check: %v, want it to be taken and checked when its run starts", err)
	}
	s.settled()
	if diff := cmp.Diff([]string{"digits-good", "digits-later", "free-free"}, s.mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}

	// The run of an event that was not acknowledged before a crash stays its run, whatever a newer build says of it.
	s.mem.set(func(m *memory) { m.runs["digits-before"] = Start{Run: "digits-before", Pipeline: "digits"} })
	s.publish("events.digits", `{"epochs":-1}`, "Nats-Msg-Id", "before")
	s.settled()
	if reasons := s.reasons(); len(reasons) != 1 {
		t.Errorf("dead letters: %q, want none of an event that has a run", reasons)
	}

	s.mem.set(func(m *memory) { m.check = nil }) // the code takes it now
	dead, err := s.DeadLetters(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	outcome, err := s.Replay(t.Context(), dead[0].Sequence)
	if want := (Outcome{Sequence: dead[0].Sequence, Run: "digits-bad"}); err != nil || outcome != want {
		t.Fatalf("the replay came to %+v, %v; want %+v", outcome, err, want)
	}
	s.settled()
	if names := s.mem.names(); !slices.Contains(names, "digits-bad") || len(s.reasons()) > 0 {
		t.Errorf("after its replay: runs %q, dead letters %q", names, s.reasons())
	}
}

func TestTheCapIsExactAndHoldsNoOtherBindingUp(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits(wire.Binding{Subject: "data.new", MaxRuns: 2}), open("free"))
	for i := range 6 {
		s.publish("data.new", `{}`, "Nats-Msg-Id", fmt.Sprint("c", i))
	}
	s.publish("events.free", `{}`, "Nats-Msg-Id", "f")
	s.await("three runs go on", func() (bool, string) { return len(s.mem.names()) == 3, fmt.Sprint(s.mem.names()) })
	time.Sleep(50 * time.Millisecond)
	if names := s.mem.names(); len(names) != 3 {
		t.Fatalf("runs %q, want two of digits and one of free", names)
	}
	stats, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if one := stats.Bindings[0]; one.Running != 2 || one.Waiting != 4 || one.Started != 2 {
		t.Errorf("stats %+v, want 2 started and running, 4 waiting", one)
	}
	s.mem.set(func(m *memory) { m.over["free-f"] = true; m.most = 0 })
	for ended := 0; ended < 6; {
		for _, run := range s.mem.names() {
			s.mem.mu.Lock()
			over := s.mem.over[run]
			s.mem.mu.Unlock()
			if !over {
				s.finish(run)
				ended++
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
	s.settled()
	s.mem.set(func(m *memory) {
		if m.most > 2 {
			t.Errorf("%d runs went on at a time, want at most 2", m.most)
		}
	})
}

func TestALostCompletionIsFoundByAsking(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits(wire.Binding{Subject: "data.new", MaxRuns: 1}))
	s.publish("data.new", `{}`, "Nats-Msg-Id", "a")
	s.publish("data.new", `{}`, "Nats-Msg-Id", "b")
	s.await("a run goes on", func() (bool, string) { return len(s.mem.names()) == 1, "" })
	s.mem.set(func(m *memory) { // no completion event is published
		for run := range m.runs {
			m.over[run] = true
		}
	})
	s.settled()
	if diff := cmp.Diff([]string{"digits-a", "digits-b"}, s.mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}
}

func TestTheCapCountsRunsOfAnEarlierLife(t *testing.T) {
	t.Parallel()
	js, mem := newJetStream(t), newMemory()
	target := digits(wire.Binding{Subject: "data.new", MaxRuns: 1})
	first := restart(t, js, mem, target)
	first.publish("data.new", `{}`, "Nats-Msg-Id", "a")
	first.settled()
	first.stop()
	second := restart(t, js, mem, target)
	second.publish("data.new", `{}`, "Nats-Msg-Id", "b")
	time.Sleep(300 * time.Millisecond)
	if names := mem.names(); len(names) != 1 {
		t.Fatalf("runs %q, want only the first while it goes on", names)
	}
	second.finish("digits-a")
	second.settled()
	if names := mem.names(); len(names) != 2 {
		t.Errorf("runs %q, want both", names)
	}
}

func TestAFilterSkipsWithoutADeadLetter(t *testing.T) {
	t.Parallel()
	s := newStack(t, open("a", wire.Binding{Subject: "data.>", Filter: map[string]any{"kind": "x", "meta.size": 3}}),
		open("b", wire.Binding{Subject: "data.new"}))
	s.publish("data.new", `{"kind":"x","meta":{"size":3}}`, "Nats-Msg-Id", "both")
	s.publish("data.new", `{"kind":"y"}`, "Nats-Msg-Id", "one")
	s.publish("data.other", `{"kind":"y"}`, "Nats-Msg-Id", "none")
	s.settled()
	if diff := cmp.Diff([]string{"a-both", "b-both", "b-one"}, s.mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}
	if reasons := s.reasons(); len(reasons) > 0 {
		t.Errorf("dead letters: %q", reasons)
	}
}

func TestAReplayStartsTheRunOfTheFirstID(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	s.publish("events.train", `{"n":1}`, "Nats-Msg-Id", "e1", "Trace", "kept")
	s.publish("events.train", `{"n":1}`)
	s.settled()
	if reasons := s.reasons(); len(reasons) != 2 {
		t.Fatalf("dead letters: %q, want 2", reasons)
	}
	if err := s.SetTargets(t.Context(), []Target{digits(), open("train")}); err != nil {
		t.Fatal(err)
	}
	outcomes, err := s.ReplayAll(t.Context())
	want := []Outcome{{Sequence: 1, Run: "train-e1"}, {Sequence: 2, Run: "train-spillway_events-2"}}
	// The two died at the same time, in either order.
	slices.SortFunc(outcomes, func(a, b Outcome) int { return strings.Compare(a.Run, b.Run) })
	outcomes[0].Sequence, outcomes[1].Sequence = 1, 2
	if diff := cmp.Diff(want, outcomes); err != nil || diff != "" {
		t.Fatalf("%v: -want +got:\n%s", err, diff)
	}
	s.settled()
	if diff := cmp.Diff([]string{"train-e1", "train-spillway_events-2"}, s.mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}
	if reasons := s.reasons(); len(reasons) > 0 {
		t.Errorf("dead letters after the replay: %q", reasons)
	}
	if stats, err := s.Stats(t.Context()); err != nil || stats.Replayed != 2 {
		t.Errorf("stats %+v, %v, want 2 replayed", stats, err)
	}
}

func TestAReplayOfWhatIsStillWrongIsDeadAgain(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	s.publish("events.digits", `{"epochs":"x"}`, "Nats-Msg-Id", "e1")
	s.settled()
	before, err := s.DeadLetters(t.Context(), 10)
	if err != nil || len(before) != 1 {
		t.Fatalf("dead letters: %v, %v", before, err)
	}
	outcome, err := s.Replay(t.Context(), before[0].Sequence)
	if err != nil || outcome.Sequence != before[0].Sequence || outcome.Run != "" || outcome.Refused != before[0].Reason {
		t.Fatalf("the replay came to %+v, %v; want that it is refused again: %s", outcome, err, before[0].Reason)
	}
	s.settled()
	after, err := s.DeadLetters(t.Context(), 10)
	if err != nil || len(after) != 1 || after[0].Event != "e1" || after[0].Sequence == before[0].Sequence {
		t.Errorf("dead letters %+v, %v, want one new one of e1", after, err)
	}
	if len(s.replays) > 0 {
		t.Errorf("%d replays are waited for still", len(s.replays))
	}
	if _, err := s.Replay(t.Context(), 999); !errors.Is(err, jetstream.ErrMsgNotFound) {
		t.Errorf("Replay(999) = %v, want ErrMsgNotFound", err)
	}
}

func TestNewEventsStartTheNewBuild(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "old")
	s.settled()
	newer := digits()
	newer.Build = "b2"
	if err := s.SetTargets(t.Context(), []Target{newer}); err != nil {
		t.Fatal(err)
	}
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "new")
	s.settled()
	if got := []string{s.mem.get("digits-old").TaskQueue, s.mem.get("digits-new").TaskQueue}; !cmp.Equal(got,
		[]string{"demo@b1", "demo@b2"}) {
		t.Errorf("queues %q", got)
	}
}

func TestBindByCommand(t *testing.T) {
	t.Parallel()
	js, mem := newJetStream(t), newMemory()
	s := restart(t, js, mem, digits())
	_, err := s.Bind(t.Context(), wire.Binding{Pipeline: "digitz", Subject: "data.new"})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "nearest: digits") {
		t.Errorf("Bind of an unknown pipeline = %v, want the nearest name", err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name:     "ORDERS",
		Subjects: []string{"orders.>"},
	}); err != nil {
		t.Fatal(err)
	}
	_, err = s.Bind(t.Context(), wire.Binding{Pipeline: "digits", Subject: "orders.new"})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "stream ORDERS") {
		t.Errorf("Bind of another stream's subject = %v, want its name", err)
	}
	bound, err := s.Bind(t.Context(), wire.Binding{Pipeline: "digits", Subject: "data.>", MaxRuns: 5})
	if err != nil {
		t.Fatal(err)
	}
	s.publish("data.new", `{}`, "Nats-Msg-Id", "a")
	s.settled()
	s.stop()
	s = restart(t, js, mem, digits())
	if bounds := s.Bindings(); len(bounds) != 2 {
		t.Fatalf("bindings after a restart: %+v, want 2", bounds)
	}
	s.publish("data.new", `{}`, "Nats-Msg-Id", "b")
	s.settled()
	if err := s.Unbind(t.Context(), bound.Key); err != nil {
		t.Fatal(err)
	}
	s.await("the binding is gone", func() (bool, string) {
		bounds := s.Bindings()
		return len(bounds) == 1, fmt.Sprintf("%+v", bounds)
	})
	if err := s.Unbind(t.Context(), bound.Key); err == nil {
		t.Error("a second Unbind is not refused")
	}
	if err := s.Unbind(t.Context(), s.Bindings()[0].Key); err == nil || !strings.Contains(err.Error(), "implicit") {
		t.Errorf("Unbind of an implicit binding = %v, want a refusal", err)
	}
	if diff := cmp.Diff([]string{"digits-a", "digits-b"}, mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}
}

func TestWhatWaitsWhenItsBindingIsRemovedIsDead(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	bound, err := s.Bind(t.Context(), wire.Binding{Pipeline: "digits", Subject: "data.>", MaxRuns: 1})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		s.publish("data.new", `{}`, "Nats-Msg-Id", strconv.Itoa(i))
	}
	s.await("one run goes on", func() (bool, string) { return len(s.mem.names()) == 1, "" })
	if err := s.Unbind(t.Context(), bound.Key); err != nil {
		t.Fatal(err)
	}
	s.await("two events are dead", func() (bool, string) { r := s.reasons(); return len(r) == 2, fmt.Sprint(r) })
	for _, reason := range s.reasons() {
		if !strings.Contains(reason, "was removed") {
			t.Errorf("reason %q", reason)
		}
	}
}

func TestEventsOfAnAppThatIsAwayWaitForIt(t *testing.T) {
	t.Parallel()
	js, mem := newJetStream(t), newMemory()
	first := restart(t, js, mem, digits(), open("other"))
	first.stop()
	first.publish("events.digits", `{}`, "Nats-Msg-Id", "a")

	second := idle(t, js, mem)
	second.hold = time.Minute
	second.run() // no targets yet
	time.Sleep(100 * time.Millisecond)
	if err := second.SetTargets(t.Context(), []Target{open("other")}); err != nil {
		t.Fatal(err)
	}
	second.publish("events.digits", `{}`, "Nats-Msg-Id", "b")
	time.Sleep(250 * time.Millisecond)
	if reasons, names := second.reasons(), mem.names(); len(reasons)+len(names) > 0 {
		t.Fatalf("dead %q, runs %q, want both events to wait", reasons, names)
	}
	if err := second.SetTargets(t.Context(), []Target{open("other"), digits()}); err != nil {
		t.Fatal(err)
	}
	second.settled()
	if diff := cmp.Diff([]string{"digits-a", "digits-b"}, mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}
}

func TestEventsOfAnAppThatStaysAwayAreDead(t *testing.T) {
	t.Parallel()
	js, mem := newJetStream(t), newMemory()
	first := restart(t, js, mem, digits(), open("digit"))
	first.stop()
	first.publish("events.digits", `{}`, "Nats-Msg-Id", "a")
	second := restart(t, js, mem, open("digit"))
	second.await("the event is dead", func() (bool, string) { r := second.reasons(); return len(r) == 1, fmt.Sprint(r) })
	if reason := second.reasons()[0]; !strings.Contains(reason, `pipeline "digits" is in no app`) ||
		!strings.Contains(reason, "nearest: digit") {
		t.Errorf("reason %q", reason)
	}
}

// TestAnEventOfAPipelineThatIsServedWhenWantedStartsItsRun publishes for a pipeline that is served only then, for one
// that is not, and again; the first start fails, so that the event comes again.
func TestAnEventOfAPipelineThatIsServedWhenWantedStartsItsRun(t *testing.T) {
	t.Parallel()
	s := idle(t, newJetStream(t), newMemory())
	s.wanted = func(ctx context.Context, subject string) bool {
		return subject == "events.digits" && s.SetTargets(ctx, []Target{digits()}) == nil
	}
	var failed atomic.Bool
	s.mem.fault = func(Start, bool) error {
		if failed.CompareAndSwap(false, true) {
			return errAway
		}
		return nil
	}
	if err := s.SetTargets(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	s.run()
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "a")
	s.publish("events.letters", `{}`, "Nats-Msg-Id", "b")
	s.settled()
	s.publish("events.digits", `{}`, "Nats-Msg-Id", "c")
	s.settled()
	if diff := cmp.Diff([]string{"digits-a", "digits-c"}, s.mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}
	if reasons := s.reasons(); len(reasons) != 1 || !strings.Contains(reasons[0], "events.letters") {
		t.Errorf("dead letters %q, want one of the pipeline that there is not", reasons)
	}
}

func TestSetTargetsRefuses(t *testing.T) {
	t.Parallel()
	js := newJetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name:     "ORDERS",
		Subjects: []string{"orders.>"},
	}); err != nil {
		t.Fatal(err)
	}
	s := idle(t, js, newMemory())
	wrongSchema := digits()
	wrongSchema.Pipeline.Input = json.RawMessage(`{"type":3}`)
	for name, test := range map[string]struct {
		targets []Target
		want    string
	}{
		"a schema that is none":    {[]Target{wrongSchema}, "input schema"},
		"a pipeline of two apps":   {[]Target{digits(), digits()}, "rename"},
		"a target without a build": {[]Target{{App: "a", Pipeline: wire.Pipeline{Name: "p"}}}, "may be empty"},
		"a wrong subject":          {[]Target{open("p", wire.Binding{Subject: "a..b"})}, "empty part"},
		"a scheduled input that is none": {[]Target{digits(
			wire.Binding{Schedule: "@daily", Input: json.RawMessage(`{"epochs":"x"}`)})}, "at epochs"},
		"another stream's subject": {[]Target{open("p", wire.Binding{Subject: "orders.new"})}, "stream ORDERS"},
		"subjects that overlap in part": {[]Target{
			open("p", wire.Binding{Subject: "a.*.c"}),
			open("q", wire.Binding{Subject: "a.b.*"}),
		}, "overlap"},
	} {
		if err := s.SetTargets(t.Context(), test.targets); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, test.want)
		} else if !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v does not wrap ErrRefused", name, err)
		}
	}
	if bounds := s.Bindings(); len(bounds) > 0 {
		t.Errorf("bindings after refusals: %+v, want none", bounds)
	}
}

func TestPublish(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits(), open("wide", wire.Binding{Subject: "data.*.>"}),
		open("keen", wire.Binding{Subject: "data.keen", Filter: map[string]any{"kind": "x"}}))
	for name, test := range map[string]struct {
		target, id, body string
		goal             *predictor.Goal
		wantRun, wrong   string
	}{
		"by pipeline":                         {target: "digits", id: "e1", body: `{"epochs":1}`, wantRun: "digits-e1"},
		"the same ID for another pipeline":    {target: "wide", id: "e1", wantRun: "wide-e1"},
		"by subject":                          {target: "data.a.b", id: "e2", wantRun: "wide-e2"},
		"a filter that lets it pass":          {target: "keen", id: "e3", body: `{"kind":"x"}`, wantRun: "keen-e3"},
		"a filter that does not":              {target: "keen", id: "e4", wrong: "kind"},
		"an unknown pipeline":                 {target: "digitz", wrong: "nearest: digits"},
		"an unknown subject":                  {target: "events.digitz", wrong: "nearest: events.digits"},
		"a pattern":                           {target: "data.*", wrong: "wildcards"},
		"an input that does not fit":          {target: "digits", body: `{"epochs":"x"}`, wrong: "at epochs"},
		"an input that is not JSON":           {target: "digits", body: `{`, wrong: "not JSON"},
		"a negative goal":                     {target: "digits", goal: &predictor.Goal{Deadline: -1}, wrong: "negative"},
		"an ID that cannot be printed":        {target: "digits", id: "a\nb", wrong: "printed"},
		"an ID with a space at its beginning": {target: "digits", id: " a", wrong: "space"},
	} {
		id, run, err := s.Publish(t.Context(), test.target, test.id, []byte(test.body), test.goal, wire.RunOptions{})
		if test.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("%s: %v, want an error with %q", name, err, test.wrong)
			}
			continue
		}
		if err != nil || run != test.wantRun || id != test.id {
			t.Errorf("%s: %q, %q, %v, want run %q", name, id, run, err, test.wantRun)
		}
	}
	one, runOne, err1 := s.Publish(t.Context(), "digits", "", nil, &predictor.Goal{Deadline: 7}, wire.RunOptions{})
	two, _, err2 := s.Publish(t.Context(), "digits", "", nil, nil, wire.RunOptions{})
	if err1 != nil || err2 != nil || one == two || one == "" {
		t.Errorf("Publish without an ID: %q, %q, %v, %v", one, two, err1, err2)
	}
	s.settled()
	if names := s.mem.names(); len(names) != 6 {
		t.Errorf("runs %q, want 6", names)
	}
	if got := s.mem.get(runOne).Goal; got != goal(7) {
		t.Errorf("goal %+v", got)
	}
}

func TestSchedulesFollowTheBindings(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits(wire.Binding{Schedule: "@daily", Input: json.RawMessage(`{"epochs":1}`)}))
	bound, err := s.Bind(t.Context(), wire.Binding{Pipeline: "digits", Subject: "data.new", Schedule: "0 3 * * *"})
	if err != nil {
		t.Fatal(err)
	}
	keys, _ := s.mem.Keys(t.Context())
	if len(keys) != 2 {
		t.Fatalf("schedules of %q, want 2", keys)
	}
	// A firing starts a run of this binding only.
	var schedule Schedule
	s.mem.set(func(m *memory) { schedule = m.schedules[bound.Key] })
	fired := firing{Schedule: schedule, ID: firingID(bound.Key, time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC))}
	for range 2 {
		if err := publishFiring(t.Context(), s.js, fired); err != nil {
			t.Fatal(err)
		}
	}
	s.settled()
	if diff := cmp.Diff([]string{"digits-" + bound.Key + "-2026-01-02T03:00:00Z"}, s.mem.names()); diff != "" {
		t.Errorf("runs: -want +got:\n%s", diff)
	}
	if err := s.Unbind(t.Context(), bound.Key); err != nil {
		t.Fatal(err)
	}
	if err := s.SetTargets(t.Context(), []Target{digits()}); err != nil {
		t.Fatal(err)
	}
	s.await("no schedule is left", func() (bool, string) {
		keys, _ := s.mem.Keys(context.Background())
		return len(keys) == 0, fmt.Sprint(keys)
	})
}

func TestAScheduleFollowsWhenTemporalComesBack(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	s.mem.set(func(m *memory) { m.down = true })
	if _, err := s.Bind(t.Context(), wire.Binding{Pipeline: "digits", Schedule: "@hourly"}); !errors.Is(err, errAway) {
		t.Errorf("Bind = %v, want that Temporal is away", err)
	}
	s.mem.set(func(m *memory) { m.down = false })
	s.await("the schedule is in force", func() (bool, string) {
		keys, _ := s.mem.Keys(context.Background())
		return len(keys) == 1, fmt.Sprint(keys)
	})
}

func TestFiveHundredEventsStartFiveHundredRuns(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	began := time.Now()
	for i := range 500 {
		s.publish("events.digits", `{}`, "Nats-Msg-Id", strconv.Itoa(i))
	}
	s.settled()
	if names := s.mem.names(); len(names) != 500 {
		t.Errorf("%d runs, want 500", len(names))
	}
	t.Logf("%.0f events/s", 500/time.Since(began).Seconds())
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	js := newJetStream(t)
	for name, options := range map[string]Options{
		"no JetStream":             {Starter: newMemory()},
		"no Starter":               {JetStream: js},
		"a wait that is too short": {JetStream: js, Starter: newMemory(), AckWait: time.Millisecond},
		"a negative hold":          {JetStream: js, Starter: newMemory(), Hold: -1},
	} {
		if _, err := New(options); err == nil {
			t.Errorf("%s is not refused", name)
		}
	}
}

func BenchmarkEventToStart(b *testing.B) {
	s := newStack(b, digits())
	started := make(chan struct{}, 1)
	s.mem.set(func(m *memory) { m.fault = func(Start, bool) error { started <- struct{}{}; return nil } })
	b.ReportAllocs()
	for b.Loop() {
		s.publish("events.digits", `{"epochs":1}`)
		<-started
	}
}
