package streams_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
)

// wanted is a stream as the engine wants it.
func wanted() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "FACTS", Subjects: []string{"facts.>"}, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
		Discard: jetstream.DiscardOld, MaxAge: time.Hour, MaxBytes: 1 << 20, Duplicates: time.Minute, AllowDirect: true,
	}
}

func TestSettleKeepsWhatAnOperatorHasSetWhereThatWorks(t *testing.T) {
	t.Parallel()
	there := wanted()
	there.Description, there.Replicas, there.Compression = "ours", 3, jetstream.S2Compression
	there.Placement = &jetstream.Placement{Tags: []string{"ssd"}}
	there.Subjects = []string{"facts.>", "more.>"}
	there.MaxAge, there.MaxBytes, there.MaxMsgs, there.Duplicates = 2*time.Hour, 5<<20, 10, 2*time.Minute
	settled, changed, err := streams.Settle(wanted(), there)
	if err != nil || changed {
		t.Fatalf("Settle: changed %v, error %v; want it as it is", changed, err)
	}
	if diff := cmp.Diff(there, settled); diff != "" {
		t.Errorf("settled (-there +settled):\n%s", diff)
	}
}

func TestSettleAddsWhatIsMissing(t *testing.T) {
	t.Parallel()
	bare := jetstream.StreamConfig{
		Name: "FACTS", Subjects: []string{"others.>"}, Replicas: 3, MaxBytes: -1, MaxMsgs: -1, MaxMsgsPerSubject: -1,
		Duplicates: time.Second,
	}
	want := bare
	want.Subjects = []string{"others.>", "facts.>"}
	want.MaxAge, want.MaxBytes, want.Duplicates, want.AllowDirect = time.Hour, 1<<20, time.Minute, true
	settled, changed, err := streams.Settle(wanted(), bare)
	if err != nil || !changed {
		t.Fatalf("Settle: changed %v, error %v", changed, err)
	}
	if diff := cmp.Diff(want, settled); diff != "" {
		t.Errorf("settled (-want +got):\n%s", diff)
	}
	again, changed, err := streams.Settle(wanted(), settled)
	if err != nil || changed {
		t.Errorf("Settle of what was settled: changed %v, error %v (%+v)", changed, err, again)
	}
	if len(bare.Subjects) != 1 {
		t.Error("Settle has changed what it was given")
	}
}

func TestSettleRefusesAStreamThatCannotWork(t *testing.T) {
	t.Parallel()
	type config = jetstream.StreamConfig
	for name, c := range map[string]struct {
		change  func(*config)
		setting string
		fix     string
	}{
		"kept in memory":      {func(c *config) { c.Storage = jetstream.MemoryStorage }, "storage", "stream rm"},
		"a queue of work":     {func(c *config) { c.Retention = jetstream.WorkQueuePolicy }, "retention", "stream rm"},
		"a mirror":            {func(c *config) { c.Mirror = &jetstream.StreamSource{Name: "X"} }, "mirror", "stream rm"},
		"sealed":              {func(c *config) { c.Sealed = true }, "sealed", "stream rm"},
		"no acknowledgements": {func(c *config) { c.NoAck = true }, "no-ack", "stream edit FACTS --ack"},
		"full takes nothing":  {func(c *config) { c.Discard = jetstream.DiscardNew }, "discard", "--discard old"},
		"small messages":      {func(c *config) { c.MaxMsgSize = 1000 }, "max-msg-size", "--max-msg-size=-1"},
		"nothing removed":     {func(c *config) { c.DenyPurge = true }, "deny-purge", "stream rm"},
		"a message a subject": {func(c *config) { c.MaxMsgsPerSubject = 1 }, "max-msgs-per-subject", "=-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			there := wanted()
			c.change(&there)
			_, _, err := streams.Settle(wanted(), there)
			var conflict *streams.ConflictError
			if !errors.As(err, &conflict) || conflict.Setting != c.setting || !strings.Contains(conflict.Fix, c.fix) {
				t.Fatalf("Settle: got %v, want a conflict of %s that %q mends", err, c.setting, c.fix)
			}
			for _, part := range []string{"FACTS", c.setting, conflict.Has, conflict.Wants, conflict.Fix} {
				if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
					t.Errorf("the error is %q, want one line with %q", err, part)
				}
			}
		})
	}
}

func TestTheAgeOfABucketIsWhatItMeans(t *testing.T) {
	t.Parallel()
	bucket := wanted()
	bucket.Name, bucket.MaxAge = "KV_HOSTS", 5*time.Second
	there := bucket
	there.MaxAge = time.Hour
	settled, changed, err := streams.Settle(bucket, there)
	if err != nil || !changed || settled.MaxAge != 5*time.Second {
		t.Errorf("Settle: age %s, changed %v, error %v; want 5s", settled.MaxAge, changed, err)
	}
}
