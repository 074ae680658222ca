package wire

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/alerts"
	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/wire"
)

// storeLook is how often the streams are looked for.
const storeLook = 2 * time.Second

// stores are the streams that the loop cannot do without. The trigger keeps those of events, and who leads the one of the lease.
func stores() []string {
	names := []string{wire.LoopStream, wire.LogStream, wire.ResultStream, alerts.Stream}
	for _, bucket := range []string{wire.PlanBucket, wire.HostBucket, wire.EndBucket, wire.StateBucket} {
		names = append(names, "KV_"+bucket)
	}
	return names
}

// inMemory says of a stream that NATS keeps it in memory: what is in it is told again within seconds, and that it is gone harms nobody.
func inMemory(name string) bool { return name == "KV_"+wire.HostBucket }

// ensureStores makes the streams of stores, where they are missing.
func ensureStores(ctx context.Context, js jetstream.JetStream) error {
	if err := loop.EnsureStreams(ctx, js); err != nil {
		return err
	}
	if err := logs.EnsureStream(ctx, js, logs.StreamOptions{}); err != nil {
		return err
	}
	if err := alerts.EnsureStream(ctx, js); err != nil {
		return err
	}
	return results.EnsureStream(ctx, js)
}

// keepStores makes streams anew that somebody has deleted, and those in memory that are gone after NATS had to open its store anew.
// The loop's stream goes on behind the last message that was seen.
func keepStores(ctx context.Context, js jetstream.JetStream, seen func() uint64, tell func(missing []string)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(storeLook):
		}
		missing, err := missingStores(ctx, js, stores())
		if err != nil || len(missing) == 0 {
			continue // without an answer, Check says what is wrong with NATS
		}
		if err = loop.ContinueStream(ctx, js, seen()); err == nil {
			err = ensureStores(ctx, js)
		}
		if err == nil {
			tell(missing)
		}
	}
}

// lackOf is the error of streams that are missing; nil of none.
func lackOf(missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("streams of NATS are gone: %s; they are made anew within seconds, unless the log says why not", strings.Join(missing, ", "))
}

// missingStores names the wanted streams that there are not.
func missingStores(ctx context.Context, js jetstream.JetStream, wanted []string) ([]string, error) {
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
