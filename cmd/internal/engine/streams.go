package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/alerts"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
)

// streamLook is how often the streams are looked for.
const streamLook = 2 * time.Second

// streams are those that an engine cannot do without, with what makes those that are missing; nil where the
// trigger does. The stream of the lease is not among them: who leads keeps it.
var streams = []struct {
	names  []string
	ensure func(context.Context, jetstream.JetStream) error
}{
	{[]string{
		wire.LoopStream, wire.SampleStream, bucketStream(wire.PlanBucket), bucketStream(wire.HostBucket),
		bucketStream(wire.ServerBucket), bucketStream(wire.EndBucket), bucketStream(wire.StateBucket),
	}, loop.EnsureStreams},
	{[]string{wire.LogStream}, func(ctx context.Context, js jetstream.JetStream) error {
		return logs.EnsureStream(ctx, js, logs.StreamOptions{})
	}},
	{[]string{alerts.Stream}, alerts.EnsureStream},
	{[]string{bucketStream(wire.SharedBucket)}, documents.EnsureBucket},
	{[]string{wire.ResultStream}, results.EnsureStream},
	{[]string{wire.EventStream, wire.DeadStream, wire.DoneStream}, nil},
}

// bucketStream is the stream below a bucket.
func bucketStream(bucket string) string { return "KV_" + bucket }

// streamNames are the streams of streams: all of them, or those that ensureStreams makes.
func streamNames(all bool) (names []string) {
	for _, store := range streams {
		if all || store.ensure != nil {
			names = append(names, store.names...)
		}
	}
	return names
}

// toldAgain says of a stream that what is in it is told again within seconds: that it is gone harms nobody. Hosts do
// that with their leases, which NATS keeps in memory, and servers with theirs and with what they share.
func toldAgain(name string) bool {
	return name == bucketStream(wire.HostBucket) || name == bucketStream(wire.ServerBucket) ||
		name == bucketStream(wire.SharedBucket)
}

// ensureStreams makes the streams of streams that are missing, but for those that the trigger keeps.
func ensureStreams(ctx context.Context, js jetstream.JetStream) error {
	for _, store := range streams {
		if store.ensure == nil {
			continue
		}
		if err := store.ensure(ctx, js); err != nil {
			return err
		}
	}
	return nil
}

// keepStreams makes streams anew that somebody has deleted, and those in memory that are gone after NATS had to open
// its store anew. The loop's stream goes on behind the last message that was seen.
func keepStreams(ctx context.Context, js jetstream.JetStream, seen func() uint64, tell func(missing []string)) error {
	for wait.For(ctx, streamLook) {
		missing, err := missingStreams(ctx, js, streamNames(false))
		if err != nil || len(missing) == 0 {
			continue // without an answer, Check says what is wrong with NATS
		}
		if err = loop.ContinueStream(ctx, js, seen()); err == nil {
			err = ensureStreams(ctx, js)
		}
		if err == nil {
			tell(missing)
		}
	}
	return nil
}

// lackOf is the error of streams that are missing; nil of none.
func lackOf(missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("streams of NATS are gone: %s; they are made anew within seconds, unless the log says why not",
		strings.Join(missing, ", "))
}

// missingStreams names the wanted streams that there are not.
func missingStreams(ctx context.Context, js jetstream.JetStream, wanted []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	there := js.StreamNames(ctx)
	missing := slices.Clone(wanted)
	for name := range there.Name() {
		missing = slices.DeleteFunc(missing, func(wanted string) bool { return wanted == name })
	}
	if err := there.Err(); err != nil {
		return nil, fmt.Errorf("list the streams: %w", err)
	}
	return missing, nil
}
