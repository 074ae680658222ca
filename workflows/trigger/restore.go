package trigger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// restore adds to next the bindings made by command that are gone from their bucket though nobody has removed them, as
// after its file was damaged: what their readers know of them is a copy in another place. The caller holds t.applying.
func (t *Trigger) restore(ctx context.Context, next *table, existing map[string]reader) error {
	var restored []string
	for _, key := range slices.Sorted(maps.Keys(existing)) {
		old := existing[key]
		if _, bound := next.bounds[key]; bound || old.origin != Command {
			continue
		}
		unbound, err := t.wasUnbound(ctx, key)
		if err != nil {
			return err
		}
		bound, err := newBound(old.binding, Command)
		if unbound || err != nil || bound.Key != key {
			continue
		}
		if err := t.keep(ctx, bound); err != nil {
			return err
		}
		next.bounds[key] = bound
		restored = append(restored, key)
	}
	if len(restored) > 0 {
		t.log.ErrorContext(ctx, "bindings were gone from their bucket, though nobody had removed them; they are made again",
			"bindings", restored)
		t.restored(restored)
	}
	return nil
}

// wasUnbound reports whether somebody has removed the binding with this key: the bucket keeps that.
func (t *Trigger) wasUnbound(ctx context.Context, key string) (bool, error) {
	bucket, err := t.bucket(ctx)
	if err != nil {
		return false, err
	}
	history, err := bucket.History(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up whether binding %s was removed: %w", key, err)
	}
	return history[len(history)-1].Operation() != jetstream.KeyValuePut, nil
}
