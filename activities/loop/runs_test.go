package loop_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// ending is all that is told when a run is over.
type ending struct {
	started predictor.RunStarted
	ended   predictor.RunEnded
	done    wire.Done
}

// endingOf is the end, so long ago, of a run of an hour.
func endingOf(run, pipeline string, ago time.Duration) ending {
	at := time.Now().Add(-ago)
	return ending{
		started: predictor.RunStarted{Run: run, Pipeline: pipeline, App: "app", At: at.Add(-time.Hour)},
		ended:   predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: at},
		done: wire.Done{
			Version: wire.Version, Run: run, Pipeline: pipeline, State: predictor.RunSucceeded,
			Started: at.Add(-time.Hour), Ended: at,
		},
	}
}

// forgetful makes the streams of ends, which drop what was published twice for a tenth of a second only: that stands
// for two minutes.
func forgetful(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	loopStream, err := js.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	config := loopStream.CachedInfo().Config
	config.Duplicates = 100 * time.Millisecond
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: wire.DoneStream, Subjects: []string{wire.DoneSubjects}, Duplicates: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// forgotten waits until the streams take a message again that they have now.
func forgotten(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	for stream, subject := range map[string]string{
		wire.LoopStream: "spillway.loop.probe",
		wire.DoneStream: wire.DoneSubject("probe"),
	} {
		for {
			ack, err := js.Publish(t.Context(), subject, []byte("{}"), jetstream.WithMsgID(t.Name()),
				jetstream.WithExpectStream(stream))
			if err != nil {
				t.Fatal(err)
			}
			before := ack.Duplicate
			time.Sleep(10 * time.Millisecond)
			ack, err = js.Publish(t.Context(), subject, []byte("{}"), jetstream.WithMsgID(t.Name()),
				jetstream.WithExpectStream(stream))
			if err != nil {
				t.Fatal(err)
			}
			if before && !ack.Duplicate {
				break
			}
		}
	}
}

// completions counts the completion events of each run.
func completions(t *testing.T, js jetstream.JetStream) map[string]int {
	t.Helper()
	stream, err := js.Stream(t.Context(), wire.DoneStream)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for sequence := uint64(1); sequence <= stream.CachedInfo().State.LastSeq; sequence++ {
		message, err := stream.GetMsg(t.Context(), sequence)
		if err != nil {
			t.Fatal(err)
		}
		var done wire.Done
		if err := json.Unmarshal(message.Data, &done); err != nil {
			t.Fatal(err)
		}
		if done.Run != "" {
			counts[done.Run]++
		}
	}
	return counts
}

// ends counts how often the loop's stream tells that a run is over.
func ends(t *testing.T, js jetstream.JetStream, run string) (count int) {
	t.Helper()
	for _, message := range lines(t, js) {
		if ended, is := message.Event.(predictor.RunEnded); is && ended.Run == run {
			count++
		}
	}
	return count
}

func TestAnEndThatIsToldAgainMuchLaterIsToldOnce(t *testing.T) {
	t.Parallel()
	js := stream(t)
	forgetful(t, js)
	r := recorder(t, js, nil)
	run, other, unnamed := endingOf("run-1", "train", time.Hour), endingOf("run-2", "train", time.Hour),
		endingOf("run-3", "", time.Hour)
	for range 3 {
		for _, e := range []ending{run, other, unnamed} {
			if err := r.End(t.Context(), e.started, e.ended, e.done); err != nil {
				t.Fatal(err)
			}
		}
		forgotten(t, js)
	}
	counts := completions(t, js)
	if counts["run-1"] != 1 || counts["run-2"] != 1 || counts["run-3"] != 0 {
		t.Errorf("completion events: %v, want one of run-1 and of run-2, and none of a run whose pipeline nobody knows",
			counts)
	}
	for _, name := range []string{"run-1", "run-2", "run-3"} {
		if got := ends(t, js, name); got != 1 {
			t.Errorf("%s: its end is told %d times, want once", name, got)
		}
	}
}

func TestAnEndThatWasToldHalfIsToldToItsEnd(t *testing.T) {
	t.Parallel()
	js := stream(t)
	forgetful(t, js)
	r := recorder(t, js, nil)
	e := endingOf("run-1", "train", time.Hour)
	encoded, err := json.Marshal(e.done)
	if err != nil {
		t.Fatal(err)
	}
	// Whoever told it was killed between the completion event and the loop's line.
	if _, err := js.Publish(t.Context(), wire.DoneSubject("train"), encoded, jetstream.WithMsgID("run-1")); err != nil {
		t.Fatal(err)
	}
	forgotten(t, js)
	if err := r.End(t.Context(), e.started, e.ended, e.done); err != nil {
		t.Fatal(err)
	}
	if counts := completions(t, js); counts["run-1"] != 1 || ends(t, js, "run-1") != 1 {
		t.Errorf("completion events %v, ends %d: want one of each", counts, ends(t, js, "run-1"))
	}
}

// consumersMade returns a function that tells how many consumers were made on the server since.
func consumersMade(t *testing.T, js jetstream.JetStream) func() int {
	t.Helper()
	advisories, err := js.Conn().SubscribeSync("$JS.EVENT.ADVISORY.CONSUMER.CREATED.>")
	if err != nil {
		t.Fatal(err)
	}
	return func() int {
		// The advisory of a consumer that is made now comes after all those of before.
		_, err := js.CreateConsumer(t.Context(), wire.DoneStream, jetstream.ConsumerConfig{Name: "last", MemoryStorage: true})
		if err != nil {
			t.Fatal(err)
		}
		for made := 0; ; made++ {
			advisory, err := advisories.NextMsgWithContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(advisory.Subject, ".last") {
				return made
			}
		}
	}
}

func TestEndsAreToldLateWithoutALookThroughTheStreams(t *testing.T) {
	t.Parallel()
	js := stream(t)
	forgetful(t, js)
	r := recorder(t, js, nil)
	past := endingOf("run-1", "train", time.Hour) // an engine that wrote nothing down may have told it
	if err := r.End(t.Context(), past.started, past.ended, past.done); err != nil {
		t.Fatal(err)
	}
	forgotten(t, js)
	made := consumersMade(t, js)
	// To one whose clock is ahead, the end of a run comes well after the bucket was made: as one that is told after a long
	// outage.
	for _, e := range []ending{endingOf("run-2", "train", -10*time.Minute), endingOf("run-3", "train", -10*time.Minute)} {
		if err := r.End(t.Context(), e.started, e.ended, e.done); err != nil {
			t.Fatal(err)
		}
		forgotten(t, js)
	}
	if got := made(); got != 0 {
		t.Errorf("%d looks through streams, want none", got)
	}
	counts := completions(t, js)
	if counts["run-1"] != 1 || counts["run-2"] != 1 || ends(t, js, "run-1") != 1 || ends(t, js, "run-2") != 1 {
		t.Errorf("completion events %v, ends %d and %d: want one of each", counts, ends(t, js, "run-1"), ends(t, js, "run-2"))
	}
}

func TestARunOfANameThatAnotherHadIsToldAsWell(t *testing.T) {
	t.Parallel()
	js := stream(t)
	forgetful(t, js)
	r := recorder(t, js, nil)
	for _, ahead := range []time.Duration{0, 3 * time.Hour} {
		e := endingOf("run-1", "train", -ahead)
		if err := r.End(t.Context(), e.started, e.ended, e.done); err != nil {
			t.Fatal(err)
		}
		forgotten(t, js)
	}
	if counts := completions(t, js); counts["run-1"] != 2 || ends(t, js, "run-1") != 2 {
		t.Errorf("completion events %v, ends %d: want two of each", counts, ends(t, js, "run-1"))
	}
}

func TestAnEndIsToldWhereTheEngineKeepsNoBucketOfEnds(t *testing.T) {
	t.Parallel()
	js := stream(t)
	forgetful(t, js)
	if err := js.DeleteKeyValue(t.Context(), wire.EndBucket); err != nil {
		t.Fatal(err)
	}
	r := recorder(t, js, nil)
	e := endingOf("run-1", "train", time.Hour)
	for range 2 {
		if err := r.End(t.Context(), e.started, e.ended, e.done); err != nil {
			t.Fatal(err)
		}
		forgotten(t, js)
	}
	if counts := completions(t, js); counts["run-1"] != 1 || ends(t, js, "run-1") != 1 {
		t.Errorf("completion events %v, ends %d: want one of each", counts, ends(t, js, "run-1"))
	}
}
