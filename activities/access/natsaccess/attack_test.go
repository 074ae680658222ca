package natsaccess_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// app is one with a pipeline.
func app(name, pipeline string) wire.App {
	return wire.App{Name: name, Pipelines: []wire.Pipeline{{Name: pipeline}}}
}

// start starts a server with the streams that builds publish to, and connects as the engine.
func start(t *testing.T) (*natstest.Server, jetstream.JetStream) {
	t.Helper()
	server := natstest.Start(t)
	engine := server.Connect()
	if err := errors.Join(loop.EnsureStreams(t.Context(), engine), results.EnsureStream(t.Context(), engine)); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: wire.DoneStream, Subjects: []string{wire.DoneSubjects}, Duplicates: time.Hour,
	}); err != nil {
		t.Fatal(err)
	}
	return server, engine
}

// fact encodes what a build tells.
func fact(tb testing.TB, event predictor.Event) (subject string, data []byte) {
	tb.Helper()
	kind, data, err := wire.EncodeEvent(event)
	if err != nil {
		tb.Fatal(err)
	}
	return wire.LoopSubject(kind), data
}

// ended is the end of a run, with a reason of so many bytes.
func ended(run string, size int) predictor.RunEnded {
	return predictor.RunEnded{Run: run, State: predictor.RunFailed, Error: strings.Repeat("x", size)}
}

// refused returns the code with which a message was refused; 0 when it was taken.
func refused(err error) int {
	if answer, is := errors.AsType[*jetstream.APIError](err); is {
		return answer.Code
	}
	return 0
}

func TestAttackABuildFillsTheLoop(t *testing.T) {
	t.Parallel()
	server, engine := start(t)
	hostile := server.Dial(server.Admit("hostile@1", app("hostile", "h")))
	honest := server.Dial(server.Admit("honest@1", app("honest", "p")))
	subject, data := fact(t, ended("h-1", 250<<10))
	fill := func(most int) {
		for range most {
			_, err := hostile.Publish(t.Context(), subject, data)
			if err != nil && refused(err) != 429 {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
		}
		t.Errorf("the loop took %d messages of %d bytes, all that were sent", most, len(data))
	}
	fill(2000) // 500 MB, of which 64 are taken at once and one each second from then on
	server.Dismiss("hostile@1")
	hostile = server.Dial(server.Admit("hostile@1", app("hostile", "h")))
	fill(200) // its worker was started again: 50 MB
	subject, data = fact(t, ended("p-1", 10))
	if _, err := honest.Publish(t.Context(), subject, data); err != nil {
		t.Errorf("another build meanwhile: %v", err)
	}
	if _, err := engine.Publish(t.Context(), wire.LoopSubject(wire.KindRecord), nil); err != nil {
		t.Errorf("the engine meanwhile: %v", err)
	}
}

// TestAttackABuildMakesEntriesWithoutABound has a build fill, with a few bytes each, the bucket of ends, of which the
// server keeps each in memory.
func TestAttackABuildMakesEntriesWithoutABound(t *testing.T) {
	t.Parallel()
	server, engine := start(t)
	hostile := server.Dial(server.Admit("hostile@1", app("hostile", "h")))
	const most = 40_000
	took := 0
	for first := 0; first < most; first += 1000 {
		var sent []jetstream.PubAckFuture
		for i := range 1000 {
			subject := fmt.Sprintf("$KV.%s.%032x", wire.EndBucket, first+i)
			future, err := hostile.PublishAsync(subject, []byte("done"))
			if err != nil {
				t.Fatal(err)
			}
			sent = append(sent, future)
		}
		for _, future := range sent {
			select {
			case <-future.Ok():
				took++
			case err := <-future.Err():
				if refused(err) != 429 {
					t.Fatal(err)
				}
			case <-time.After(natstest.Patience):
				t.Fatal("no answer")
			}
		}
		if took < first {
			break
		}
	}
	if took > most-2000 {
		t.Errorf("the bucket took %d entries, all that were sent", took)
	}
	honest := server.Dial(server.Admit("honest@1", app("honest", "p")))
	if _, err := honest.Publish(t.Context(), "$KV."+wire.EndBucket+".0f", []byte("done")); err != nil {
		t.Errorf("another build meanwhile: %v", err)
	}
	if _, err := engine.Publish(t.Context(), "$KV."+wire.EndBucket+".0e", []byte("done")); err != nil {
		t.Errorf("the engine meanwhile: %v", err)
	}
}

func TestAttackABuildSendsALargeMessage(t *testing.T) {
	t.Parallel()
	server, _ := start(t)
	hostile := server.Dial(server.Admit("hostile@1", app("hostile", "h")))
	subject, data := fact(t, ended("h-1", 300<<10))
	_, err := hostile.Publish(t.Context(), subject, data)
	if refused(err) != 413 {
		t.Errorf("a message of %d bytes: %v, want a refusal", len(data), err)
	}
}

// TestAttackABuildSendsWithoutAnEnd has builds send as fast as they can what is refused, and wait for no answer.
func TestAttackABuildSendsWithoutAnEnd(t *testing.T) {
	t.Parallel()
	server, engine := start(t)
	for i, subject := range []string{
		wire.LoopSubject(wire.KindScheduled), "$JS.API.STREAM.INFO." + wire.ResultStream,
		"$JS.API.CONSUMER.MSG.NEXT." + wire.LoopStream + ".build-2-0", // that of the third account
	} {
		cut := make(chan struct{}, 100)
		name := fmt.Sprintf("hostile@%d", i)
		hostile := server.Dial(server.Admit(name, app("hostile", "h")),
			nats.DisconnectErrHandler(func(*nats.Conn, error) { cut <- struct{}{} })).Conn()
		reply, sent := nats.NewInbox(), 0
		for deadline := time.Now().Add(natstest.Patience); len(cut) == 0 && hostile.IsConnected(); sent++ {
			if time.Now().After(deadline) {
				t.Fatalf("%d messages on %s were taken, and it is still connected", sent, subject)
			}
			if err := hostile.PublishRequest(subject, reply, []byte("{}")); err != nil {
				break // disconnected meanwhile
			}
		}
		natstest.Receive(t, cut, "the end of the connection")
		t.Logf("%s: cut off after %d messages, %d answers are due", subject, sent,
			server.Embedded().GlobalAccount().NumPendingAllResponses())
	}
	if _, err := engine.Publish(t.Context(), wire.LoopSubject(wire.KindRecord), nil); err != nil {
		t.Errorf("the engine meanwhile: %v", err)
	}
}

func TestAttackABuildMakesConsumersWithoutABound(t *testing.T) {
	t.Parallel()
	server, engine := start(t)
	hostile := server.Dial(server.Admit("hostile@1", app("hostile", "h")))
	made := 0
	for range 100 {
		consumer, err := hostile.CreateConsumer(t.Context(), wire.LoopStream, jetstream.ConsumerConfig{
			FilterSubject: wire.LoopSubject(wire.KindRunEnded), InactiveThreshold: 1000 * time.Hour, MaxWaiting: 1 << 20,
			Metadata: map[string]string{"much": strings.Repeat("x", 100<<10)}, AckPolicy: jetstream.AckExplicitPolicy,
			Description: strings.Repeat("x", 4000), Replicas: 1, PauseUntil: new(time.Now().Add(time.Hour)),
		})
		if err != nil {
			if refused(err) != 429 {
				t.Errorf("consumer %d: %v, want to be told to wait", made+1, err)
			}
			continue
		}
		made++
		stored, err := engine.Consumer(t.Context(), wire.LoopStream, consumer.CachedInfo().Name)
		if err != nil {
			t.Fatal(err)
		}
		config := stored.CachedInfo().Config
		if config.InactiveThreshold > time.Minute || config.MaxWaiting > 100 || config.AckPolicy != jetstream.AckNonePolicy ||
			config.Description != "" || len(config.Metadata["much"]) > 0 || !config.MemoryStorage || config.PauseUntil != nil {
			t.Fatalf("it has the consumer %+v", config)
		}
	}
	if made == 0 || made > 16 {
		t.Errorf("%d consumers were made, want 16 at most", made)
	}
	stream, err := engine.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	names := stream.ConsumerNames(t.Context())
	for name := range names.Name() {
		if err := hostile.DeleteConsumer(t.Context(), wire.LoopStream, name); err != nil {
			t.Errorf("delete one's own: %v", err)
		}
	}
	if _, err := hostile.CreateConsumer(t.Context(), wire.LoopStream, jetstream.ConsumerConfig{
		FilterSubject: wire.LoopSubject(wire.KindRunEnded),
	}); err != nil {
		t.Errorf("one after all were deleted: %v", err)
	}
}

// TestAttackABuildTakesIDsOfOthers has a build tell something under the IDs of what others are yet to tell: NATS would
// drop that as told.
func TestAttackABuildTakesIDsOfOthers(t *testing.T) {
	t.Parallel()
	server, engine := start(t)
	hostile := server.Dial(server.Admit("hostile@1", app("hostile", "h")))
	victim := server.Dial(server.Admit("victim@1", app("victim", "victim")))
	own := predictor.StageID{App: "hostile", Build: "1", Name: "s"}
	tell := func(js jetstream.JetStream, id string, event predictor.Event) (*jetstream.PubAck, error) {
		subject, data := fact(t, event)
		return js.Publish(t.Context(), subject, data, jetstream.WithMsgID(id))
	}
	for _, id := range []string{
		"victim-1/started", "victim-1/ended", "victim-1/train/1", "held/host/1/2", "started/host/pool/x", "h-1/train/1",
		"h-1", "1",
	} {
		for _, event := range []predictor.Event{
			predictor.Scheduled{Run: "h-1", Stage: own, Expected: 1},
			predictor.GoalChanged{Run: "h-1"},
			predictor.Reused{Run: "h-1", Stage: own, Tasks: 1},
			ended("h-1", 1),
			predictor.RunStarted{Run: "h-1", Pipeline: "h", App: "hostile"},
		} {
			if _, err := tell(hostile, id, event); refused(err) != 403 {
				t.Errorf("%T under the ID %s: %v, want a refusal", event, id, err)
			}
		}
	}
	for id, event := range map[string]predictor.Event{
		"h-1/started": ended("h-1", 1), "h-1/ended": predictor.RunStarted{Run: "h-1", Pipeline: "h", App: "hostile"},
	} {
		if _, err := tell(hostile, id, event); refused(err) != 403 {
			t.Errorf("%T under the ID %s: %v, want a refusal", event, id, err)
		}
	}
	done := func(js jetstream.JetStream, pipeline, id, run string) (*jetstream.PubAck, error) {
		encoded, err := json.Marshal(wire.Done{Version: wire.Version, Run: run, Pipeline: pipeline})
		if err != nil {
			t.Fatal(err)
		}
		return js.Publish(t.Context(), wire.DoneSubject(pipeline), encoded, jetstream.WithMsgID(id))
	}
	for _, id := range []string{"victim-1", "h-2", "", "victim-1/ended"} {
		if _, err := done(hostile, "h", id, "h-1"); refused(err) != 403 {
			t.Errorf("a completion event under the ID %q: %v, want a refusal", id, err)
		}
	}
	for name, told := range map[string]func() (*jetstream.PubAck, error){
		"the victim's start": func() (*jetstream.PubAck, error) {
			return tell(victim, "victim-1/started", predictor.RunStarted{Run: "victim-1", Pipeline: "victim", App: "victim"})
		},
		"the victim's end": func() (*jetstream.PubAck, error) {
			return tell(victim, "victim-1/ended", ended("victim-1", 1))
		},
		"the victim's completion": func() (*jetstream.PubAck, error) {
			return done(victim, "victim", "victim-1", "victim-1")
		},
		"its own end":        func() (*jetstream.PubAck, error) { return tell(hostile, "h-1/ended", ended("h-1", 1)) },
		"its own completion": func() (*jetstream.PubAck, error) { return done(hostile, "h", "h-1", "h-1") },
		"a Record": func() (*jetstream.PubAck, error) {
			return tell(engine, "victim-1/train/1", predictor.Record{Run: "victim-1", Task: "train", Attempt: 1})
		},
	} {
		if answer, err := told(); err != nil || answer.Duplicate {
			t.Errorf("%s: %+v, %v; want it stored", name, answer, err)
		}
	}
}

func TestAttackABuildTellsOfRunsThatAreNotItsOwn(t *testing.T) {
	t.Parallel()
	server, engine := start(t)
	hostile := server.Dial(server.Admit("hostile@1", app("hostile", "h")))
	own, other := predictor.StageID{App: "hostile", Name: "s"}, predictor.StageID{App: "victim", Name: "s"}
	for _, event := range []predictor.Event{
		ended("victim-1", 1), ended("h--1", 1), ended("h-a--1", 1), ended("h", 1), ended("", 1), ended("victim-1/h-1", 1),
		predictor.RunStarted{Run: "victim-1", Pipeline: "h", App: "hostile"},
		predictor.RunStarted{Run: "h-1", Pipeline: "victim", App: "hostile"},
		predictor.RunStarted{Run: "h-1", Pipeline: "h", App: "victim"},
		predictor.Scheduled{Run: "victim-1", Stage: own, Expected: 1},
		predictor.Scheduled{Run: "h-1", Stage: other, Expected: 1},
		predictor.Reused{Run: "victim-1", Stage: own},
		predictor.Reused{Run: "h-1", Stage: other},
		predictor.GoalChanged{Run: "victim-1"},
	} {
		subject, data := fact(t, event)
		if _, err := hostile.Publish(t.Context(), subject, data); refused(err) != 403 {
			t.Errorf("%+v: %v, want a refusal", event, err)
		}
	}
	for _, run := range []string{"h-1", "h-1/child", "h-a/b--c", "019f3c1e-0f0c-7c3f-9a53-0a1b2c3d4e5f_7"} {
		subject, data := fact(t, ended(run, 1))
		if _, err := hostile.Publish(t.Context(), subject, data); err != nil {
			t.Errorf("the end of its run %s: %v", run, err)
		}
	}
	if got := natstest.Messages(t, engine, wire.LoopStream); got != 4 {
		t.Errorf("the loop holds %d messages, want the 4 of its own runs", got)
	}
}

// TestAttackABuildReachesConsumersOfOthers asks for messages of, asks about, and deletes what others made.
func TestAttackABuildReachesConsumersOfOthers(t *testing.T) {
	t.Parallel()
	server, engine := start(t)
	hostile := server.Dial(server.Admit("hostile@1", app("hostile", "h")))
	victim := server.Dial(server.Admit("victim@1", app("victim", "victim")))
	subject, data := fact(t, ended("victim-1", 1))
	if _, err := engine.Publish(t.Context(), subject, data); err != nil {
		t.Fatal(err)
	}
	filter := jetstream.ConsumerConfig{FilterSubject: subject, AckPolicy: jetstream.AckNonePolicy}
	var names []string
	for _, js := range []jetstream.JetStream{engine, victim} {
		consumer, err := js.CreateConsumer(t.Context(), wire.LoopStream, filter)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, consumer.CachedInfo().Name)
	}
	for _, name := range names {
		place := wire.LoopStream + "." + name
		for _, call := range []string{"INFO", "DELETE", "MSG.NEXT"} {
			answer, err := hostile.Conn().Request("$JS.API.CONSUMER."+call+"."+place, nil, natstest.Patience)
			if call == "MSG.NEXT" { // nobody is there to answer
				if !errors.Is(err, nats.ErrNoResponders) {
					t.Errorf("%s of %s: got %v and error %v, want that there is nothing", call, name, answer, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(answer.Data), `"code":403`) {
				t.Errorf("%s of %s: got %s, want a refusal", call, name, answer.Data)
			}
		}
		info, err := engine.Consumer(t.Context(), wire.LoopStream, name)
		if err != nil {
			t.Errorf("consumer %s: %v", name, err)
			continue
		}
		if got := info.CachedInfo().Delivered.Consumer; got != 0 {
			t.Errorf("consumer %s has delivered %d messages to somebody else", name, got)
		}
	}
}

func TestAttackABuildTakesAllConnections(t *testing.T) {
	t.Parallel()
	server, engine := start(t)
	address := server.Admit("hostile@1", app("hostile", "h"))
	open := 0
	for range 50 {
		connection, err := nats.Connect(address)
		if err == nil {
			t.Cleanup(connection.Close)
			open++
		}
	}
	if open == 0 || open > 4 {
		t.Errorf("it has %d connections, want 4 at most", open)
	}
	server.Dial(server.Admit("honest@1", app("honest", "p")))
	if err := engine.Conn().FlushTimeout(natstest.Patience); err != nil {
		t.Error(err)
	}
}

func TestAttackABuildThatIsGoneComesBack(t *testing.T) {
	t.Parallel()
	server, engine := start(t)
	accounts := 0
	for i := range 20 {
		name := fmt.Sprintf("hostile@%d", i)
		address := server.Admit(name, app("hostile", "h"))
		closed := make(chan struct{})
		hostile := server.Dial(address, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
		consumer, err := hostile.CreateConsumer(t.Context(), wire.LoopStream, jetstream.ConsumerConfig{
			FilterSubject: wire.LoopSubject(wire.KindRunEnded),
		})
		if err != nil {
			t.Fatal(err)
		}
		server.Dismiss(name)
		natstest.Receive(t, closed, "the end of its connection")
		if _, err := nats.Connect(address); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("after it was released: %v, want %v", err, nats.ErrAuthorization)
		}
		_, err = engine.Consumer(t.Context(), wire.LoopStream, consumer.CachedInfo().Name)
		if !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Errorf("its consumer: %v, want %v", err, jetstream.ErrConsumerNotFound)
		}
		if i == 0 {
			accounts = server.Embedded().NumLoadedAccounts()
		}
	}
	if got := server.Embedded().NumLoadedAccounts(); got != accounts {
		t.Errorf("the server has %d accounts after 20 builds, want the %d from after the first", got, accounts)
	}
}

func TestAttackABuildReplacesAResult(t *testing.T) {
	t.Parallel()
	server, engine := start(t)
	hostile := server.Dial(server.Admit("hostile@1", app("hostile", "h")))
	subject := wire.ResultSubject(wire.ResultKey{Content: "c", Code: "b"}, "victim-1")
	if _, err := engine.Publish(t.Context(), subject, []byte("honest")); err != nil {
		t.Fatal(err)
	}
	if _, err := hostile.Publish(t.Context(), subject, []byte("forged")); refused(err) != 403 {
		t.Errorf("it replaced a result: %v", err)
	}
	stream, err := engine.Stream(t.Context(), wire.ResultStream)
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := stream.GetLastMsgForSubject(t.Context(), subject); err != nil || string(kept.Data) != "honest" {
		t.Errorf("got %+v, %v; want what was kept", kept, err)
	}
}

// TestAttackABuildAsksForMoreThanItsSubjectSays puts what NATS would act on into a question, and its own things into
// the bucket of ends.
func TestAttackABuildAsksForMoreThanItsSubjectSays(t *testing.T) {
	t.Parallel()
	server, engine := start(t)
	hostile := server.Dial(server.Admit("hostile@1", app("hostile", "h")))
	if _, err := engine.Publish(t.Context(), "spillway.results.content.code.run", nil); err != nil {
		t.Fatal(err)
	}
	answer, err := hostile.Conn().Request("$JS.API.STREAM.INFO."+wire.ResultStream,
		[]byte(`{"subjects_filter":">","deleted_details":true}`), natstest.Patience)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(answer.Data), "spillway.results.content") {
		t.Errorf("it is told which results there are: %s", answer.Data)
	}
	key := "$KV." + wire.EndBucket + ".0123456789abcdef0123456789abcdef"
	if _, err := hostile.Publish(t.Context(), key, []byte(strings.Repeat("x", 100))); refused(err) != 403 {
		t.Errorf("it keeps its own things in the bucket of ends: %v", err)
	}
	if _, err := hostile.Publish(t.Context(), key, []byte("begun"), jetstream.WithMsgID("x")); refused(err) != 403 {
		t.Errorf("it gives an ID in the bucket of ends: %v", err)
	}
	_, err = hostile.Publish(t.Context(), key, []byte("begun"), jetstream.WithExpectLastSequencePerSubject(0))
	if err != nil {
		t.Errorf("an end that is about to be told: %v", err)
	}
}
