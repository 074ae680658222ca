package loop_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// store publishes an event as Tell does, and waits until it is in its stream.
func store(t *testing.T, js jetstream.JetStream, subject func(wire.Kind) string, event predictor.Event) {
	t.Helper()
	kind, data, err := wire.EncodeEvent(event)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), subject(kind), data); err != nil {
		t.Fatal(err)
	}
}

// attemptWithSamples publishes the start of an attempt, its samples and its Record, and returns what was told in that
// order.
func attemptWithSamples(t *testing.T, js jetstream.JetStream, task string, samples int) (told []predictor.Event) {
	t.Helper()
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	told = append(told, predictor.AttemptStarted{
		Run: "run", Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool,
		At: at,
	})
	for i := range samples {
		told = append(told, predictor.Sampled{
			Run: "run", Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool,
			Step: i + 1, At: at,
		})
	}
	told = append(told, record(task, 1))
	for _, event := range told {
		store(t, js, wire.FactSubject, event)
	}
	return told
}

func TestWhatPassesDoesNotPushOutWhatLasts(t *testing.T) {
	t.Parallel()
	js := stream(t)
	r := recorder(t, js, nil)
	recordTasks(t, r, 1, 2)
	const samples = 50
	for i := range samples {
		r.Tell(predictor.Sampled{Run: "run", Stage: stage, Task: "train-1", Attempt: 1, Step: i, At: time.Now()})
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := natstest.Messages(t, js, wire.LoopStream); got != 1 {
		t.Errorf("the loop's stream holds %d messages, want the Record only", got)
	}
	calls, _ := follow(t, js, 0) // Close has handed everything to the server, which stores it in its own time
	for range samples + 1 {
		natstest.Receive(t, calls, "the Record and the samples")
	}
	if got := natstest.Messages(t, js, wire.SampleStream); got != samples {
		t.Errorf("the stream of samples holds %d messages, want %d", got, samples)
	}
	info, err := js.Stream(t.Context(), wire.SampleStream)
	if err != nil {
		t.Fatal(err)
	}
	if config := info.CachedInfo().Config; config.MaxAge <= 0 || config.MaxAge > 6*time.Hour || config.MaxBytes <= 0 ||
		config.MaxBytes > 512<<20 {
		t.Errorf("samples are kept for %v and up to %d bytes, want hours and some hundred megabytes", config.MaxAge,
			config.MaxBytes)
	}
}

func TestSamplesComeBetweenTheMessagesOfTheLoopAsTheyWereStored(t *testing.T) {
	t.Parallel()
	js := stream(t)
	var want []predictor.Event
	for task := range 40 {
		want = append(want, attemptWithSamples(t, js, fmt.Sprintf("train-%d", task), task%4)...)
	}
	calls, stop := follow(t, js, 0)
	for i, event := range want {
		got := natstest.Receive(t, calls, "what was told")
		if diff := cmp.Diff(event, got.message.Event); diff != "" {
			t.Fatalf("event %d of %d (-want +got):\n%s", i, len(want), diff)
		}
	}
	_ = stop()
	// Who goes on in the middle gets no sample from before.
	calls, _ = follow(t, js, 79)
	for i, event := range want[len(want)-5:] { // the start, three samples and the Record of the last task
		if got := natstest.Receive(t, calls, "what is left").message.Event; !cmp.Equal(event, got) {
			t.Errorf("event %d from the middle (-want +got):\n%s", i, cmp.Diff(event, got))
		}
	}
}

func TestASampleHasTheSequenceOfTheMessageBefore(t *testing.T) {
	t.Parallel()
	js := stream(t)
	attemptWithSamples(t, js, "train-1", 2)
	calls, _ := follow(t, js, 0)
	for i, want := range []uint64{1, 1, 1, 2} {
		if got := natstest.Receive(t, calls, "message").sequence; got != want {
			t.Errorf("message %d has sequence %d, want %d", i, got, want)
		}
	}
	store(t, js, wire.FactSubject, predictor.Sampled{
		Run: "run", Stage: stage, Task: "train-2", Attempt: 1,
		At: time.Now(),
	})
	if got := natstest.Receive(t, calls, "live sample"); got.sequence != 2 || got.message.Kind() != wire.KindSampled {
		t.Errorf("got %+v, want a sample with sequence 2", got)
	}
}

func TestSamplesOfAnEarlierVersionAreReadWhereTheyLie(t *testing.T) {
	t.Parallel()
	js := stream(t)
	earlier := predictor.Sampled{
		Run: "run", Stage: stage, Task: "train-1", Attempt: 1, Step: 7,
		At: time.Now().UTC().Round(0),
	}
	store(t, js, wire.LoopSubject, earlier)
	calls, _ := follow(t, js, 0)
	if got := natstest.Receive(t, calls, "the sample"); got.sequence != 1 ||
		!cmp.Equal(predictor.Event(earlier), got.message.Event) {
		t.Errorf("got %+v, want %+v with sequence 1", got, earlier)
	}
}

func TestAStreamOfSamplesThatIsGoneHoldsNothingUp(t *testing.T) {
	t.Parallel()
	js := stream(t)
	attemptWithSamples(t, js, "train-1", 3)
	calls, _ := follow(t, js, 0)
	for range 5 {
		natstest.Receive(t, calls, "what was told before")
	}
	if err := js.DeleteStream(t.Context(), wire.SampleStream); err != nil {
		t.Fatal(err)
	}
	recordTasks(t, recorder(t, js, nil), 2, 4)
	for range 2 {
		natstest.Receive(t, calls, "a Record")
	}
	ensure(t, js)
	// The follower may open the new stream a moment later: what is stored by then is handed on, too.
	store(t, js, wire.FactSubject, predictor.Sampled{
		Run: "run", Stage: stage, Task: "train-9", Attempt: 1, Step: 9,
		At: time.Now(),
	})
	if sample, ok := natstest.Receive(t, calls, "a sample in the new stream").message.Event.(predictor.Sampled); !ok ||
		sample.Task != "train-9" {
		t.Errorf("got %+v, want the sample in the new stream", sample)
	}
}

func TestAFollowerOfAStackWithoutSamplesGoesOn(t *testing.T) {
	t.Parallel()
	js := stream(t)
	if err := js.DeleteStream(context.WithoutCancel(t.Context()), wire.SampleStream); err != nil {
		t.Fatal(err)
	}
	recordTasks(t, recorder(t, js, nil), 1, 4)
	calls, _ := follow(t, js, 0)
	for want := uint64(1); want <= 3; want++ {
		if got := natstest.Receive(t, calls, "a Record").sequence; got != want {
			t.Errorf("got sequence %d, want %d", got, want)
		}
	}
}
