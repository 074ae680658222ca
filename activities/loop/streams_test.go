package loop_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
)

func TestEnsureStreamsMayRunAgainAndRestoresTheConfiguration(t *testing.T) {
	t.Parallel()
	js := stream(t)
	_, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{
		Name:     wire.LoopStream,
		Subjects: []string{wire.LoopSubjects}, MaxAge: time.Minute * 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	ensure(t, js)
	stream, err := js.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	type bounds struct {
		Storage    jetstream.StorageType
		Retention  jetstream.RetentionPolicy
		Discard    jetstream.DiscardPolicy
		Age        time.Duration
		Bytes      int64
		Duplicates time.Duration
		Replicas   int
	}
	got := bounds{
		config.Storage, config.Retention, config.Discard, config.MaxAge, config.MaxBytes, config.Duplicates,
		config.Replicas,
	}
	want := bounds{
		jetstream.FileStorage, jetstream.LimitsPolicy, jetstream.DiscardOld, 14 * 24 * time.Hour, 2 << 30,
		2 * time.Minute, 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	for bucket, ttl := range map[string]time.Duration{
		wire.PlanBucket: 0, wire.HostBucket: loop.Lease,
		wire.StateBucket: 0,
	} {
		kv, err := js.KeyValue(t.Context(), bucket)
		if err != nil {
			t.Errorf("bucket %s: %v", bucket, err)
			continue
		}
		status, err := kv.Status(t.Context())
		if err != nil || status.TTL() != ttl || status.History() != 1 {
			t.Errorf("bucket %s: TTL %v, history %d, error %v; want TTL %v, history 1", bucket, status.TTL(), status.History(),
				err, ttl)
		}
	}
}

func TestAttackFollowersGoOnInAStreamThatWasDeletedAndMadeAnew(t *testing.T) {
	t.Parallel()
	js := stream(t)
	recorder := loop.NewRecorder(js, nil)
	t.Cleanup(func() { _ = recorder.Close(context.WithoutCancel(t.Context())) })
	calls, _ := follow(t, js, 0)
	recordTasks(t, recorder, 0, 3)
	var last uint64
	for range 3 {
		last = natstest.Receive(t, calls, "what was told before").sequence
	}
	if err := js.DeleteStream(t.Context(), wire.LoopStream); err != nil {
		t.Fatal(err)
	}
	if err := loop.ContinueStream(t.Context(), js, last); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is there by now, and is left as it is
		if err := errors.Join(loop.ContinueStream(t.Context(), js, 1), loop.EnsureStreams(t.Context(), js)); err != nil {
			t.Fatal(err)
		}
	}
	if first, end, err := loop.Extent(t.Context(), js); err != nil || first != 0 || end != 0 {
		t.Errorf("the new stream holds %d to %d (%v), want nothing", first, end, err)
	}
	recordTasks(t, recorder, 3, 5)
	for range 2 {
		if sequence := natstest.Receive(t, calls, "what is told after").sequence; sequence <= last {
			t.Errorf("sequence %d after %d", sequence, last)
		}
	}
}
