package streams_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/streams"
)

func TestEnsureBringsAStreamToItsConfiguration(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).Connect()
	config := jetstream.StreamConfig{Name: "FACTS", Subjects: []string{"facts.>"}, MaxBytes: 1 << 20, MaxAge: time.Hour}
	for _, age := range []time.Duration{time.Hour, time.Hour, time.Minute} {
		config.MaxAge = age
		if err := streams.Ensure(t.Context(), js, config); err != nil {
			t.Fatal(err)
		}
		stream, err := js.Stream(t.Context(), "FACTS")
		if err != nil {
			t.Fatal(err)
		}
		if got := stream.CachedInfo().Config; got.MaxAge != age || got.MaxBytes != 1<<20 || got.Replicas != 1 {
			t.Errorf("got %+v, want it to keep messages for %s", got, age)
		}
	}
	if n, err := streams.Replicas(t.Context(), js, "NONE"); n != 1 || err != nil {
		t.Errorf("Replicas of a stream that there is not = %d, %v; want 1", n, err)
	}
}

// TestANATSThatDoesNotAnswerIsToldWithWhatToDo has a server that is gone when a stream and a bucket are to be made.
func TestANATSThatDoesNotAnswerIsToldWithWhatToDo(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.Connect()
	bucket := jetstream.KeyValueConfig{Bucket: "facts", History: 1}
	if err := streams.EnsureBucket(t.Context(), js, bucket); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	for what, ensure := range map[string]func(context.Context) error{
		"bucket facts": func(ctx context.Context) error { return streams.EnsureBucket(ctx, js, bucket) },
		"stream FACTS": func(ctx context.Context) error {
			return streams.Ensure(ctx, js, jetstream.StreamConfig{Name: "FACTS", Subjects: []string{"f.>"}, MaxBytes: 1 << 20})
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err := ensure(ctx)
		cancel()
		if err == nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), what) ||
			!strings.Contains(err.Error(), "NATS was asked for ") || !strings.Contains(err.Error(), "see whether its servers") {
			t.Errorf("%s: got %v; want what was tried, for how long, and what to do", what, err)
		}
	}
}

func TestCreateMakesAStreamOnceWithItsFirstSequence(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).Connect()
	config := jetstream.StreamConfig{Name: "FACTS", Subjects: []string{"facts.>"}, MaxBytes: 1 << 20}
	for _, first := range []uint64{1000, 5000} {
		if err := streams.Create(t.Context(), js, config, first); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := js.Publish(t.Context(), "facts.one", nil)
	if err != nil || stored.Sequence != 1000 {
		t.Errorf("the first message is %+v, %v; want sequence 1000", stored, err)
	}
}

// TestAReaderThatCannotGoOnSaysSo: what is read is gone, so that the reader's consumer can never be made again, as
// where it was placed on a server that is lost.
func TestAReaderThatCannotGoOnSaysSo(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).Connect()
	config := jetstream.StreamConfig{Name: "FACTS", Subjects: []string{"facts.>"}, MaxBytes: 1 << 20}
	if err := streams.Ensure(t.Context(), js, config); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "facts.one", nil); err != nil {
		t.Fatal(err)
	}
	reader, err := streams.Reader(t.Context(), js, "FACTS", jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := reader.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Stop()
	if _, err := messages.Next(jetstream.NextContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "FACTS"); err != nil {
		t.Fatal(err)
	}
	said := make(chan error, 1)
	go func() {
		_, err := messages.Next(jetstream.NextContext(t.Context()))
		said <- err
	}()
	select {
	case err := <-said:
		if err == nil {
			t.Error("there was another message")
		}
	case <-time.After(time.Minute):
		t.Error("it says nothing for a minute")
	}
}

func TestAStreamThatCannotBeSaysWhatToDo(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).Connect()
	err := streams.Ensure(t.Context(), js, jetstream.StreamConfig{Name: "FACTS", Subjects: []string{"facts.>"}})
	if err == nil || !strings.Contains(err.Error(), "no bound") {
		t.Errorf("a stream without a bound: %v", err)
	}
	err = streams.Ensure(t.Context(), js, jetstream.StreamConfig{
		Name: "FACTS", Subjects: []string{"facts.>"},
		MaxBytes: 1 << 60,
	})
	if err == nil || !strings.Contains(err.Error(), "1099511627776 MiB of storage left") {
		t.Errorf("a stream larger than the disk: %v", err)
	}
}

func TestFinalErrorsAreThoseThatComeAgain(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).Connect()
	config := jetstream.StreamConfig{Name: "FACTS", Subjects: []string{"facts.>"}, MaxBytes: 1 << 20, MaxMsgSize: 10}
	if err := streams.Ensure(t.Context(), js, config); err != nil {
		t.Fatal(err)
	}
	_, tooLarge := js.Publish(t.Context(), "facts.one", make([]byte, 11))
	_, tooLargeForAll := js.Publish(t.Context(), "facts.one", make([]byte, 65<<20))
	_, nobody := js.Publish(t.Context(), "others.one", nil)
	for name, row := range map[string]struct {
		err  error
		want bool
	}{
		"it is larger than the stream takes":    {tooLarge, true},
		"it is larger than the server takes":    {tooLargeForAll, true},
		"the subject cannot be":                 {fmt.Errorf("publish: %w", nats.ErrBadSubject), true},
		"the connection was closed":             {nats.ErrConnectionClosed, true},
		"the connection is away":                {nats.ErrDisconnected, false},
		"no stream has the subject":             {nobody, false},
		"there was no answer in time":           {context.DeadlineExceeded, false},
		"the server has no room for any stream": {&jetstream.APIError{Code: 503, ErrorCode: 10023}, false},
	} {
		if row.err == nil {
			t.Errorf("%s: there is no error", name)
		}
		if got := streams.IsFinal(row.err); got != row.want {
			t.Errorf("%s: IsFinal(%v) = %v, want %v", name, row.err, got, row.want)
		}
	}
}
