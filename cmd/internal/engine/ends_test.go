package engine_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// endings reads what a loop's stream tells of the end of a run: the sequences of the messages, and the last state.
func endings(t *testing.T, stream jetstream.JetStream, run string) (sequences []uint64, state predictor.RunState) {
	t.Helper()
	lines, err := stream.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	kind, _, err := wire.EncodeEvent(predictor.RunEnded{})
	if err != nil {
		t.Fatal(err)
	}
	for next := uint64(1); ; {
		raw, err := lines.GetMsg(t.Context(), next, jetstream.WithGetMsgSubject(wire.LoopSubject(kind)))
		if err != nil {
			return sequences, state // there are no more
		}
		message, err := wire.DecodeMessage(raw.Data)
		if err != nil {
			t.Fatal(err)
		}
		if ended, is := message.Event.(predictor.RunEnded); is && ended.Run == run {
			sequences, state = append(sequences, raw.Sequence), ended.State
		}
		next = raw.Sequence + 1
	}
}

// TestARunWaitsForNATSToTellItsEnd runs a workflow on a real Temporal server whose worker tells the end to a NATS
// server of its own, which is away.
func TestARunWaitsForNATSToTellItsEnd(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), "", "--no-burst")
	calls := e.temporal()
	server := natstest.Start(t)
	stream := server.Connect()
	if err := loop.EnsureStreams(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.CreateStream(t.Context(),
		jetstream.StreamConfig{Name: wire.DoneStream, Subjects: []string{wire.DoneSubjects}}); err != nil {
		t.Fatal(err)
	}
	recorder := loop.NewRecorder(stream, nil)
	defer func() { _ = recorder.Close(context.WithoutCancel(t.Context())) }()
	ports := runs.Ports{App: "away", Build: "b1", End: func(ctx context.Context, over runs.Ended) error {
		return recorder.End(ctx, over.Started, over.Ended, over.Done)
	}}
	queue := worker.New(calls, "away", worker.Options{
		Interceptors: []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)}, LocalActivityWorkerOnly: true,
	})
	runs.Register(queue, ports, []runs.AnyPipeline{workflows.NewPipeline("away", func(workflow.Context, int) (int, error) {
		return 7, nil
	})})
	if err := queue.Start(); err != nil {
		t.Fatal(err)
	}
	defer queue.Stop()

	server.Stop()
	run, err := calls.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "away-1", TaskQueue: "away"}, "away", 1)
	if err != nil {
		t.Fatal(err)
	}
	waitForTimer(t, calls, "away-1") // it has left its workflow task to wait
	if err := calls.CancelWorkflow(t.Context(), "away-1", ""); err != nil {
		t.Fatal(err)
	}
	server.Restart()
	var result int
	if err := run.Get(t.Context(), &result); err != nil || result != 7 {
		t.Errorf("the run ended with %d, %v: want the result that it had before it was cancelled", result, err)
	}
	if told, state := endings(t, stream, "away-1"); len(told) != 1 || state != predictor.RunSucceeded ||
		completions(t, stream)["away-1"] != 1 {
		t.Errorf("its end is told %d times, as %s, with %d completion events: want one of each, succeeded", len(told), state,
			completions(t, stream)["away-1"])
	}
}

// waitForTimer waits until a workflow has set a timer.
func waitForTimer(t *testing.T, calls client.Client, id string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		events := calls.GetWorkflowHistory(t.Context(), id, "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for events.HasNext() {
			event, err := events.Next()
			if err != nil {
				t.Fatal(err)
			}
			if event.GetEventType() == enums.EVENT_TYPE_TIMER_STARTED {
				return
			}
			if event.GetWorkflowExecutionFailedEventAttributes() != nil ||
				event.GetWorkflowExecutionCompletedEventAttributes() != nil {
				t.Fatalf("the run ended before NATS was back: %v", event)
			}
		}
	}
	t.Fatal("the run still holds its workflow task after five minutes")
}

func TestARunThatCompletedWithoutAWordEndsWithItsResult(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	e := startEngine(t, state, buildApp(t, 0), "--no-burst")
	run := e.publish("fan", "mute", fanInput{Shards: 3})
	succeed[fanResult](e, run, time.Minute).check(t, 3)
	e.kill()

	// The server loses the end, as after a power cut: it writes to the disk every two minutes.
	server := natstest.StartOn(t, filepath.Join(state, "nats"))
	stream := server.Connect()
	lost, _ := endings(t, stream, run)
	lines, err := stream.Stream(t.Context(), wire.LoopStream)
	if err != nil || len(lost) != 1 {
		t.Fatalf("find the end of the run: %v, %v", lost, err)
	}
	if err := lines.DeleteMsg(t.Context(), lost[0]); err != nil {
		t.Fatal(err)
	}
	server.Stop()

	e = startEngine(t, state, "", "--no-burst")
	succeed[fanResult](e, run, 2*time.Minute).check(t, 3)
	if got := completions(t, e.stream())[run]; got != 1 {
		t.Errorf("%d completion events, want the one that was told before", got)
	}
	e.stop()
}
