// Package documents keeps small documents that all servers of one stack share: which hosts have joined, which tokens
// count, which builds there are. Whoever changes one says which it replaces, and all others see the change at once.
//
// They lie in one bucket of NATS, wire.SharedBucket, each sealed with a key that the servers alone have: who can write
// there, but is no server, can neither read one nor make one up. What such a one can do is put back an earlier
// document of the same name, or remove one.
package documents

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// changeFor bounds how long a change is tried while NATS does not answer, or others change the same document.
	changeFor = 10 * time.Second
	// crowdedPause is between two tries of a change that another one came before.
	crowdedPause = 10 * time.Millisecond
	// lookEvery is how often it is looked whether the bucket is the one that is watched, and whether all was seen.
	lookEvery = 2 * time.Second
	// openFor bounds how long the first look may take.
	openFor = 30 * time.Second
)

// Sealer seals documents. Name is the key of a document: what was sealed for one is none of another.
type Sealer interface {
	Seal(name string, text []byte) []byte
	Unseal(name string, sealed []byte) (text []byte, genuine bool)
}

// Documents are those of one stack, as this server knows them. Its methods may be called concurrently. Use Open.
type Documents struct {
	js     jetstream.JetStream
	bucket jetstream.KeyValue // nil for Local
	sealer Sealer
	logger *slog.Logger

	applying sync.Mutex // held while something is taken in and told of, so that all see the same order

	mu        sync.Mutex
	known     map[string]entry // by key; guarded by mu
	followers []follower       // guarded by mu
}

// entry is a document as it was seen last. One that is gone is remembered by its revision for removedLife.
type entry struct {
	raw      []byte // as it is stored
	text     []byte // nil when it is gone
	revision uint64
	since    time.Time // when it came to be known here
}

// follower is told of each document whose key begins with prefix.
type follower struct {
	prefix string
	tell   func(key string, text []byte)
}

// EnsureBucket makes the bucket where it is missing; the number of replicas that an operator has set is kept.
func EnsureBucket(ctx context.Context, js jetstream.JetStream) error {
	return streams.EnsureBucket(ctx, js, jetstream.KeyValueConfig{
		Bucket: wire.SharedBucket, Description: "what the servers of a stack share", History: 1,
		Storage: jetstream.FileStorage,
	})
}

// ErrOthers says that the documents are those of servers with other keys.
var ErrOthers = errors.New("they are those of a stack with other keys")

// markKey is the key of a document that says whose all are: who cannot read it is no server of the stack.
const markKey = "stack"

// Open makes the bucket where it is missing, and returns once all documents that are there are known. Run keeps them
// known. The error wraps ErrOthers where another Sealer has sealed what is there. A nil logger discards.
func Open(ctx context.Context, js jetstream.JetStream, sealer Sealer, logger *slog.Logger) (*Documents, error) {
	ctx, cancel := context.WithTimeout(ctx, openFor)
	defer cancel()
	if err := EnsureBucket(ctx, js); err != nil {
		return nil, err
	}
	bucket, err := js.KeyValue(ctx, wire.SharedBucket)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", wire.SharedBucket, err)
	}
	d := &Documents{
		js: js, bucket: bucket, sealer: sealer, logger: cmp.Or(logger, slog.New(slog.DiscardHandler)),
		known: map[string]entry{},
	}
	if err := d.mark(ctx); err != nil {
		return nil, err
	}
	watcher, _, err := d.watch(ctx, 0)
	if err != nil {
		return nil, err
	}
	return d, watcher.Stop()
}

// mark says whose the documents are, or finds that they are another's.
func (d *Documents) mark(ctx context.Context) error {
	err := streams.Persistently(ctx, openFor, func(ctx context.Context) error {
		_, err := d.bucket.Create(ctx, markKey, d.sealer.Seal(markKey, nil))
		if !errors.Is(err, jetstream.ErrKeyExists) {
			return err
		}
		there, err := d.bucket.Get(ctx, markKey)
		if err != nil {
			return err
		}
		if _, genuine := d.sealer.Unseal(markKey, there.Value()); !genuine {
			return ErrOthers
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("open what servers share (bucket %s): %w", wire.SharedBucket, err)
	}
	return nil
}

// Local returns documents that nobody shares and that end with the process, for tests.
func Local() *Documents {
	return &Documents{known: map[string]entry{}, logger: slog.New(slog.DiscardHandler)}
}

// watch begins to watch the bucket, and takes in all that is there. Of what is not, all is gone that was stored up to
// the given revision. It has seen all changes up to the revision that it returns.
func (d *Documents) watch(ctx context.Context, until uint64) (
	watcher jetstream.KeyWatcher, seen uint64, err error,
) {
	watcher, err = d.bucket.WatchAll(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("watch bucket %s: %w", wire.SharedBucket, err)
	}
	there, seen := map[string]bool{}, until
	err = streams.ReadAll(ctx, watcher, func(update jetstream.KeyValueEntry) {
		there[update.Key()] = true
		seen = max(seen, update.Revision())
		d.take(update)
	})
	if err == nil {
		err = d.forgetAllBut(ctx, there, until)
	}
	if err != nil {
		_ = watcher.Stop() // it may be over already
		return nil, 0, fmt.Errorf("read bucket %s: %w", wire.SharedBucket, err)
	}
	return watcher, seen, nil
}

// Run keeps the documents known until ctx ends. Where somebody has deleted the bucket, what is known is put into the
// one that was made in its place. What was removed long ago leaves nothing behind.
func (d *Documents) Run(ctx context.Context) error {
	var forgetting sync.WaitGroup
	defer forgetting.Wait()
	forgetting.Go(func() { d.forgetRegularly(ctx) })
	var made time.Time // when the bucket was made that is watched
	for {
		err := d.follow(ctx, &made)
		if ctx.Err() != nil {
			return nil
		}
		d.logger.DebugContext(ctx, "watch what servers share again", "error", err)
		if !wait.For(ctx, lookEvery/10) {
			return nil
		}
	}
}

// follow watches the bucket until it is another one, or its watch breaks.
func (d *Documents) follow(ctx context.Context, made *time.Time) error {
	asked := wallClock()
	stream, err := d.js.Stream(ctx, streams.BucketStream(wire.SharedBucket))
	if err != nil {
		return err
	}
	created := stream.CachedInfo().Created
	if !made.IsZero() && !created.Equal(*made) {
		d.restore(ctx)
	}
	*made = created
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watcher, seen, err := d.watch(watching, stream.CachedInfo().State.LastSeq)
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Stop() }() // it may be broken already
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	far := watched{seen: seen, at: asked}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case update, open := <-watcher.Updates():
			if !open {
				return errors.New("the watch has ended")
			}
			if update != nil {
				d.take(update)
				far.seen = max(far.seen, update.Revision())
			}
		case <-look.C:
			asked = wallClock()
			info, err := stream.Info(ctx)
			switch {
			case errors.Is(err, jetstream.ErrStreamNotFound):
				return err
			case err != nil: // nobody answers; the watch goes on when somebody does
				continue
			case !info.Created.Equal(created):
				return errors.New("the bucket is another one")
			}
			if err := far.look(info.State.LastSeq, asked); err != nil {
				return err
			}
		}
	}
}

// restore puts into a bucket that was made anew what is known and not there. Others may do the same.
func (d *Documents) restore(ctx context.Context) {
	d.applying.Lock()
	defer d.applying.Unlock()
	d.mu.Lock()
	kept := map[string]entry{}
	for key, one := range d.known {
		if one.text != nil {
			one.revision = 0 // of the bucket that is gone
			kept[key] = one
		}
	}
	d.known = maps.Clone(kept)
	d.mu.Unlock()
	d.logger.WarnContext(ctx, "what servers share was gone; what is known of it is put back", "documents", len(kept))
	for key, one := range kept {
		err := streams.Persistently(ctx, changeFor, func(ctx context.Context) error {
			_, err := d.bucket.Create(ctx, key, one.raw)
			if errors.Is(err, jetstream.ErrKeyExists) {
				return nil
			}
			return err
		})
		if err != nil {
			d.logger.ErrorContext(ctx, "a document is lost that servers share", "document", key, "error", err)
		}
	}
}

// take takes in what the watch tells.
func (d *Documents) take(update jetstream.KeyValueEntry) {
	next := entry{revision: update.Revision()}
	if update.Operation() == jetstream.KeyValuePut {
		next.raw = update.Value()
		text, genuine := d.sealer.Unseal(update.Key(), next.raw)
		if !genuine {
			d.logger.Warn("a document that servers share is none that a server has made; it is ignored", "document",
				update.Key())
		} else {
			next.text = text
		}
	}
	d.apply(update.Key(), next)
}

// apply takes in a document unless a later one is known, and tells who follows.
func (d *Documents) apply(key string, next entry) {
	d.applying.Lock()
	defer d.applying.Unlock()
	d.mu.Lock()
	before := d.known[key]
	if next.revision <= before.revision {
		d.mu.Unlock()
		return
	}
	next.since = time.Now()
	d.known[key] = next
	followers := d.followers
	d.mu.Unlock()
	if before.text == nil && next.text == nil {
		return
	}
	for _, one := range followers {
		if one.follows(key) {
			one.tell(key, next.text)
		}
	}
}

func (f follower) follows(key string) bool { return strings.HasPrefix(key, f.prefix) }

// forgetAllBut forgets the documents of up to a revision of which nothing is left in the bucket: those that a watch has
// not told of at its beginning, as far as they are not there. One that changes just then is told of later.
func (d *Documents) forgetAllBut(ctx context.Context, there map[string]bool, until uint64) error {
	d.mu.Lock()
	missed := map[string]uint64{}
	for key, one := range d.known {
		if one.text != nil && !there[key] && one.revision <= until {
			missed[key] = one.revision
		}
	}
	d.mu.Unlock()
	for key, revision := range missed {
		_, err := d.bucket.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			d.apply(key, entry{revision: revision + 1})
		} else if err != nil {
			return err
		}
	}
	return nil
}

// followPrefix has tell be told of each document whose key begins with prefix, of those that are known right now and
// then of each change, nil of one that is gone, one at a time. Tell may not change documents.
func (d *Documents) followPrefix(prefix string, tell func(key string, text []byte)) {
	d.applying.Lock()
	defer d.applying.Unlock()
	one := follower{prefix, tell}
	d.mu.Lock()
	d.followers = append(d.followers, one)
	now := map[string][]byte{}
	for key, known := range d.known {
		if known.text != nil && one.follows(key) {
			now[key] = known.text
		}
	}
	d.mu.Unlock()
	for key, text := range now {
		tell(key, text)
	}
}

// errCrowded says that another one has changed the document meanwhile.
var errCrowded = errors.New("others change it at the same time")

// change replaces the document at key by what next returns, given the one that is there: nil for none, and for one that
// is to be removed. Next may be called several times. What was written is known here when change returns.
func (d *Documents) change(ctx context.Context, key string, next func(now []byte) ([]byte, error)) error {
	ctx, cancel := context.WithTimeout(ctx, changeFor)
	defer cancel()
	var written []byte
	for {
		var refused *refusal
		err := streams.Persistently(ctx, changeFor, func(ctx context.Context) error {
			return d.try(ctx, key, next, &written)
		})
		switch {
		case errors.As(err, &refused):
			return refused.error
		case errors.Is(err, errCrowded) && wait.For(ctx, crowdedPause):
			continue
		case err != nil:
			return fmt.Errorf("change what servers share (%s): %w; look whether NATS answers and stores", key, err)
		}
		return nil
	}
}

// refusal is an error of the caller's function.
type refusal struct{ error }

// try is one try of a change. Written is what an earlier one has sent, whose answer was lost.
func (d *Documents) try(
	ctx context.Context, key string, next func(now []byte) ([]byte, error), written *[]byte,
) error {
	now, err := d.fetch(ctx, key)
	if err != nil {
		return err
	}
	if *written != nil && bytes.Equal(now.raw, *written) {
		d.apply(key, now)
		return nil
	}
	text, err := next(now.text)
	if err != nil {
		return &refusal{err}
	}
	if d.bucket == nil {
		d.apply(key, entry{raw: text, text: text, revision: now.revision + 1})
		return nil
	}
	then := entry{text: text, revision: now.revision}
	switch {
	case text == nil && now.raw == nil:
		d.apply(key, now)
		return nil
	case text == nil:
		err = d.bucket.Delete(ctx, key, jetstream.LastRevision(now.revision))
		then.revision++ // at least
	default:
		then.raw = d.sealer.Seal(key, text)
		*written = then.raw
		if now.revision == 0 {
			then.revision, err = d.bucket.Create(ctx, key, then.raw)
		} else {
			then.revision, err = d.bucket.Update(ctx, key, then.raw, now.revision)
		}
	}
	switch {
	case errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch):
		return errCrowded
	case err != nil:
		return err
	}
	d.apply(key, then)
	return nil
}

// fetch returns the document as it is stored now, or as it is known here where that is later: a copy of the bucket that
// is asked may be behind. Its revision is 0 where there is none.
func (d *Documents) fetch(ctx context.Context, key string) (entry, error) {
	d.mu.Lock()
	known := d.known[key]
	d.mu.Unlock()
	if d.bucket == nil {
		return known, nil
	}
	stored, err := d.bucket.Get(ctx, key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return entry{}, nil
	case err != nil:
		return entry{}, err
	case stored.Revision() <= known.revision && known.text != nil:
		return known, nil
	}
	now := entry{raw: stored.Value(), revision: stored.Revision()}
	if text, genuine := d.sealer.Unseal(key, now.raw); genuine {
		now.text = text
	}
	return now, nil
}
