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
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// patience bounds what must happen, however busy the machine is.
const patience = time.Minute

// open starts a server with the streams that builds publish to, and connects as the engine and as the worker of a
// build.
func open(t *testing.T) (engine, build jetstream.JetStream) {
	t.Helper()
	server, engine := start(t)
	return engine, server.Dial(server.Admit("app@1", app("app", "own")))
}

// aHint returns one that the build of open may tell.
func aHint(tb testing.TB) (subject string, data []byte) {
	tb.Helper()
	return fact(tb, predictor.Scheduled{Run: "own-1", Stage: predictor.StageID{App: "app", Name: "s"}, Expected: 1})
}

// settle waits until all that both have sent so far was handled, the requests at the proxy among it.
func settle(t *testing.T, engine, build jetstream.JetStream) {
	t.Helper()
	if err := build.Conn().FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	// the proxy has one queue for each build
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
	result := "spillway.results.content.taken-code.run"
	hint, told := aHint(t)
	for _, reply := range replies {
		for _, subject := range []string{
			hint, result, "$JS.API.STREAM.INFO." + wire.ResultStream,
			"$JS.API.DIRECT.GET." + wire.ResultStream + "." + result, "$JS.API.CONSUMER.INFO." + wire.LoopStream + ".none",
		} {
			var data []byte
			if subject == hint {
				data = told
			}
			if err := build.Conn().PublishRequest(subject, reply, data); err != nil {
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
	hint, told := aHint(t)
	for name, value := range headers {
		for range 2 {
			message := &nats.Msg{Subject: hint, Data: told, Header: nats.Header{name: {value}}}
			if _, err := build.PublishMsg(t.Context(), message); err != nil {
				t.Errorf("with %s: %v", name, err)
			}
		}
	}
	traced := &nats.Msg{Subject: hint, Data: told, Header: nats.Header{"Nats-Trace-Dest": {"events.own"}}}
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
	server, _ := start(t)
	hint, told := aHint(t)
	dial := func(name string) *nats.Conn {
		return server.Dial(server.Admit(name, app("app", "own"))).Conn()
	}
	spy, other := dial("app@1"), dial("app@2")
	heard, err := spy.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(spy.FlushTimeout(patience), other.PublishRequest(hint, "answer", told),
		other.FlushTimeout(patience), spy.FlushTimeout(patience)); err != nil {
		t.Fatal(err)
	}
	if message, err := heard.NextMsg(time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Errorf("got %v and error %v, want nothing", message, err)
	}
}

// BenchmarkTell tells what a message that is kept takes through the proxy, beside one of the engine itself.
func BenchmarkTell(b *testing.B) {
	server := natstest.Start(b)
	engine := server.Connect()
	if err := loop.EnsureStreams(b.Context(), engine); err != nil {
		b.Fatal(err)
	}
	hint, told := aHint(b)
	for name, js := range map[string]jetstream.JetStream{
		"engine": engine, "build": server.Dial(server.Admit("app@1", app("app", "own"))),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := js.Publish(b.Context(), hint, told); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
