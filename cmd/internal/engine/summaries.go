package engine

import (
	"context"
	"time"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

const (
	// keepEvery is how often what ended runs did is kept: a run takes in Records for a moment after its end.
	keepEvery = time.Second
	// keepLast is how long that may take when the engine ends.
	keepLast = 2 * time.Second
	// keepAtOnce is how many runs are kept in one transaction.
	keepAtOnce = 100
)

// page is what the ledger in memory has of a page of runs: those that it would list, and whatever it knows of those
// that are kept.
func (o *observer) page(query ledger.Query, kept []ledger.RunView) ledger.Part {
	runs, end := o.selected(query, kept)
	return ledger.Part{Runs: o.views(runs...), End: end}
}

// views completes the views of runs while others are taken in.
func (o *observer) views(runs ...ledger.Snapshot) []ledger.RunView {
	views := make([]ledger.RunView, len(runs))
	for i := range runs {
		views[i] = runs[i].View()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ledger.Learn(runs...)
	var going []string
	for i := range views {
		if views[i].State == predictor.RunRunning {
			going = append(going, views[i].Run)
		}
	}
	now := time.Now()
	told, learning := o.state.Progress(now, going...), o.state.Learning(going...)
	for i := range views {
		views[i].Progress, views[i].Learning = told[views[i].Run], learning[views[i].Run]
		o.ledger.Accrue(&views[i], now)
	}
	return views
}

// selected are the runs of page as they stand.
func (o *observer) selected(query ledger.Query, kept []ledger.RunView) (runs []ledger.Snapshot, end ledger.Place) {
	o.mu.Lock()
	defer o.mu.Unlock()
	runs, end = o.ledger.Select(query)
	listed := make(map[string]bool, len(runs))
	for _, run := range runs {
		listed[run.Run()] = true
	}
	for _, other := range kept {
		if run, known := o.ledger.Snapshot(other.Run); known && !listed[other.Run] {
			runs = append(runs, run)
		}
	}
	return runs, end
}

// keepRuns keeps what ended runs did, until ctx ends, and then what is not kept yet: the stream may have lost it when
// the next engine starts.
// The server that leads keeps them; the others look whether it has.
func (o *observer) keepRuns(ctx context.Context, store *ledgerstore.Store, leads func() bool) error {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	var failed error
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepLast)
			defer cancel()
			_ = o.keepAll(last, store, leads, nil) // it was told
			return nil
		case <-ticker.C:
			failed = o.keepAll(ctx, store, leads, failed)
		}
	}
}

// keepAll keeps what ended runs did that nobody has kept, and returns why that could not be done. It says so, unless it
// could not be done before: a database may be away for hours.
func (o *observer) keepAll(
	ctx context.Context, store *ledgerstore.Store, leads func() bool, before error,
) (failed error) {
	for more := true; more && ctx.Err() == nil; {
		if more, failed = o.keepSome(ctx, store, leads()); failed != nil && ctx.Err() == nil && before == nil {
			o.logger.WarnContext(ctx, "what runs did could not be kept; it is tried again", "error", failed)
		}
	}
	return failed
}

// keepSome keeps what some ended runs did; more says that there may be others.
func (o *observer) keepSome(
	ctx context.Context, store *ledgerstore.Store, leads bool,
) (more bool, err error) {
	o.mu.Lock()
	seen, ended := o.at.Sequence, o.ledger.Unkept(keepAtOnce)
	o.mu.Unlock()
	if len(ended) == 0 {
		return false, nil
	}
	if err := store.Reach(ctx, seen); err != nil { // it has to know that they ended
		return false, err
	}
	views := make([]ledger.RunView, len(ended))
	for i := range ended {
		views[i] = ended[i].View()
	}
	many := len(ended) == keepAtOnce
	if leads {
		err = store.KeepRuns(ctx, views)
	} else {
		ended, err = keptByAnother(ctx, store, ended, views)
	}
	if err != nil {
		return false, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ledger.Keep(ended)
	return many && len(ended) == keepAtOnce, nil
}

// keptByAnother are those of ended, which views shows, that the ledger has as a whole: the server that leads keeps
// them.
func keptByAnother(
	ctx context.Context, store *ledgerstore.Store, ended []ledger.EndedRun, views []ledger.RunView,
) (kept []ledger.EndedRun, err error) {
	for i, view := range views {
		has, known, err := store.Run(ctx, view.Run)
		if err != nil {
			return nil, err
		}
		if known && has.EndedAt.Equal(view.EndedAt) && has.Totals.Attempts >= view.Totals.Attempts {
			kept = append(kept, ended[i])
		}
	}
	return kept, nil
}
