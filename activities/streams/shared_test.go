package streams_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/streams"
)

func TestMain(m *testing.M) {
	natstest.Main()
	os.Exit(m.Run())
}

func TestSharedServersGetReplicasAndBounds(t *testing.T) {
	t.Parallel()
	cluster := natstest.StartCluster(t, natstest.ClusterOptions{})
	js := streams.Shared(cluster.Connect(), 3)
	if err := streams.Ensure(t.Context(), js, wanted()); err != nil {
		t.Fatal(err)
	}
	events := jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"e.>"}}
	if err := streams.Create(t.Context(), js, events, 7); err != nil {
		t.Fatal(err)
	}
	bucket := jetstream.KeyValueConfig{Bucket: "HOSTS", TTL: 5 * time.Second, Storage: jetstream.MemoryStorage, History: 1}
	for range 2 { // also where it is there
		if _, err := js.CreateOrUpdateKeyValue(t.Context(), bucket); err != nil {
			t.Fatal(err)
		}
	}
	for name, discard := range map[string]jetstream.DiscardPolicy{
		"FACTS": jetstream.DiscardOld, "EVENTS": jetstream.DiscardNew, "KV_HOSTS": jetstream.DiscardNew,
	} {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		config := stream.CachedInfo().Config
		if config.Replicas != 3 || config.MaxBytes <= 0 || config.Discard != discard {
			t.Errorf("%s: replicas %d, bytes %d, discard %v; want 3, a bound, %v", name, config.Replicas, config.MaxBytes,
				config.Discard, discard)
		}
	}
}

// TestWhatIsInMemoryHasRoomInAQuarterOfASmallMachine: servers of NATS set the whole bound of each aside.
func TestWhatIsInMemoryHasRoomInAQuarterOfASmallMachine(t *testing.T) {
	t.Parallel()
	bound := func(storage jetstream.StorageType) int64 {
		js := streams.Shared(natstest.Start(t).Connect(), 1)
		config := jetstream.KeyValueConfig{Bucket: "LEASES", Storage: storage}
		if _, err := js.CreateOrUpdateKeyValue(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		made, err := js.Stream(t.Context(), "KV_LEASES")
		if err != nil {
			t.Fatal(err)
		}
		return made.CachedInfo().Config.MaxBytes
	}
	if memory, disk := bound(jetstream.MemoryStorage), bound(jetstream.FileStorage); memory > 64<<20 || disk != 256<<20 {
		t.Errorf("the bounds are %d bytes of memory and %d of the disk, want at most 64 MiB and 256 MiB", memory, disk)
	}
}

func TestOneServerHasNoReplicasAndSaysSo(t *testing.T) {
	t.Parallel()
	js := streams.Shared(natstest.Start(t).Connect(), 3)
	err := streams.Ensure(t.Context(), js, wanted())
	if err == nil || !strings.Contains(err.Error(), "no cluster: leave --nats-replicas out") {
		t.Errorf("three replicas on one server: got %v", err)
	}
}

func TestAStreamThatSuitsNeedsNoRightToChangeIt(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).Connect()
	config := wanted()
	config.Description, config.MaxAge = "made by an operator", 2*time.Hour
	made, err := js.CreateStream(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	before := made.CachedInfo().Config
	if err := streams.Ensure(t.Context(), streams.Shared(unchanging{js}, 3), wanted()); err != nil {
		t.Fatal(err)
	}
	after, err := js.Stream(t.Context(), config.Name)
	if err != nil {
		t.Fatal(err)
	}
	if is := after.CachedInfo().Config; is.Description != before.Description || is.MaxAge != before.MaxAge {
		t.Errorf("afterwards: %+v; want it as it was", is)
	}
}

// unchanging is JetStream for who may neither make nor change streams.
type unchanging struct{ jetstream.JetStream }

var errNoRight = errors.New("no right")

func (unchanging) CreateStream(context.Context, jetstream.StreamConfig) (jetstream.Stream, error) {
	return nil, errNoRight
}

func (unchanging) UpdateStream(context.Context, jetstream.StreamConfig) (jetstream.Stream, error) {
	return nil, errNoRight
}
