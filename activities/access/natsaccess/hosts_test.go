package natsaccess_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// openHost starts a server, and connects as the engine and as the host gpu-1.example.com that has joined.
func openHost(t *testing.T) (server *natstest.Server, engine, host jetstream.JetStream) {
	t.Helper()
	server, engine = start(t)
	if err := logs.EnsureStream(t.Context(), engine, logs.StreamOptions{}); err != nil {
		t.Fatal(err)
	}
	return server, engine, server.Dial(server.AdmitHost(hostName))
}

const hostName = "gpu-1.example.com"

func recordOf(host, run string) predictor.Record {
	return predictor.Record{
		Run: run, Stage: predictor.StageID{App: "app", Build: "1", Name: "s"}, Task: "s-0", Attempt: 1,
		Venue: predictor.Pool, Host: host, Outcome: predictor.Succeeded, At: time.Now(),
	}
}

// given is the attempt that a host was given, as recordOf tells of it.
func given(run string) wire.Given {
	return wire.Given{
		Run: run, Stage: predictor.StageID{App: "app", Build: "1", Name: "s"}, Task: "s-0", Attempt: 1, At: time.Now(),
	}
}

// TestAHostDoesItsWorkOverNATS has the adapters of a host work with its rights, as they do with the engine's.
func TestAHostDoesItsWorkOverNATS(t *testing.T) {
	t.Parallel()
	server, engine, host := openHost(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	proof := func(run, task string, attempt int) string {
		if run != "own-1" || task != "s-0" || attempt != 1 {
			t.Errorf("a proof of attempt %d of %s of %s is asked for", attempt, task, run)
		}
		return server.Prove(hostName, given(run))
	}
	recorder := loop.NewRecorder(host, &loop.RecorderOptions{Proof: proof})
	if err := errors.Join(
		recorder.Started(ctx, predictor.HostStarted{Host: hostName, Venue: predictor.Pool, Instance: "i"}),
		recorder.Record(ctx, recordOf(hostName, "own-1")),
		recorder.Record(ctx, recordOf(hostName, "own-1")),
		recorder.Held(ctx, predictor.HostHeld{Host: hostName, From: time.Unix(1, 0), At: time.Unix(2, 0)}),
	); err != nil {
		t.Error(err)
	}
	recorder.Tell(predictor.Sampled{
		Run: "own-1", Stage: given("").Stage, Task: "s-0", Attempt: 1, Venue: predictor.Pool, Host: hostName,
	})
	if err := recorder.Close(ctx); err != nil {
		t.Error(err)
	}
	if got := natstest.Messages(t, engine, wire.LoopStream); got != 3 {
		t.Errorf("the loop has %d messages, want a start, a Record and for how long it was held", got)
	}
	lines := logs.NewWriter(host, logs.WriterOptions{Proof: proof}).Attempt(wire.LogSource{
		Run: "own-1", Stage: "s", Task: "s-0", Attempt: 1, Venue: predictor.Pool, Host: hostName,
	})
	if _, err := fmt.Fprintln(lines.Stdout(), "hello"); err != nil {
		t.Error(err)
	}
	if err := lines.Close(ctx); err != nil {
		t.Error(err)
	}
	for stream, want := range map[string]uint64{wire.SampleStream: 1, wire.LogStream: 1} {
		if got := natstest.Messages(t, engine, stream); got != want {
			t.Errorf("%s has %d messages, want %d", stream, got, want)
		}
	}

	leases, err := loop.NewLeases(ctx, host, nil)
	if err != nil {
		t.Fatal(err)
	}
	own, err := loop.NewLeases(ctx, engine, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := leases.PutHost(ctx, predictor.Host{ID: hostName}); err != nil {
		t.Error(err)
	}
	if living, err := own.Hosts(ctx); err != nil || len(living) != 1 || living[0].ID != hostName {
		t.Errorf("hosts: got %v, error %v; want the one", living, err)
	}
	if err := leases.DropHost(ctx, hostName); err != nil {
		t.Error(err)
	}
	if living, err := own.Hosts(ctx); err != nil || len(living) != 0 {
		t.Errorf("hosts once it has left: got %v, error %v; want none", living, err)
	}

	of, err := loop.NewPlans(ctx, host, nil)
	if err != nil {
		t.Fatal(err)
	}
	leader, err := loop.NewPlans(ctx, engine, nil)
	if err != nil {
		t.Fatal(err)
	}
	revision, err := leader.Replace(ctx, predictor.Plan{Term: 1, Tick: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan uint64, 10)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = of.Watch(watching, func(plan predictor.Plan) { seen <- plan.Tick })
	}()
	for tick := range uint64(3) {
		select {
		case got := <-seen:
			if got != tick+1 {
				t.Errorf("got the plan of tick %d, want %d", got, tick+1)
			}
		case <-ctx.Done():
			t.Fatalf("the plan of tick %d did not come", tick+1)
		}
		if revision, err = leader.Replace(ctx, predictor.Plan{Term: 1, Tick: tick + 2}, revision); err != nil {
			t.Fatal(err)
		}
	}
	if now, _, err := of.Current(ctx); err != nil || now.Tick != 4 {
		t.Errorf("the plan in force: got tick %d, error %v; want 4", now.Tick, err)
	}
	trying, giveUp := context.WithTimeout(ctx, time.Second) // nobody answers what may not be said
	defer giveUp()
	if _, err := of.Replace(trying, predictor.Plan{Term: 1, Tick: 9}, revision); err == nil {
		t.Error("a host has put a plan in force")
	}
	if now, _, err := leader.Current(ctx); err != nil || now.Tick != 4 {
		t.Errorf("the plan in force after a host tried: got tick %d, error %v; want 4", now.Tick, err)
	}
	stop()
	<-done
}

// TestAttackAHostActsForAnother has a host that has joined try what is the engine's, another host's or a run's.
func TestAttackAHostActsForAnother(t *testing.T) {
	t.Parallel()
	server, engine, host := openHost(t)
	ctx := t.Context()
	other := server.Dial(server.AdmitHost("gpu-2"))
	leases, err := loop.NewLeases(ctx, other, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := leases.PutHost(ctx, predictor.Host{ID: "gpu-2"}); err != nil {
		t.Fatal(err)
	}
	// The consumer with which the other host reads the plan.
	reading, err := other.OrderedConsumer(ctx, wire.PlanStream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{"$KV." + wire.PlanBucket + "." + wire.PlanKey},
	})
	if err != nil {
		t.Fatal(err)
	}
	theirs := reading.CachedInfo().Name
	encoded := func(event predictor.Event) []byte {
		_, data, err := wire.EncodeEvent(event)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	leased := func(id string) []byte {
		data, err := json.Marshal(map[string]any{"v": wire.Version, "host": predictor.Host{ID: id}})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	printed, err := json.Marshal(wire.Logs{Version: wire.Version, Source: wire.LogSource{
		Run: "r", Stage: "s", Task: "t", Attempt: 1, Venue: predictor.Pool, Host: "gpu-2",
	}})
	if err != nil {
		t.Fatal(err)
	}
	atFunction := recordOf(hostName, "r")
	atFunction.Venue = predictor.Function
	record, lease := wire.LoopSubject(wire.KindRecord), "$KV."+wire.HostBucket+"."
	plan := "$KV." + wire.PlanBucket + "." + wire.PlanKey
	withID := func(id string) nats.Header { return nats.Header{wire.MessageIDHeader: {id}} }
	ends := nats.Header{"KV-Operation": {"PURGE"}, "Nats-Rollup": {"sub"}}
	own, api := encoded(recordOf(hostName, "r")), "$JS.API."
	someone := predictor.Sampled{Venue: predictor.Pool, Host: "gpu-2"}
	anew := predictor.HostStarted{Venue: predictor.Pool, Host: "gpu-2"}
	read, made := api+"DIRECT.GET.KV_"+wire.HostBucket+"."+lease, api+"CONSUMER.CREATE."
	for name, message := range map[string]nats.Msg{
		"a Record of another host":    {Subject: record, Data: encoded(recordOf("gpu-2", "r"))},
		"a Record under another's ID": {Subject: record, Data: own, Header: withID("r/s-1/1")},
		"a Record without an ID":      {Subject: record, Data: own},
		"a Record at a function":      {Subject: record, Data: encoded(atFunction), Header: withID("r/s-0/1")},
		"a sample of another host":    {Subject: wire.FactSubject(wire.KindSampled), Data: encoded(someone)},
		"a start of another host":     {Subject: wire.LoopSubject(wire.KindHostStarted), Data: encoded(anew)},
		"another kind on its subject": {Subject: record, Data: encoded(predictor.RunEnded{Run: "r"})},
		"the end of a run": {
			Subject: wire.LoopSubject(wire.KindRunEnded), Data: encoded(predictor.RunEnded{Run: "r"}),
		},
		"a hint": {
			Subject: wire.LoopSubject(wire.KindScheduled), Data: encoded(predictor.Scheduled{Run: "r"}),
		},
		"what another's attempt prints": {Subject: "spillway.logs.r.s.t.1", Data: printed},
		"another's lease":               {Subject: lease + "gpu-2", Data: leased("gpu-2")},
		"another's lease under its key": {Subject: lease + hostName, Data: leased("gpu-2")},
		"the end of another's lease":    {Subject: lease + "gpu-2", Header: ends},
		"a plan":                        {Subject: plan, Data: []byte(`{}`)},
		"the leader's lease":            {Subject: "$KV." + wire.LeaseBucket + "." + wire.LeaseKey, Data: []byte(`{}`)},
		"an event":                      {Subject: "events.own", Data: []byte(`{}`)},
		"a result":                      {Subject: "spillway.results.a.b.c", Data: []byte(`{}`)},
		"another's lease, to read":      {Subject: read + "gpu-2"},
		"its own lease, to read":        {Subject: read + hostName},
		"the loop, to read":             {Subject: made + wire.LoopStream + ".mine." + record, Data: []byte(`{}`)},
		"all keys of the plan's bucket": {
			Subject: made + wire.PlanStream + ".mine.$KV." + wire.PlanBucket + ".>", Data: []byte(`{}`),
		},
		"the consumer of another host": {Subject: api + "CONSUMER.DELETE." + wire.PlanStream + "." + theirs},
		"what results there are":       {Subject: api + "STREAM.INFO." + wire.ResultStream},
		"which streams there are":      {Subject: api + "STREAM.NAMES"},
		"the removal of the plan":      {Subject: api + "STREAM.PURGE." + wire.PlanStream},
		"a stream of its own": {
			Subject: api + "STREAM.CREATE.MINE", Data: []byte(`{"name":"MINE","subjects":["events.>"]}`),
		},
	} {
		message.Reply = host.Conn().NewInbox()
		answers, err := host.Conn().SubscribeSync(message.Reply)
		if err != nil {
			t.Fatal(err)
		}
		if err := host.Conn().PublishMsg(&message); err != nil {
			t.Fatal(err)
		}
		// What NATS itself refuses has no answer: one to a question behind it says that none comes any more.
		if _, err := host.Conn().Request("$JS.API.STREAM.INFO."+wire.PlanStream, nil, patience); err != nil {
			t.Fatal(err)
		}
		answer, err := answers.NextMsg(time.Millisecond)
		if err == nil && !strings.Contains(string(answer.Data), `"code":403`) {
			t.Errorf("%s: got %q, want a refusal", name, answer.Data)
		}
	}
	if got := natstest.Messages(t, engine, wire.LoopStream); got != 0 {
		t.Errorf("the loop has %d messages, want none", got)
	}
	known, err := loop.NewLeases(ctx, engine, nil)
	if err != nil {
		t.Fatal(err)
	}
	living, err := known.Hosts(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range living {
		if one.ID != "gpu-2" {
			t.Errorf("a lease of %q was made", one.ID)
		}
	}
}

// TestAHostThatIsRemovedIsDisconnected releases a host, which has no rights any more.
func TestAHostThatIsRemovedIsDisconnected(t *testing.T) {
	t.Parallel()
	server, _, _ := openHost(t)
	gone := make(chan struct{}, 1)
	host := server.Dial(server.AdmitHost("gpu-2"), nats.DisconnectErrHandler(func(*nats.Conn, error) {
		select {
		case gone <- struct{}{}:
		default:
		}
	}))
	if _, err := loop.NewPlans(t.Context(), host, nil); err != nil {
		t.Fatal(err)
	}
	server.Dismiss(wire.HostUserPrefix + "gpu-2")
	select {
	case <-gone:
	case <-time.After(patience):
		t.Fatal("it is connected still")
	}
}

// TestAttackAHostTellsOfWhatItWasNotGiven has a host, that was given one attempt, tell of others, and of its own what
// cannot be.
func TestAttackAHostTellsOfWhatItWasNotGiven(t *testing.T) {
	t.Parallel()
	server, engine, host := openHost(t)
	asksForAnswers := func(message *nats.Msg) string {
		t.Helper()
		message.Reply = host.Conn().NewInbox()
		answers, err := host.Conn().SubscribeSync(message.Reply)
		if err != nil {
			t.Fatal(err)
		}
		if err := host.Conn().PublishMsg(message); err != nil {
			t.Fatal(err)
		}
		answer, err := answers.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		return string(answer.Data)
	}
	leases, err := loop.NewLeases(t.Context(), host, nil)
	if err != nil {
		t.Fatal(err)
	}
	// All of it costs a dollar an hour.
	if err := leases.PutHost(t.Context(), predictor.Host{ID: hostName, PricePerHour: quantity.USD}); err != nil {
		t.Fatal(err)
	}
	own := given("own-1")
	own.At = own.At.Add(-time.Hour)
	proof := server.Prove(hostName, own)
	record := func(change func(*predictor.Record)) predictor.Record {
		r := recordOf(hostName, "own-1")
		r.Usage.Wall, r.Cost = time.Hour, quantity.USD
		change(&r)
		return r
	}
	started := predictor.AttemptStarted{
		Run: "own-1", Stage: own.Stage, Task: "s-0", Attempt: 1, Venue: predictor.Pool, Host: hostName, At: time.Now(),
	}
	sampled := predictor.Sampled{
		Run: "own-1", Stage: own.Stage, Task: "s-0", Attempt: 1, Venue: predictor.Pool, Host: hostName, At: time.Now(),
	}
	told := func(event predictor.Event, proof string) *nats.Msg {
		kind, data, err := wire.EncodeEvent(event)
		if err != nil {
			t.Fatal(err)
		}
		m := &nats.Msg{Subject: wire.FactSubject(kind), Data: data, Header: nats.Header{}}
		if proof != "" {
			m.Header.Set(wire.ProofHeader, proof)
		}
		switch event := event.(type) {
		case predictor.Record:
			m.Header.Set(wire.MessageIDHeader, wire.RecordID(event))
		case predictor.HostHeld:
			m.Header.Set(wire.MessageIDHeader, wire.HostHeldID(event))
		}
		return m
	}
	printed := func(source wire.LogSource, proof string) *nats.Msg {
		source.Venue, source.Host = predictor.Pool, hostName
		data, err := json.Marshal(wire.Logs{Version: wire.Version, Source: source})
		if err != nil {
			t.Fatal(err)
		}
		return &nats.Msg{Subject: wire.LogSubject(source), Data: data, Header: nats.Header{wire.ProofHeader: {proof}}}
	}
	old := own
	old.At = time.Now().Add(-wire.GivenLasts - time.Hour)
	otherStage := predictor.StageID{App: "victim", Build: "1", Name: "s"}
	otherStart, late := started, sampled
	otherStart.Attempt, late.At = 2, time.Now().Add(2*wire.GivenGap)
	ahead := started
	ahead.At = late.At
	for name, message := range map[string]*nats.Msg{
		"a Record without a proof":   told(record(func(*predictor.Record) {}), ""),
		"with another host's proof":  told(record(func(*predictor.Record) {}), server.Prove("gpu-2", own)),
		"with a proof too old":       told(record(func(*predictor.Record) {}), server.Prove(hostName, old)),
		"another run's Record":       told(record(func(r *predictor.Record) { r.Run = "victim-1" }), proof),
		"another task's Record":      told(record(func(r *predictor.Record) { r.Task = "s-1" }), proof),
		"another attempt's Record":   told(record(func(r *predictor.Record) { r.Attempt = 2 }), proof),
		"another stage's Record":     told(record(func(r *predictor.Record) { r.Stage = otherStage }), proof),
		"one of the pool's queue":    told(record(func(r *predictor.Record) { r.PoolOnly = true }), proof),
		"one that costs more":        told(record(func(r *predictor.Record) { r.Cost = 2 * quantity.USD }), proof),
		"one that costs less than 0": told(record(func(r *predictor.Record) { r.Cost = -1 }), proof),
		"one that took longer":       told(record(func(r *predictor.Record) { r.Usage.Wall = 2 * time.Hour }), proof),
		"one that has yet to end": told(record(func(r *predictor.Record) {
			r.At = time.Now().Add(2 * wire.GivenGap)
		}), proof),
		"one that ended before":       told(record(func(r *predictor.Record) { r.At = time.Unix(1e9, 0) }), proof),
		"another attempt's start":     told(otherStart, proof),
		"a start that has yet to be":  told(ahead, proof),
		"a start without a proof":     told(started, ""),
		"a sample that has yet to be": told(late, proof),
		"a sample without a proof":    told(sampled, ""),
		"what another attempt prints": printed(wire.LogSource{Run: "own-1", Stage: "s", Task: "s-0", Attempt: 2}, proof),
		"what another run prints":     printed(wire.LogSource{Run: "victim-1", Stage: "s", Task: "s-0", Attempt: 1}, proof),
		"what another task prints":    printed(wire.LogSource{Run: "own-1", Stage: "s", Task: "s-1", Attempt: 1}, proof),
		"what it prints, without":     printed(wire.LogSource{Run: "own-1", Stage: "s", Task: "s-0", Attempt: 1}, ""),
		"a host that costs a fortune": told(predictor.HostHeld{Host: hostName, PricePerHour: 2 * wire.MostHostPrice}, ""),
	} {
		if answer := asksForAnswers(message); !strings.Contains(answer, `"code":403`) {
			t.Errorf("%s: got %q, want a refusal", name, answer)
		}
	}
	for _, stream := range []string{wire.LoopStream, wire.SampleStream, wire.LogStream} {
		if got := natstest.Messages(t, engine, stream); got != 0 {
			t.Errorf("%s has %d messages, want none", stream, got)
		}
	}
	for name, message := range map[string]*nats.Msg{
		"its Record": told(record(func(*predictor.Record) {}), proof), "its start": told(started, proof),
		"its sample": told(sampled, proof),
		"its lines":  printed(wire.LogSource{Run: "own-1", Stage: "s", Task: "s-0", Attempt: 1}, proof),
	} {
		if answer := asksForAnswers(message); strings.Contains(answer, `"error"`) {
			t.Errorf("%s: got %q, want that it is taken", name, answer)
		}
	}
	// What a host shows is for the proxy alone.
	stream, err := engine.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	for sequence := range uint64(2) {
		kept, err := stream.GetMsg(t.Context(), sequence+1)
		if err != nil || kept.Header.Get(wire.ProofHeader) != "" {
			t.Errorf("message %d is kept with %v, error %v; want no proof", sequence+1, kept.Header, err)
		}
	}
}

// TestAHostOfAVersionBeforeProofsIsBelieved: it works on until it is upgraded.
func TestAHostOfAVersionBeforeProofsIsBelieved(t *testing.T) {
	t.Parallel()
	server, engine, _ := openHost(t)
	host := server.Dial(server.AdmitUnproven("gpu-2"))
	recorder := loop.NewRecorder(host, nil)
	if err := errors.Join(recorder.Record(t.Context(), recordOf("gpu-2", "own-1")),
		recorder.Close(t.Context())); err != nil {
		t.Error(err)
	}
	if got := natstest.Messages(t, engine, wire.LoopStream); got != 1 {
		t.Errorf("the loop has %d messages, want its Record", got)
	}
}

// TestARecordThatIsRefusedIsNotToldAgain: the attempt ends with what was wrong, and nobody hears it for ever.
func TestARecordThatIsRefusedIsNotToldAgain(t *testing.T) {
	t.Parallel()
	_, _, host := openHost(t)
	recorder := loop.NewRecorder(host, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := recorder.Record(ctx, recordOf(hostName, "own-1"))
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "does not show that the host was given") {
		t.Errorf("got %v, %v; want a refusal at once", err, ctx.Err())
	}
	if err := recorder.Close(ctx); err != nil {
		t.Error(err)
	}
}
