package loop_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// workerOf connects as the workflow worker of a build of an app with one pipeline. What the server forbids it comes on
// the channel.
func workerOf(server *natstest.Server, app, pipeline, inbox string) (jetstream.JetStream, <-chan error) {
	described := wire.App{Name: app, Pipelines: []wire.Pipeline{{Name: pipeline}}}
	forbidden := make(chan error, 100)
	js := server.Dial(server.Admit(app+"@0123456789ab", described), nats.CustomInboxPrefix(inbox),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { forbidden <- err }))
	return js, forbidden
}

func TestAWorkflowWorkerMayTellAllThatItHasToTell(t *testing.T) {
	t.Parallel()
	for name, inbox := range map[string]string{
		"of this version":       "_INBOX",
		"of an earlier version": "_INBOX_0123456789abcdef",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := natstest.Start(t)
			engine := server.Connect()
			ensure(t, engine)
			forgetful(t, engine)
			js, forbidden := workerOf(server, "app", "pipe_line", inbox)
			recorder := loop.NewRecorder(js, nil)
			now := time.Now()
			recorder.Tell(predictor.RunStarted{Run: "pipe_line-run", Pipeline: "pipe_line", App: "app", At: now})
			recorder.Tell(predictor.Scheduled{
				Run: "pipe_line-run", Stage: predictor.StageID{App: "app", Build: "b", Name: "s"},
				Expected: 1, At: now,
			})
			recorder.Tell(predictor.GoalChanged{
				Run: "pipe_line-run", Goal: predictor.Goal{Budget: quantity.USD}, At: now,
			})
			recorder.Tell(predictor.Reused{
				Run: "pipe_line-run", Stage: predictor.StageID{App: "app", Build: "b", Name: "s"}, Tasks: 1,
				At: now,
			})
			// the streams are looked through for the late ones
			for _, ago := range []time.Duration{0, 5 * time.Minute, 5 * 24 * time.Hour} {
				end := endingOf("pipe_line-run "+ago.String(), "pipe_line", ago)
				for again := range 2 {
					if again > 0 && ago == 0 {
						break // the server drops by itself what is told twice just now
					}
					forgotten(t, engine)
					if err := recorder.End(t.Context(), end.started, end.ended, end.done); err != nil {
						t.Fatalf("an end %s ago: %v", ago, err)
					}
				}
				if told, complete := ends(t, engine, end.ended.Run),
					completions(t, engine)[end.ended.Run]; told != 1 || complete != 1 {
					t.Errorf("an end %s ago: told %d times, completed %d times; want once", ago, told, complete)
				}
			}
			if err := recorder.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-forbidden:
				t.Error(err)
			default:
			}
			kinds := map[string]int{}
			for _, message := range lines(t, engine) {
				switch message.Event.(type) {
				case predictor.Scheduled, predictor.GoalChanged, predictor.Reused:
					kinds["hint"]++
				}
			}
			if kinds["hint"] != 3 {
				t.Errorf("%d hints have come, want 3", kinds["hint"])
			}
		})
	}
}

func TestAttackABuildPublishesOrReadsWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	engine := server.Connect()
	ensure(t, engine)
	forgetful(t, engine)
	before := contents(t, engine)
	js, forbidden := workerOf(server, "app", "own", "_INBOX")
	refused := func(what string) {
		t.Helper()
		if err := js.Conn().FlushTimeout(natstest.Patience); err != nil {
			t.Fatal(err)
		}
		if err := natstest.Receive(t, forbidden, "refusal of "+what); !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("%s: got %v, want a refusal", what, err)
		}
	}
	for _, subject := range []string{
		"events.own", wire.LoopSubject(wire.KindDecision), wire.LoopSubject(wire.KindRecord),
		wire.LoopSubject(wire.KindSampled), wire.FactSubject(wire.KindSampled),
		wire.LoopSubject(wire.KindHostHeld), wire.LoopSubject(wire.KindHostStarted),
		wire.LoopSubject(wire.KindAttemptStarted),
		wire.LoopSubject(wire.KindBacklog), wire.DoneSubject("other"), wire.DeadSubject("own"), wire.AlertSubject("own"),
		wire.LogSubject(wire.LogSource{Run: "pipe_line-run", Stage: "s", Task: "t", Attempt: 1}),
		"$KV." + wire.PlanBucket + "." + wire.PlanKey, "$KV." + wire.PlanBucket + "." + wire.TermKey,
		"$KV." + wire.LeaseBucket + "." + wire.LeaseKey,
		"$KV." + wire.HostBucket + ".host", "$KV." + wire.StateBucket + "." + wire.StateKey,
		"$KV." + wire.BindingBucket + ".b", "$KV." + wire.SharedBucket + ".token.own",
		"$JS.API.DIRECT.GET.KV_" + wire.SharedBucket + ".$KV." + wire.SharedBucket + ".token.own",
		"$JS.API.CONSUMER.CREATE.KV_" + wire.SharedBucket + ".name",
		"$JS.API.STREAM.DELETE." + wire.LoopStream, "$JS.API.STREAM.PURGE." + wire.LoopStream,
		"$JS.API.STREAM.UPDATE." + wire.LoopStream,
		"$JS.API.STREAM.CREATE.MINE", "$JS.API.STREAM.MSG.DELETE." + wire.LoopStream,
		"$JS.API.STREAM.MSG.GET." + wire.LoopStream,
		"$JS.API.STREAM.NAMES", "$JS.API.DIRECT.GET." + wire.LoopStream,
		"$JS.API.DIRECT.GET.KV_" + wire.PlanBucket + ".$KV." + wire.PlanBucket + ".current",
		"$JS.API.CONSUMER.CREATE." + wire.LoopStream, "$JS.API.CONSUMER.CREATE." + wire.LoopStream + ".name",
		"$JS.API.CONSUMER.CREATE." + wire.LoopStream + ".name." + wire.LoopSubject(wire.KindRecord),
		"$JS.API.CONSUMER.CREATE." + wire.DoneStream + ".name." + wire.DoneSubject("other"),
		"$JS.API.CONSUMER.NAMES." + wire.LoopStream, "_INBOX.x", "$SYS.REQ.SERVER.PING",
	} {
		if err := js.Conn().Publish(subject, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		refused("publishing on " + subject)
	}
	heard := make(chan *nats.Msg, 100)
	for _, subject := range []string{
		">", "_INBOX.>", "spillway.>", wire.LoopSubjects, wire.SampleSubjects, wire.ResultSubjects, wire.LogSubjects, "$KV.>",
		"events.>", "$JS.>",
	} {
		if _, err := js.Conn().ChanSubscribe(subject, heard); err != nil {
			t.Fatal(err)
		}
	}
	if err := js.Conn().FlushTimeout(natstest.Patience); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Publish(t.Context(), wire.LoopSubject("x"), nil); err != nil { // it waits until it is stored
		t.Fatal(err)
	}
	for _, subject := range []string{"_INBOX.x", "spillway.builds.x", "$KV.x", "events.x", "$JS.x"} {
		if err := engine.Conn().Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := engine.Conn().FlushTimeout(natstest.Patience); err != nil {
		t.Fatal(err)
	}
	if err := js.Conn().FlushTimeout(natstest.Patience); err != nil { // what the server has for it comes before
		t.Fatal(err)
	}
	if len(heard) > 0 {
		t.Errorf("it hears what is published on %s", (<-heard).Subject)
	}
	// That of the loop's is what was just published.
	if after := contents(t, engine); after != before+1 {
		t.Errorf("the streams hold %d messages, want the %d from before and one", after, before)
	}
}

func TestAttackADecisionUnderTheSubjectOfAHintIsNotFollowed(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	engine := server.Connect()
	ensure(t, engine)
	js, _ := workerOf(server, "app", "own", "_INBOX")
	_, decision, err := wire.EncodeDecision(predictor.Decision{})
	if err != nil {
		t.Fatal(err)
	}
	_, record, err := wire.EncodeEvent(predictor.Record{Run: "run", Task: "task", Attempt: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, hint, err := wire.EncodeEvent(predictor.Scheduled{
		Run: "own-run", Stage: predictor.StageID{App: "app"}, Expected: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{decision, record, hint} {
		_, err := js.Publish(t.Context(), wire.LoopSubject(wire.KindScheduled), data)
		if _, refused := errors.AsType[*jetstream.APIError](err); refused != (&data[0] != &hint[0]) {
			t.Errorf("%s: %v, want that the hint alone is taken", data, err)
		}
	}
	for _, data := range [][]byte{decision, record} { // by whoever comes past the proxy
		if _, err := engine.Publish(t.Context(), wire.LoopSubject(wire.KindScheduled), data); err != nil {
			t.Fatal(err)
		}
	}
	followed := make(chan wire.Message, 3)
	background(t, func(ctx context.Context) error {
		return loop.Follow(ctx, engine, 0, nil, func(line loop.Line) error {
			followed <- line.Message
			return nil
		})
	})
	for i, want := range []wire.Kind{wire.KindScheduled, "", ""} {
		if got := natstest.Receive(t, followed, "a message").Kind(); got != want {
			t.Errorf("message %d: got %q, want %q", i+1, got, want)
		}
	}
}

// contents counts the messages of all streams.
func contents(t *testing.T, js jetstream.JetStream) (count uint64) {
	t.Helper()
	all := js.ListStreams(t.Context())
	for info := range all.Info() {
		count += info.State.Msgs
	}
	if err := all.Err(); err != nil {
		t.Fatal(err)
	}
	return count
}
