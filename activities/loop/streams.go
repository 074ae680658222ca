package loop

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// loopAge and loopBytes bound the loop's stream; the oldest lines go first. The autoscaler's checkpoint outlives them.
	loopAge   = 14 * 24 * time.Hour
	loopBytes = 2 << 30
	// sampleAge and sampleBytes bound the stream of samples. What they say for longer is in Records; a leader that follows
	// another needs those of the last minutes, and an engine that starts again shows the curves of these hours.
	sampleAge   = 3 * time.Hour
	sampleBytes = 256 << 20
	// duplicates is for how long the server drops a second line with the same Msg-Id; Fold drops those that come later.
	duplicates = 2 * time.Minute
)

// Lease is how long a host stays in the inventory after it last said that it is there. A host elsewhere is told it
// when it joins, and stops what it runs after four fifths of it without a renewal: 12 seconds. A cluster of NATS
// elects who leads the bucket in 4 to 6 seconds, a server starts anew in 2 to 5, and a renewal that is lost on the
// way costs 2.5 more; within 12 seconds the one after it is taken. By then Temporal, which gives an attempt to others
// when nothing was heard of it for 20 seconds, has not. What a lost host had in hand is given back so much later: 16
// to 17 seconds after its last word, where it does not start anew before. At 5 seconds, and so 4, each election
// killed all that agents ran.
const Lease = 15 * time.Second

// EnsureStreams creates the streams and the buckets of the loop, or brings them to this configuration. It may run any
// number of times, also beside others; the number of replicas that an operator has set is kept.
func EnsureStreams(ctx context.Context, js jetstream.JetStream) error {
	// The first sequence of the samples is the time in microseconds: samples are fewer than that, so whoever followed a
	// stream that is gone goes on in the new one, as if samples had been lost.
	if err := streams.Create(ctx, js, sampleStream(), uint64(time.Now().UnixMicro())); err != nil {
		return err
	}
	for _, config := range []jetstream.StreamConfig{loopStream(), sampleStream()} {
		if err := streams.Ensure(ctx, js, config); err != nil {
			return err
		}
	}
	for _, bucket := range []jetstream.KeyValueConfig{
		{Bucket: wire.PlanBucket, Description: "the plan in force and the term", History: 1, Storage: jetstream.FileStorage},
		{
			Bucket: wire.HostBucket, Description: "leased inventories of hosts", History: 1, TTL: Lease,
			Storage: jetstream.MemoryStorage,
		},
		{
			Bucket: wire.ServerBucket, Description: "which servers there are", History: 1, TTL: ServerLease,
			Storage: jetstream.MemoryStorage,
		},
		{
			Bucket: wire.EndBucket, Description: "which ends of runs were told", History: 1, TTL: endsAge,
			Storage: jetstream.FileStorage,
		},
		{Bucket: wire.StateBucket, Description: "the autoscaler's checkpoint", History: 1, Storage: jetstream.FileStorage},
	} {
		if err := streams.EnsureBucket(ctx, js, bucket); err != nil {
			return err
		}
	}
	return nil
}

func loopStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        wire.LoopStream,
		Description: "hints, Records and decisions of Spillway's loop",
		Subjects:    []string{wire.LoopSubjects},
		Storage:     jetstream.FileStorage,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		MaxAge:      loopAge,
		MaxBytes:    loopBytes,
		Duplicates:  duplicates,
		AllowDirect: true,
	}
}

func sampleStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        wire.SampleStream,
		Description: "what attempts take, once a second",
		Subjects:    []string{wire.SampleSubjects},
		Storage:     jetstream.FileStorage,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		MaxAge:      sampleAge,
		MaxBytes:    sampleBytes,
		Duplicates:  duplicates,
		AllowDirect: true,
	}
}

// afterGap is how far behind the last message that is known a stream begins that is made anew: others may know of later
// ones.
const afterGap = 1 << 20

// ContinueStream makes the loop's stream anew, where it is missing, so that its first message comes after the given
// sequence: whoever followed the stream that is gone, and the checkpoint of it, go on as if messages had been
// discarded.
func ContinueStream(ctx context.Context, js jetstream.JetStream, after uint64) error {
	return streams.Create(ctx, js, loopStream(), after+afterGap)
}

// bucketSubject is the subject of a key of a bucket:
// https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-8.md
func bucketSubject(bucket, key string) string { return "$KV." + bucket + "." + key }
