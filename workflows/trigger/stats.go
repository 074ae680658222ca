package trigger

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/spillway-ml/spillway/activities/wire"
)

// counters count what became of the events of one binding since this process started.
type counters struct {
	started, duplicate, dead, skipped atomic.Uint64
}

// Stats counts events since this process started.
type Stats struct {
	// Bindings has one entry for each binding in force, in the order of Trigger.Bindings.
	Bindings []BindingStats
	// Unbound counts events that no binding reads. They are dead letters.
	Unbound uint64
	// Replayed counts dead letters that were published again.
	Replayed uint64
	// StartLimit is how many starts of runs may be under way at a time now, by how long they take.
	StartLimit int
}

// BindingStats counts the events of one binding.
type BindingStats struct {
	// Bound is the binding.
	Bound Bound
	// Started counts events that started a run, Duplicate those whose run existed already, Dead those that became dead
	// letters, and Skipped those that the filter did not want.
	Started, Duplicate, Dead, Skipped uint64
	// Waiting is how many events are in the stream that this binding has not dealt with: above its cap, not yet taken, or
	// waiting until starts are quick enough for theirs.
	Waiting uint64
	// Running is how many runs count against the cap; 0 when there is none.
	Running int
}

// Stats returns what became of the events. It asks the server how many wait.
func (t *Trigger) Stats(ctx context.Context) (Stats, error) {
	stats := Stats{Unbound: t.count(unboundKey).dead.Load(), StartLimit: t.admission.limit()}
	t.mu.Lock()
	stats.Replayed = t.replayed
	t.mu.Unlock()
	for _, bound := range t.Bindings() {
		counts := t.count(bound.Key)
		consumer, err := t.js.Consumer(ctx, wire.EventStream, consumerPrefix+bound.Key)
		if err != nil {
			return stats, fmt.Errorf("count events of binding %s: %w", bound.Key, err)
		}
		info := consumer.CachedInfo()
		one := BindingStats{
			Bound: bound, Started: counts.started.Load(), Duplicate: counts.duplicate.Load(), Dead: counts.dead.Load(),
			Skipped: counts.skipped.Load(),
			Waiting: info.NumPending + uint64(info.NumAckPending),
		}
		t.mu.Lock()
		if gate := t.gates[bound.Key]; gate != nil {
			one.Running = gate.count()
		}
		t.mu.Unlock()
		stats.Bindings = append(stats.Bindings, one)
	}
	return stats, nil
}

// count returns the counters of a binding.
func (t *Trigger) count(key string) *counters {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counters[key] == nil {
		t.counters[key] = &counters{}
	}
	return t.counters[key]
}
