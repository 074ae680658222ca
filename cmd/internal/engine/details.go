package engine

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

const (
	// detailsKept is of how many runs the details stay that somebody has looked at.
	detailsKept = 8
	// detailsWait is how long it may take to read what a run did.
	detailsWait = time.Minute
)

// details rebuilds what ended runs did, attempt by attempt, from the streams, when somebody looks at it. Use
// newDetails; its methods may be called concurrently.
type details struct {
	js    jetstream.JetStream
	store *ledgerstore.Store

	mu     sync.Mutex
	places map[string]*list.Element // guarded by mu
	recent *list.List               // guarded by mu: of *rebuilt, the one that was looked at last in front
}

// rebuilt is one run.
type rebuilt struct {
	run         string
	first, last uint64
	ready       chan struct{} // closed once what follows is there
	err         error

	mu     sync.Mutex
	ledger *ledger.Ledger // guarded by mu once ready is closed
}

func newDetails(js jetstream.JetStream, store *ledgerstore.Store) *details {
	return &details{js: js, store: store, places: map[string]*list.Element{}, recent: list.New()}
}

// ask calls look with a ledger that has nothing but a run that has ended. An Error with StatusNotFound where there is
// no such run, with StatusGone where the streams tell no more of it.
func (d *details) ask(ctx context.Context, run string, look func(*ledger.Ledger)) error {
	first, last, known, err := d.store.Told(ctx, run)
	if err != nil {
		return err
	}
	view, shown, err := d.store.Run(ctx, run)
	switch {
	case err != nil:
		return err
	case !shown:
		return unknownRun(run)
	case !known:
		return detailsGone(run, time.Time{})
	}
	one, mine := d.place(run, first, last)
	if mine {
		// Whoever else waits for it gets it too, so it does not end with this request.
		reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), detailsWait)
		defer cancel()
		one.ledger, one.err = d.rebuild(reading, view, first, last)
		close(one.ready)
		if one.err != nil {
			d.forget(one)
		}
	}
	select {
	case <-one.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if one.err != nil {
		return one.err
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	look(one.ledger)
	return nil
}

// place returns the entry of a run; mine says that it is new, and that the caller is to fill it.
func (d *details) place(run string, first, last uint64) (one *rebuilt, mine bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at, known := d.places[run]; known {
		if one = at.Value.(*rebuilt); one.first == first && one.last == last {
			d.recent.MoveToFront(at)
			return one, false
		}
		d.recent.Remove(at) // it has taken in more, or is of an earlier run of that name
	}
	one = &rebuilt{run: run, first: first, last: last, ready: make(chan struct{})}
	d.places[run] = d.recent.PushFront(one)
	if d.recent.Len() > detailsKept {
		oldest := d.recent.Remove(d.recent.Back()).(*rebuilt)
		delete(d.places, oldest.run)
	}
	return one, true
}

func (d *details) forget(one *rebuilt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at, known := d.places[one.run]; known && at.Value == one {
		d.recent.Remove(at)
		delete(d.places, one.run)
	}
}

// rebuild folds what the streams tell of a run.
func (d *details) rebuild(ctx context.Context, view ledger.RunView, first, last uint64) (*ledger.Ledger, error) {
	messages, err := loop.OfRun(ctx, d.js, view.Run, first, last)
	if forgotten, ok := errors.AsType[*loop.ForgottenError](err); ok {
		return nil, detailsGone(view.Run, forgotten.Since)
	}
	if err != nil {
		return nil, fmt.Errorf("rebuild the details of run %s: %w", view.Run, err)
	}
	folded := ledger.New()
	for _, message := range messages {
		folded.Apply(message.Event)
	}
	if !folded.Knows(view.Run) {
		return nil, detailsGone(view.Run, time.Time{})
	}
	return folded, nil
}

// detailsGone says that only the sums of a run are left; since is of when the oldest details are.
func detailsGone(run string, since time.Time) error {
	const hint = "what it did altogether and its bill are kept: see spillway show, spillway cost"
	if since.IsZero() {
		return web.Gone(hint, "the details of run %q are gone", run)
	}
	return web.Gone(hint, "the details of run %q are gone: those of runs that began before %s are", run,
		since.UTC().Format("2006-01-02 15:04 UTC"))
}
