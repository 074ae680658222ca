package natsaccess_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/wire"
)

// patience bounds what must happen, however busy the machine is.
const patience = time.Minute

// open starts a server with the streams that builds publish to, and connects as the engine and as the worker of a
// build.
func open(t *testing.T) (engine, build jetstream.JetStream) {
	t.Helper()
	server := natstest.Start(t)
	engine = server.Connect()
	if err := errors.Join(loop.EnsureStreams(t.Context(), engine), results.EnsureStream(t.Context(), engine)); err != nil {
		t.Fatal(err)
	}
	return engine, server.Dial(server.Admit("app@1", wire.BuildSubjects(wire.App{Name: "app"})))
}

// settle waits until all that both have sent so far was handled, the requests at the door among it.
func settle(t *testing.T, engine, build jetstream.JetStream) {
	t.Helper()
	if err := build.Conn().FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	// the door has one queue
	if _, err := build.Conn().Request("$JS.API.STREAM.INFO."+wire.ResultStream, nil, patience); err != nil {
		t.Fatal(err)
	}
	if err := engine.Conn().FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
}

func TestAttackABuildHasItsAnswersGoElsewhere(t *testing.T) {
	t.Parallel()
	engine, build := open(t)
	heard, err := engine.Conn().SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Conn().FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	replies := []string{
		"events.own", wire.LoopSubject(wire.KindDecision), "$KV." + wire.PlanBucket + "." + wire.PlanKey, "spillway.answer",
		"_R_.AAAAAA.BBBBBB",
		"$JS.ACK." + wire.LoopStream + ".name.1.1.1.1.0", "$JS.API.STREAM.PURGE." + wire.ResultStream,
	}
	result := "spillway.results.content.code.run"
	for _, reply := range replies {
		for _, subject := range []string{
			wire.LoopSubject(wire.KindScheduled), result, "$JS.API.STREAM.INFO." + wire.ResultStream,
			"$JS.API.DIRECT.GET." + wire.ResultStream + "." + result, "$JS.API.CONSUMER.INFO." + wire.LoopStream + ".none",
		} {
			if err := build.Conn().PublishRequest(subject, reply, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	settle(t, engine, build)
	for {
		message, err := heard.NextMsg(time.Millisecond)
		if errors.Is(err, nats.ErrTimeout) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, reply := range replies {
			if message.Subject == reply {
				t.Errorf("on %s came %q", reply, message.Data)
			}
		}
	}
}

func TestAttackABuildMakesAConsumerThatDelivers(t *testing.T) {
	t.Parallel()
	engine, build := open(t)
	subject := "$JS.API.CONSUMER.CREATE." + wire.LoopStream + ".mine." + wire.LoopSubject(wire.KindRunEnded)
	for name, config := range map[string]map[string]any{
		"to a subject":            {"deliver_subject": "events.own"},
		"under another spelling":  {"Deliver_Subject": "events.own"},
		"to a group":              {"deliver_group": "g"},
		"and lasts":               {"durable_name": "mine"},
		"by a field twice":        nil,
		"what cannot be read":     {"filter_subject": 1},
		"with what is no request": {},
	} {
		for key, value := range map[string]any{
			"name": "mine", "ack_policy": "none",
			"filter_subject": wire.LoopSubject(wire.KindRunEnded),
		} {
			if _, set := config[key]; !set && config != nil {
				config[key] = value
			}
		}
		body, err := json.Marshal(map[string]any{"stream_name": wire.LoopStream, "config": config})
		if err != nil {
			t.Fatal(err)
		}
		switch name {
		case "by a field twice":
			body = []byte(`{"stream_name":"` + wire.LoopStream + `","config":{"name":"mine","filter_subject":"` +
				wire.LoopSubject(wire.KindRunEnded) +
				`","deliver_subject":"","deliver_subject":"events.own"}}`)
		case "with what is no request":
			body = []byte("{")
		}
		answer, err := build.Conn().Request(subject, body, patience)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(answer.Data), `"code":403`) {
			t.Errorf("%s: got %s, want a refusal", name, answer.Data)
		}
	}
	stream, err := engine.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	if got := stream.CachedInfo().State.Consumers; got > 0 {
		t.Errorf("%d consumers were made", got)
	}
}

// TestAttackABuildTakesTheIDOfARecord has a build tell a hint under the ID of a Record that is yet to come: NATS would
// drop the Record as told.
func TestAttackABuildTakesTheIDOfARecord(t *testing.T) {
	t.Parallel()
	engine, build := open(t)
	if _, err := build.Publish(t.Context(), wire.LoopSubject(wire.KindScheduled), nil,
		jetstream.WithMsgID("run/task/1")); err == nil {
		t.Error("the hint was taken")
	}
	if _, err := build.Publish(t.Context(), wire.LoopSubject(wire.KindRunEnded), nil,
		jetstream.WithMsgID(wire.RunEndedID("run"))); err != nil {
		t.Errorf("an end under its own ID: %v", err)
	}
	answer, err := engine.Publish(t.Context(), wire.LoopSubject(wire.KindRecord), nil, jetstream.WithMsgID("run/task/1"))
	if err != nil || answer.Duplicate {
		t.Errorf("the Record: %+v, %v; want it stored", answer, err)
	}
}

func TestAttackABuildAsksNATSForMoreByHeaders(t *testing.T) {
	t.Parallel()
	engine, build := open(t)
	heard, err := engine.Conn().SubscribeSync("events.own")
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Conn().FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	headers := map[string]string{
		"Nats-Rollup": "all", "Nats-Schedule-Target": "events.own", "nats-rollup": "all", "KV-Operation": "DEL",
		"Nats-Request-Info": "{}", "Spillway-Signature": "kept",
	}
	for name, value := range headers {
		for range 2 {
			message := &nats.Msg{Subject: wire.LoopSubject(wire.KindScheduled), Header: nats.Header{name: {value}}}
			if _, err := build.PublishMsg(t.Context(), message); err != nil {
				t.Errorf("with %s: %v", name, err)
			}
		}
	}
	traced := &nats.Msg{
		Subject: wire.LoopSubject(wire.KindScheduled),
		Header:  nats.Header{"Nats-Trace-Dest": {"events.own"}},
	}
	if err := build.Conn().PublishMsg(traced); err != nil { // refused by NATS
		t.Fatal(err)
	}
	settle(t, engine, build)
	if got := natstest.Messages(t, engine, wire.LoopStream); got != 12 {
		t.Errorf("the loop holds %d messages, want the 12 that were published", got)
	}
	if _, err := heard.NextMsg(time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Errorf("a trace went to events.own: %v", err)
	}
	stream, err := engine.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	for sequence := range uint64(12) {
		stored, err := stream.GetMsg(t.Context(), sequence+1)
		if err != nil {
			t.Fatal(err)
		}
		for name := range headers {
			if name != "Spillway-Signature" && stored.Header[name] != nil {
				t.Errorf("message %d has the header %s", sequence+1, name)
			}
		}
	}
}

func TestBuildsDoNotHearEachOther(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	dial := func(name string) *nats.Conn {
		return server.Dial(server.Admit(name, wire.BuildSubjects(wire.App{Name: "app"}))).Conn()
	}
	spy, other := dial("app@1"), dial("app@2")
	heard, err := spy.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(spy.FlushTimeout(patience), other.Publish(wire.LoopSubject(wire.KindScheduled), nil),
		other.FlushTimeout(patience),
		spy.FlushTimeout(patience)); err != nil {
		t.Fatal(err)
	}
	if message, err := heard.NextMsg(time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Errorf("got %v and error %v, want nothing", message, err)
	}
}

// BenchmarkTell tells what a message that is kept takes through the door, beside one of the engine itself.
func BenchmarkTell(b *testing.B) {
	server := natstest.Start(b)
	engine := server.Connect()
	if err := loop.EnsureStreams(b.Context(), engine); err != nil {
		b.Fatal(err)
	}
	for name, js := range map[string]jetstream.JetStream{
		"engine": engine, "build": server.Dial(server.Admit("app@1", wire.BuildSubjects(wire.App{Name: "app"}))),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := js.Publish(b.Context(), wire.LoopSubject(wire.KindScheduled), nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
