package trigger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
)

// begin puts what is bound into force, as whoever leads from now on: what another had put into force is not known, and
// is compared with what is wanted.
func (t *Trigger) begin(ctx context.Context) error {
	t.applying.Lock()
	defer t.applying.Unlock()
	if t.several {
		t.scheduled = map[string]Schedule{}
		t.mu.Lock()
		t.gates = map[string]*gate{}
		t.mu.Unlock()
	}
	if err := t.apply(ctx); err != nil || !t.several {
		return err
	}
	if err := t.syncSchedules(ctx); err != nil && ctx.Err() == nil {
		t.log.WarnContext(ctx, "schedules are not in force yet", "error", err)
	}
	return nil
}

// look makes next what is bound, and changes nothing on the server: that is for whoever leads. The caller holds
// t.applying.
func (t *Trigger) look(ctx context.Context, next *table) error {
	stream, err := t.js.Stream(ctx, wire.EventStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) { // nobody has led yet
		t.use(next)
		return nil
	}
	if err != nil {
		return fmt.Errorf("find stream %s: %w", wire.EventStream, err)
	}
	existing, err := readConsumers(ctx, stream)
	if err != nil {
		return err
	}
	for key, old := range existing {
		if _, wanted := next.bounds[key]; wanted {
			next.since[key] = old.config.OptStartSeq
		}
	}
	t.use(next)
	return nil
}

const (
	// readerWait is how long whoever leads may take to read the events of a new binding, and readerLook how often it is
	// looked whether it does.
	readerWait = 15 * time.Second
	readerLook = 200 * time.Millisecond
)

// errNobodyReads says that nobody has put a binding into force.
var errNobodyReads = errors.New("the binding is kept, but the leading server has not put it into force yet: see " +
	"spillway bindings, and the log of that server")

// awaitReader waits until whoever leads reads the events of a binding, where this trigger does not lead.
func (t *Trigger) awaitReader(ctx context.Context, key string) error {
	if t.leads() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readerWait)
	defer cancel()
	for {
		_, err := t.js.Consumer(ctx, wire.EventStream, consumerPrefix+key)
		if err == nil {
			return nil
		}
		if !wait.For(ctx, readerLook) {
			return fmt.Errorf("%w: %w", errNobodyReads, err)
		}
	}
}

// Follow takes in what is bound by command at other servers, until ctx ends.
func (t *Trigger) Follow(ctx context.Context) {
	for wait.For(ctx, t.every) {
		if err := t.followOnce(ctx); err != nil && ctx.Err() == nil {
			t.log.DebugContext(ctx, "what others have bound is not known", "error", err)
		}
	}
}

// followOnce takes in what was bound since the last look, if anything was.
func (t *Trigger) followOnce(ctx context.Context) error {
	bindings, err := t.js.Stream(ctx, "KV_"+wire.BindingBucket)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // nothing is
	}
	if err != nil {
		return err
	}
	last := bindings.CachedInfo().State.LastSeq
	t.applying.Lock()
	defer t.applying.Unlock()
	if last == t.known {
		return nil
	}
	if err := t.apply(ctx); err != nil {
		return err
	}
	t.known = last
	return t.syncSchedules(ctx)
}
