package trigger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// consumerPrefix begins the names of the consumers of bindings; the key follows.
	consumerPrefix = "run-"
	// unboundConsumer reads every event and makes dead letters of those that no binding reads.
	unboundConsumer = "unbound"
	// bindingMetadata is where a consumer keeps its binding, so that it can be understood after the binding is gone, and
	// originMetadata where the binding comes from; consumers of earlier engines do not say so.
	bindingMetadata = "spillway.binding"
	originMetadata  = "spillway.origin"
	// keepFor is how long streams keep their messages.
	keepFor = 30 * 24 * time.Hour
	// keepBytes bounds what is told of runs that ended and of events that started none; the oldest goes first. Events
	// have no such bound: the oldest may be waiting still.
	keepBytes = 1 << 30
	// duplicates is how long JetStream itself drops a message whose Nats-Msg-Id it has seen.
	duplicates = 2 * time.Minute
	// deadDuplicates is longer: an event may be redelivered long after a crash between its dead letter and its
	// acknowledgement.
	deadDuplicates = time.Hour
)

// errSubjectTaken is the code of the JetStream API for a subject that another stream captures.
// https://github.com/nats-io/nats-server/blob/main/server/errors.json, JSStreamSubjectOverlapErr.
const errSubjectTaken jetstream.ErrorCode = 10065

// apply brings the server in line with the targets and the bindings made by command, and then uses them. The caller
// holds t.applying.
func (t *Trigger) apply(ctx context.Context) error {
	commands, err := t.kept(ctx)
	if err != nil {
		return err
	}
	next, err := newTable(t.targets, commands)
	if err != nil {
		return err
	}
	if !t.leads() {
		return t.look(ctx, next)
	}
	if err := t.ensureOthers(ctx); err != nil {
		return err
	}
	stream, err := t.ensureStream(ctx, wire.EventStream, []string{wire.EventSubjects, scheduledSubjects}, duplicates)
	if err != nil {
		return err
	}
	existing, err := readConsumers(ctx, stream)
	if err != nil {
		return err
	}
	if err := t.restore(ctx, next, existing); err != nil {
		return err
	}
	for key, old := range existing {
		if _, wanted := next.bounds[key]; !wanted {
			next.bounds[key] = Bound{Key: key, Binding: old.binding, Origin: Removed}
			if until, fixed := t.snapshot().until[key]; fixed {
				next.until[key] = until
			}
		}
	}
	if err := t.ensureSubjects(ctx, next, nil); err != nil {
		return err
	}
	if err := t.ensureConsumers(ctx, stream, next, existing); err != nil {
		return err
	}
	t.created = stream.CachedInfo().Created
	t.use(next)
	return nil
}

// use makes next what is bound from now on.
func (t *Trigger) use(next *table) {
	t.mu.Lock()
	t.table = next
	absent := map[string]time.Time{}
	for _, bound := range next.bounds {
		name := bound.Binding.Pipeline
		if _, known := next.pipelines[name]; known {
			continue
		}
		absent[name] = time.Now()
		if since, before := t.absent[name]; before && t.ready {
			absent[name] = since
		}
	}
	t.absent = absent
	t.mu.Unlock()
	t.tell()
}

func (t *Trigger) tell() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// ensureOthers makes the streams beside the event stream.
func (t *Trigger) ensureOthers(ctx context.Context) error {
	if _, err := t.ensureStream(ctx, wire.DeadStream, []string{wire.DeadSubjects}, deadDuplicates); err != nil {
		return err
	}
	_, err := t.ensureStream(ctx, wire.DoneStream, []string{wire.DoneSubjects}, duplicates)
	return err
}

// ensureStream returns the stream, made with these subjects if it does not exist. What an operator changed on it stays;
// one that was made before it had a bound of bytes is given it.
func (t *Trigger) ensureStream(
	ctx context.Context, name string, subjects []string, window time.Duration,
) (jetstream.Stream, error) {
	stream, err := t.js.Stream(ctx, name)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		if err != nil {
			return nil, fmt.Errorf("find stream %s: %w", name, err)
		}
		config := stream.CachedInfo().Config
		if config.MaxBytes > 0 || name == wire.EventStream {
			return stream, nil
		}
		config.MaxBytes = keepBytes
		if stream, err = t.js.UpdateStream(ctx, config); err != nil {
			return nil, fmt.Errorf("bound stream %s: %w", name, err)
		}
		return stream, nil
	}
	config := jetstream.StreamConfig{
		Name: name, Subjects: subjects, Storage: jetstream.FileStorage, Duplicates: window, MaxAge: keepFor,
		Replicas: t.replicas,
	}
	if name != wire.EventStream {
		config.MaxBytes = keepBytes
	}
	stream, err = t.js.CreateStream(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("make stream %s: %w", name, t.explain(ctx, name, subjects, err))
	}
	return stream, nil
}

// ensureSubjects makes the event stream capture what table and the additional subjects bind. It drops subjects that are
// bound no more only once the targets are known.
func (t *Trigger) ensureSubjects(ctx context.Context, table *table, additional []string) error {
	stream, err := t.ensureStream(ctx, wire.EventStream, []string{wire.EventSubjects, scheduledSubjects}, duplicates)
	if err != nil {
		return err
	}
	config := stream.CachedInfo().Config
	wanted := append([]string{wire.EventSubjects, scheduledSubjects}, additional...)
	for _, bound := range table.bounds {
		wanted = append(wanted, bound.subjects()...)
	}
	t.mu.Lock()
	if !t.ready {
		wanted = append(wanted, config.Subjects...)
	}
	t.mu.Unlock()
	subjects, err := cover(wanted)
	if err != nil {
		return Refuse("%w", err)
	}
	before := slices.Sorted(slices.Values(config.Subjects))
	if slices.Equal(before, subjects) {
		return nil
	}
	config.Subjects = subjects
	if _, err := t.js.UpdateStream(ctx, config); err != nil {
		return fmt.Errorf("add subjects to stream %s: %w", wire.EventStream, t.explain(ctx, wire.EventStream, subjects, err))
	}
	return nil
}

// explain names the subject and the stream when err says that another stream has a subject.
func (t *Trigger) explain(ctx context.Context, name string, subjects []string, err error) error {
	var api *jetstream.APIError
	if !errors.As(err, &api) || api.ErrorCode != errSubjectTaken {
		return err
	}
	for _, subject := range subjects {
		lister := t.js.StreamNames(ctx, jetstream.WithStreamListSubject(subject))
		for other := range lister.Name() {
			if other != name {
				return Refuse("subject %q overlaps stream %s: choose another subject, or take it from that stream: %w", subject,
					other, err)
			}
		}
	}
	return err
}

// reader is the consumer of one binding as the server has it.
type reader struct {
	binding wire.Binding
	origin  Origin // empty of one that an earlier engine has made
	config  jetstream.ConsumerConfig
}

// readConsumers returns the consumers of bindings that exist, by key.
func readConsumers(ctx context.Context, stream jetstream.Stream) (map[string]reader, error) {
	existing := map[string]reader{}
	lister := stream.ListConsumers(ctx)
	for info := range lister.Info() {
		key, ours := strings.CutPrefix(info.Name, consumerPrefix)
		if !ours {
			continue
		}
		old := reader{config: info.Config, origin: Origin(info.Config.Metadata[originMetadata])}
		if err := json.Unmarshal([]byte(info.Config.Metadata[bindingMetadata]), &old.binding); err != nil {
			return nil, fmt.Errorf("read consumer %s: its metadata %s is no binding: %w: delete the consumer if Spillway did "+
				"not make it", info.Name, bindingMetadata, err)
		}
		existing[key] = old
	}
	if err := lister.Err(); err != nil {
		return nil, fmt.Errorf("list consumers of stream %s: %w", wire.EventStream, err)
	}
	return existing, nil
}

// ensureConsumers makes one durable consumer for each binding and the one for the rest, and notes from where each
// reads. A new binding reads what comes from now on, which its consumer keeps as its start, so that every event has
// either a binding or a dead letter, and never both.
func (t *Trigger) ensureConsumers(
	ctx context.Context, stream jetstream.Stream, next *table, existing map[string]reader,
) error {
	base := jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: t.ackWait, MaxDeliver: -1, MaxAckPending: 2 * parallel,
	}
	boundBefore := t.snapshot().bounds
	rest := base
	rest.Durable = unboundConsumer
	if _, err := stream.CreateOrUpdateConsumer(ctx, rest); err != nil {
		return fmt.Errorf("make consumer %s: %w", rest.Durable, err)
	}
	for _, key := range slices.Sorted(maps.Keys(next.bounds)) {
		bound := next.bounds[key]
		old, exists := existing[key]
		if bound.Origin == Removed {
			next.since[key] = old.config.OptStartSeq
			continue
		}
		metadata, err := json.Marshal(bound.Binding)
		if err != nil {
			return fmt.Errorf("encode binding %s: %w", key, err)
		}
		config := base
		config.Durable = consumerPrefix + key
		config.FilterSubjects = bound.subjects()
		config.Metadata = map[string]string{bindingMetadata: string(metadata), originMetadata: string(bound.Origin)}
		config.DeliverPolicy = jetstream.DeliverByStartSequencePolicy
		config.OptStartSeq = old.config.OptStartSeq
		same := old.origin == bound.Origin && old.config.Metadata[bindingMetadata] == string(metadata)
		if exists && same && old.config.AckWait == t.ackWait {
			next.since[key] = config.OptStartSeq
			continue
		}
		if !exists {
			info, err := stream.Info(ctx)
			if err != nil {
				return fmt.Errorf("look at stream %s: %w", wire.EventStream, err)
			}
			config.OptStartSeq = info.State.LastSeq + 1
			if _, before := boundBefore[key]; before && t.madeAnew(info) {
				config.OptStartSeq = 1 // the stream is younger than the binding, which all its events are for
			}
		}
		if _, err := stream.CreateOrUpdateConsumer(ctx, config); err != nil {
			return fmt.Errorf("make consumer %s: %w", config.Durable, err)
		}
		next.since[key] = config.OptStartSeq
	}
	return nil
}

// madeAnew says whether the stream of events is another than that of the last apply: somebody has deleted that. The
// caller holds t.applying.
func (t *Trigger) madeAnew(info *jetstream.StreamInfo) bool {
	return !t.created.IsZero() && !info.Created.Equal(t.created)
}

// fixLastSequence ends what a removed binding reads: later events are for others. The caller has made sure that no new
// run comes from it.
func (t *Trigger) fixLastSequence(ctx context.Context, key string) error {
	t.applying.Lock()
	defer t.applying.Unlock()
	now := t.snapshot()
	bound, found := now.bounds[key]
	if _, fixed := now.until[key]; fixed || !found || bound.Origin != Removed {
		return nil
	}
	stream, err := t.js.Stream(ctx, wire.EventStream)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", wire.EventStream, err)
	}
	next := *now
	next.until = maps.Clone(now.until)
	next.until[key] = stream.CachedInfo().State.LastSeq
	t.mu.Lock()
	t.table = &next
	t.mu.Unlock()
	return nil
}

// deleteConsumer forgets a removed binding whose events are all dealt with.
func (t *Trigger) deleteConsumer(ctx context.Context, key string) error {
	t.applying.Lock()
	defer t.applying.Unlock()
	if bound, found := t.snapshot().bounds[key]; !found || bound.Origin != Removed {
		return nil // it was bound again meanwhile
	}
	err := t.js.DeleteConsumer(ctx, wire.EventStream, consumerPrefix+key)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("delete consumer %s: %w", consumerPrefix+key, err)
	}
	t.mu.Lock()
	delete(t.gates, key)
	t.mu.Unlock()
	return t.apply(ctx)
}

// bucket is where the bindings made by command are kept.
func (t *Trigger) bucket(ctx context.Context) (jetstream.KeyValue, error) {
	bucket, err := t.js.KeyValue(ctx, wire.BindingBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		bucket, err = t.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:  wire.BindingBucket,
			Storage: jetstream.FileStorage, Replicas: t.replicas,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", wire.BindingBucket, err)
	}
	return bucket, nil
}

// keep writes down a binding made by command.
func (t *Trigger) keep(ctx context.Context, bound Bound) error {
	encoded, err := json.Marshal(bound.Binding)
	if err != nil {
		return fmt.Errorf("keep binding %s: %w", bound.Key, err)
	}
	bucket, err := t.bucket(ctx)
	if err != nil {
		return fmt.Errorf("keep binding %s: %w", bound.Key, err)
	}
	if _, err := bucket.Put(ctx, bound.Key, encoded); err != nil {
		return fmt.Errorf("keep binding %s: %w", bound.Key, err)
	}
	return nil
}

// kept reads the bindings made by command. One that cannot be read is logged and left alone.
func (t *Trigger) kept(ctx context.Context) ([]Bound, error) {
	bucket, err := t.bucket(ctx)
	if err != nil {
		return nil, err
	}
	keys, err := bucket.Keys(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil, fmt.Errorf("list bindings: %w", err)
	}
	var bounds []Bound
	for _, key := range keys {
		entry, err := bucket.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read binding %s: %w", key, err)
		}
		var binding wire.Binding
		err = json.Unmarshal(entry.Value(), &binding)
		if err == nil {
			var bound Bound
			if bound, err = newBound(binding, Command); err == nil {
				bounds = append(bounds, bound)
			}
		}
		if err != nil {
			t.log.ErrorContext(ctx, "a kept binding cannot be read and is not in force", "key", key, "error", err)
		}
	}
	return bounds, nil
}
