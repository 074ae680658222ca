package loop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// recorder returns a Recorder that the test closes.
func recorder(t *testing.T, js jetstream.JetStream, options *loop.RecorderOptions) *loop.Recorder {
	t.Helper()
	r := loop.NewRecorder(js, options)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = r.Close(ctx)
	})
	return r
}

// lines returns all messages of the loop's stream.
func lines(t *testing.T, js jetstream.JetStream) []wire.Message {
	t.Helper()
	stream, err := js.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	last := stream.CachedInfo().State.LastSeq
	if last == 0 {
		return nil
	}
	var all []wire.Message
	done := errors.New("all read")
	err = loop.Follow(t.Context(), js, 0, nil, func(line loop.Line) error {
		all = append(all, line.Message)
		if line.Sequence >= last {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Fatal(err)
	}
	return all
}

func record(task string, attempt int) predictor.Record {
	return predictor.Record{
		Run: "run-1", Pipeline: "train", Stage: stage, Task: task, Attempt: attempt,
		Venue: predictor.Pool, Outcome: predictor.Succeeded,
	}
}

func TestARecordIsInTheStreamOnceWhenRecordReturns(t *testing.T) {
	t.Parallel()
	js := stream(t)
	r := recorder(t, js, nil)
	var all sync.WaitGroup
	for worker := range 8 { // the same 20 lines, eight times over
		all.Go(func() {
			for task := range 20 {
				if err := r.Record(t.Context(), record(fmt.Sprintf("train-%d", task), 1)); err != nil {
					t.Errorf("worker %d: %v", worker, err)
				}
			}
		})
	}
	all.Wait()
	if got := len(lines(t, js)); got != 20 {
		t.Errorf("the stream has %d lines, want 20", got)
	}
}

func TestWhatIsAnotherAttemptIsAnotherLine(t *testing.T) {
	t.Parallel()
	js := stream(t)
	r := recorder(t, js, nil)
	first := record("train-1", 1)
	refused := first
	refused.Venue, refused.Outcome = predictor.Function, predictor.Refused
	afterwards := record("train-2", 1)
	onPoolQueue := first
	onPoolQueue.PoolOnly = true // the same number again on the pool's own queue
	second := record("train-1", 2)
	want := []wire.Message{{Event: refused}, {Event: onPoolQueue}, {Event: afterwards}, {Event: second}}
	for _, line := range want {
		if err := r.Record(t.Context(), line.Event.(predictor.Record)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, lines(t, js)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestRecordWaitsForAServerThatComesBack(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.Connect()
	ensure(t, js)
	r := recorder(t, js, nil)
	server.Stop()
	finished := make(chan error, 1)
	stop := background(t, func(ctx context.Context) error {
		finished <- r.Record(ctx, record("train-1", 1))
		return nil
	})
	select {
	case err := <-finished:
		t.Fatalf("Record returned %v while the server was down", err)
	case <-time.After(100 * time.Millisecond):
	}
	server.Restart()
	if err := natstest.Receive(t, finished, "Record"); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if got := len(lines(t, js)); got != 1 {
		t.Errorf("the stream has %d lines, want 1", got)
	}
}

func TestRecordGivesUpOnlyWhenNoFurtherTryCanHelp(t *testing.T) {
	t.Parallel()
	js := stream(t)
	r := recorder(t, js, nil)
	huge := record("train-1", 1)
	huge.Error = strings.Repeat("x", 2<<20)
	if err := r.Record(t.Context(), huge); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("Record of 2 MiB: %v, want %v", err, nats.ErrMaxPayload)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Record(ended, record("train-2", 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Record after its context: %v, want %v", err, context.Canceled)
	}
	js.Conn().Close()
	if err := r.Record(t.Context(), record("train-3", 1)); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Record on a closed connection: %v, want %v", err, nats.ErrConnectionClosed)
	}
}

func TestTellIsSentByCloseAtTheLatestAndDropsAfterwards(t *testing.T) {
	t.Parallel()
	js := stream(t)
	dropped := 0
	r := recorder(t, js, &loop.RecorderOptions{Dropped: func() { dropped++ }})
	var want []wire.Message
	for step := range 100 {
		event := predictor.Sampled{
			Run: "run-1", Stage: stage, Task: "train-1", Step: step,
			Metrics: map[string]float64{"loss": 0.5},
		}
		r.Tell(event)
		want = append(want, wire.Message{Event: event})
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Close has handed everything to the server, which stores it in its own time.
	calls, _ := follow(t, js, 0)
	for step, message := range want {
		if diff := cmp.Diff(message, natstest.Receive(t, calls, "sample").message); diff != "" {
			t.Errorf("sample %d (-want +got):\n%s", step, diff)
		}
	}
	r.Tell(predictor.Sampled{})
	r.Tell(nil)
	if r.Dropped() != 2 || dropped != 2 {
		t.Errorf("dropped %d, told of %d, want 2 and 2", r.Dropped(), dropped)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestTellNeverWaits(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.Connect()
	r := recorder(t, js, &loop.RecorderOptions{Buffer: 1})
	server.Stop()
	big := predictor.RunEnded{Run: "run-1", Error: strings.Repeat("e", 512<<10)}
	told := make(chan struct{})
	background(t, func(context.Context) error {
		defer close(told)
		for range 24 { // 12 MiB: more than the connection keeps while it is away
			r.Tell(big)
		}
		return nil
	})
	natstest.Receive(t, told, "end of 24 Tells without a server")
	if r.Dropped() == 0 {
		t.Error("nothing was dropped")
	}
}

// TestARecorderWaitsWhereTheServerTakesNoMoreForNow has the server refuse twice what comes too fast.
func TestARecorderWaitsWhereTheServerTakesNoMoreForNow(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).Connect()
	tries := 0
	_, err := js.Conn().Subscribe(wire.LoopSubject(wire.KindHostHeld), func(message *nats.Msg) {
		answer := `{"stream":"` + wire.LoopStream + `","seq":1}`
		if tries++; tries <= 2 {
			answer = `{"error":{"code":429,"description":"wait"}}`
		}
		if err := message.Respond([]byte(answer)); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	recorder := loop.NewRecorder(js, nil)
	if err := recorder.Held(t.Context(), predictor.HostHeld{Host: "h"}); err != nil { // which tries once
		t.Error(err)
	}
	if err := recorder.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// hasty refuses facts that it is asked to acknowledge, because they came too fast.
type hasty struct {
	jetstream.JetStream

	refused chan string // the subjects of those
	over    atomic.Bool // set when it takes everything
}

func (h *hasty) PublishMsgAsync(m *nats.Msg, options ...jetstream.PublishOpt) (
	jetstream.PubAckFuture, error,
) {
	if h.over.Load() {
		return h.JetStream.PublishMsgAsync(m, options...)
	}
	h.refused <- m.Subject
	answer := tooFast{err: make(chan error, 1)}
	answer.err <- &jetstream.APIError{Code: 429}
	return answer, nil
}

// tooFast is the refusal of a fact.
type tooFast struct {
	jetstream.PubAckFuture

	err chan error
}

func (tooFast) Ok() <-chan *jetstream.PubAck { return nil }
func (f tooFast) Err() <-chan error          { return f.err }

func isStartOf(run string) func(predictor.Event) bool {
	return func(event predictor.Event) bool {
		started, is := event.(predictor.RunStarted)
		return is && started.Run == run
	}
}

// TestAStartThatComesTooFastIsNotToldBehindTheEnd has the start of a run refused, or wait behind what is, until the run
// has ended.
func TestAStartThatComesTooFastIsNotToldBehindTheEnd(t *testing.T) {
	t.Parallel()
	run := endingOf("run-1", "train", 0)
	other := predictor.RunStarted{Run: "run-2", Pipeline: "train", App: "app", At: run.ended.At}
	for name, before := range map[string][]predictor.Event{
		"refused":            nil,
		"behind another one": {predictor.GoalChanged{Run: "run-3"}}, // which is sent alone
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := stream(t)
			forgetful(t, js)
			server := &hasty{JetStream: js, refused: make(chan string, 1000)}
			r := recorder(t, server, &loop.RecorderOptions{Acknowledged: true})
			for _, event := range append(before, run.started, other) {
				r.Tell(event)
			}
			natstest.Receive(t, server.refused, "refusal")
			if err := r.End(t.Context(), run.started, run.ended, run.done); err != nil {
				t.Fatal(err)
			}
			forgotten(t, js) // what was told twice would not be dropped by the server
			server.over.Store(true)
			want := []predictor.Event{run.started, run.ended, other} // the last of what waits
			var told []predictor.Event
			for calls, _ := follow(t, js, 0); !slices.ContainsFunc(told, isStartOf(other.Run)); {
				switch event := natstest.Receive(t, calls, "a start").message.Event.(type) {
				case predictor.RunStarted, predictor.RunEnded:
					told = append(told, event)
				}
			}
			if diff := cmp.Diff(want, told); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
			if got := r.Dropped(); got != 0 {
				t.Errorf("%d facts were dropped", got)
			}
		})
	}
}
