package results

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// keptAge and keptBytes bound the stream; the oldest results go first.
	keptAge   = 30 * 24 * time.Hour
	keptBytes = 1 << 30
	// inline is the largest output that is kept in the message itself; larger ones are artifacts.
	inline = 16 << 10
	// lookups is how many are on their way at a time.
	lookups = 32
)

// Results is the store of results. Its methods may be called concurrently.
type Results struct {
	js    jetstream.JetStream
	store activities.Store
}

// New returns the results in the stream that EnsureStream makes, with large outputs in store.
func New(js jetstream.JetStream, store activities.Store) *Results {
	return &Results{js: js, store: store}
}

// EnsureStream creates the stream, or brings it to this configuration; the number of replicas that an operator has set is kept.
func EnsureStream(ctx context.Context, js jetstream.JetStream) error {
	replicas := 1
	existing, err := js.Stream(ctx, wire.ResultStream)
	switch {
	case err == nil:
		replicas = existing.CachedInfo().Config.Replicas
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("look up stream %s: %w", wire.ResultStream, err)
	}
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: wire.ResultStream, Description: "results of tasks that later runs may take", Subjects: []string{wire.ResultSubjects},
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, MaxAge: keptAge, MaxBytes: keptBytes,
		MaxMsgsPerSubject: 1, Replicas: replicas, Compression: jetstream.S2Compression, AllowDirect: true,
	})
	if err != nil {
		return fmt.Errorf("create stream %s: %w; check that the NATS server has JetStream on and %d MiB of storage left", wire.ResultStream, err, keptBytes>>20)
	}
	return nil
}

// Keep makes a result durable. The same key of the same run again replaces it.
func (r *Results) Keep(ctx context.Context, kept wire.Kept) error {
	kept.Version = wire.Version
	if len(kept.Output) > inline {
		ref, err := r.store.Put(ctx, bytes.NewReader(kept.Output))
		if err != nil {
			return fmt.Errorf("keep the result of %s: %w", kept.Task, err)
		}
		kept.Output, kept.Stored = nil, ref
	}
	return r.publish(ctx, wire.ResultSubject(kept.Key, kept.Run), kept)
}

// publish stores a result whose output is not too large for the stream.
func (r *Results) publish(ctx context.Context, subject string, kept wire.Kept) error {
	encoded, err := json.Marshal(kept)
	if err != nil {
		return fmt.Errorf("keep the result of %s: %w", kept.Task, err)
	}
	if _, err := r.js.Publish(ctx, subject, encoded, jetstream.WithExpectStream(wire.ResultStream)); err != nil {
		return fmt.Errorf("keep the result of %s: %w", kept.Task, err)
	}
	return nil
}

// Find returns for each key of lookup the latest result that may be taken, with its output, or nil where there is none: that of
// lookup.Run first, then that of any run that the same code made, but none that was made more than 30 days ago. A result whose output is gone is
// none. What is found is kept as a result of lookup.For as well, where that is set: for retries of that run, other runs do not find it there.
func (r *Results) Find(ctx context.Context, lookup wire.Lookup) ([]*wire.Kept, error) {
	stream, err := r.js.Stream(ctx, wire.ResultStream)
	if err != nil {
		return nil, fmt.Errorf("look up results: %w", err)
	}
	found, errs := make([]*wire.Kept, len(lookup.Keys)), make([]error, len(lookup.Keys))
	var all sync.WaitGroup
	turn := make(chan struct{}, lookups)
	for i, key := range lookup.Keys {
		turn <- struct{}{}
		all.Go(func() {
			found[i], errs[i] = r.find(ctx, stream, lookup, key)
			<-turn
		})
	}
	all.Wait()
	return found, errors.Join(errs...)
}

func (r *Results) find(ctx context.Context, stream jetstream.Stream, lookup wire.Lookup, key wire.ResultKey) (kept *wire.Kept, err error) {
	if lookup.Run != "" {
		own := wire.ResultKey{Content: key.Content}
		if kept, err = r.last(ctx, stream, wire.ResultSubject(own, lookup.Run)); err != nil {
			return nil, err
		}
	}
	if kept == nil && lookup.Shared {
		kept, err = r.last(ctx, stream, wire.ResultSubject(key, ""))
		if err != nil || kept == nil || kept.At.Before(lookup.NotBefore) || time.Since(kept.At) > keptAge {
			return nil, err
		}
	}
	if kept == nil {
		return nil, nil
	}
	found, err := r.read(ctx, *kept)
	if found != nil && lookup.For != "" && lookup.For != kept.Run {
		kept.Run = lookup.For
		// Where it cannot be kept, a retry of the run makes it again.
		_ = r.publish(ctx, wire.TakenSubject(kept.Key, kept.Run), *kept)
	}
	return found, err
}

// last returns the latest result on a subject as it is stored; nil when there is none.
func (r *Results) last(ctx context.Context, stream jetstream.Stream, subject string) (*wire.Kept, error) {
	message, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up a result: %w", err)
	}
	kept, readable := decode(message.Data)
	if !readable {
		return nil, nil
	}
	return &kept, nil
}

// read returns a result with its output; nil when the output is gone.
func (r *Results) read(ctx context.Context, kept wire.Kept) (*wire.Kept, error) {
	if kept.Stored.Digest == "" {
		return &kept, nil
	}
	output, err := activities.ReadAll(ctx, r.store, kept.Stored.Digest)
	if errors.Is(err, activities.ErrMissing) || errors.Is(err, activities.ErrCorrupt) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the result of %s: %w", kept.Task, err)
	}
	kept.Output = output
	return &kept, nil
}

// decode reads a result; readable is false for that of another version: the task then runs again.
func decode(data []byte) (kept wire.Kept, readable bool) {
	err := json.Unmarshal(data, &kept)
	return kept, err == nil && kept.Version == wire.Version
}

// OfRun returns what is kept of a run, in the order in which it was kept. Large outputs are not read: Stored tells where they are.
func (r *Results) OfRun(ctx context.Context, run string) ([]wire.Kept, error) {
	stream, err := r.js.Stream(ctx, wire.ResultStream)
	if err != nil {
		return nil, fmt.Errorf("list the results of run %s: %w", run, err)
	}
	subject := wire.ResultSubject(wire.ResultKey{}, run)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return nil, fmt.Errorf("list the results of run %s: %w", run, err)
	}
	left := len(info.State.Subjects)
	if left == 0 {
		return nil, nil
	}
	consumer, err := r.js.OrderedConsumer(ctx, wire.ResultStream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		return nil, fmt.Errorf("list the results of run %s: %w", run, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, fmt.Errorf("list the results of run %s: %w", run, err)
	}
	defer messages.Stop()
	kept := make([]wire.Kept, 0, left)
	for ; left > 0; left-- {
		message, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("list the results of run %s: %w", run, err)
		}
		if one, readable := decode(message.Data()); readable && one.Run == run {
			kept = append(kept, one)
		}
		if metadata, err := message.Metadata(); err == nil && metadata.NumPending == 0 {
			break
		}
	}
	return kept, nil
}
