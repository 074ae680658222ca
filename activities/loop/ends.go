package loop

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// Values of the bucket of ends: how far the telling of a run's end has come. The time of the entry is when that was.
const (
	endBegun = "begun"
	endTold  = "told"
)

// endsAge is for how long it is remembered that an end was told. Ends that are older are looked for in the streams.
const endsAge = 3 * 24 * time.Hour

// endsBook is the bucket of ends, and since when every telling of an end is written there before it begins.
type endsBook struct {
	bucket jetstream.KeyValue
	since  time.Time
}

// telling is how the telling of one end stands.
type telling struct {
	over bool
	look bool // another may have told a part of it that the server does not drop by itself any more
	done func(context.Context) error
}

// book returns the bucket of ends; nil where the engine is one that does not keep it.
func (r *Recorder) book(ctx context.Context) (*endsBook, error) {
	r.opening.Lock()
	defer r.opening.Unlock()
	if r.ends != nil {
		return r.ends, nil
	}
	stream, err := r.js.Stream(ctx, streams.BucketStream(wire.EndBucket))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	bucket, err := r.js.KeyValue(ctx, wire.EndBucket)
	if err != nil {
		return nil, err
	}
	r.ends = &endsBook{bucket: bucket, since: stream.CachedInfo().Created}
	return r.ends, nil
}

// beginEnd writes down that the end of a run is about to be told, and returns what is known of earlier tellings. That
// takes two messages, however many runs there are and however long ago this one began.
func (r *Recorder) beginEnd(
	ctx context.Context, started predictor.RunStarted, ended predictor.RunEnded,
) (telling, error) {
	ctx, cancel := context.WithTimeout(ctx, ackWait)
	defer cancel()
	book, err := r.book(ctx)
	if err != nil {
		return telling{}, fmt.Errorf("open bucket %s: %w", wire.EndBucket, err)
	}
	old := !justNow(ended.At)
	if book == nil {
		return telling{look: old, done: func(context.Context) error { return nil }}, nil
	}
	// An engine that wrote nothing down, or whose entry has gone, may have told it.
	unwritten := old && (ended.At.Before(book.since.Add(skew)) || time.Since(ended.At) > endsAge-skew)
	sum := sha256.Sum256([]byte(ended.Run))
	key := hex.EncodeToString(sum[:16])
	var revision uint64
	err = streams.Patiently(ctx, func() (err error) {
		revision, err = book.bucket.Create(ctx, key, []byte(endBegun))
		return err
	})
	switch {
	case err == nil:
		return telling{look: unwritten, done: book.told(key, revision)}, nil
	case !errors.Is(err, jetstream.ErrKeyExists):
		return telling{}, fmt.Errorf("write into bucket %s: %w", wire.EndBucket, err)
	}
	entry, err := book.bucket.Get(ctx, key)
	if err != nil {
		return telling{}, fmt.Errorf("read bucket %s: %w", wire.EndBucket, err)
	}
	if entry.Created().Before(started.At.Add(-skew)) { // of a run that had this name before
		revision, err = book.bucket.Update(ctx, key, []byte(endBegun), entry.Revision())
		if err != nil {
			return telling{}, fmt.Errorf("write into bucket %s: %w", wire.EndBucket, err)
		}
		return telling{done: book.told(key, revision)}, nil
	}
	return telling{
		over: string(entry.Value()) == endTold, look: unwritten || !justNow(entry.Created()),
		done: book.told(key, entry.Revision()),
	}, nil
}

// told returns what writes down that an end was told.
func (b *endsBook) told(key string, revision uint64) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, ackWait)
		defer cancel()
		return streams.Patiently(ctx, func() error {
			_, err := b.bucket.Update(ctx, key, []byte(endTold), revision)
			return err
		})
	}
}

// justNow reports whether the server is sure to drop by itself what was told at that time and is told again now.
func justNow(at time.Time) bool {
	passed := time.Since(at)
	return passed >= 0 && passed <= fresh
}
