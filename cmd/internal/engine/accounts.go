package engine

import (
	"context"
	"time"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// unknownRun says that there is no such run.
func unknownRun(run string) error {
	return web.NotFound("see spillway runs", "there is no run %q", run)
}

// account asks the ledger about a run.
func account[T any](e *Engine, run string, ask func(*ledger.Ledger, time.Time) (T, bool)) (T, error) {
	e.observer.mu.Lock()
	defer e.observer.mu.Unlock()
	found, known := ask(e.observer.ledger, e.now())
	if !known {
		return found, unknownRun(run)
	}
	return found, nil
}

// Timeline lays out the attempts of a run.
func (e *Engine) Timeline(_ context.Context, run string, marks int) (timeline.View, error) {
	return account(e, run, func(l *ledger.Ledger, now time.Time) (timeline.View, bool) { return l.Timeline(run, now, marks) })
}

// Attempts returns attempts of a run.
func (e *Engine) Attempts(_ context.Context, query web.AttemptQuery) ([]timeline.Attempt, error) {
	all, err := account(e, query.Run, func(l *ledger.Ledger, _ time.Time) ([]timeline.Attempt, bool) { return l.Attempts(query.Run) })
	return query.Select(all), err
}

// Allocation returns what each stage of a run held and used.
func (e *Engine) Allocation(_ context.Context, run string, points int) ([]timeline.Allocation, error) {
	return account(e, run, func(l *ledger.Ledger, now time.Time) ([]timeline.Allocation, bool) {
		return l.Allocation(run, now, points)
	})
}

// Breakdown returns where the time of a run went.
func (e *Engine) Breakdown(_ context.Context, run string) (timeline.Breakdown, error) {
	return account(e, run, func(l *ledger.Ledger, now time.Time) (timeline.Breakdown, bool) { return l.Breakdown(run, now) })
}

// Curves returns what the tasks of a run reported as progress.
func (e *Engine) Curves(_ context.Context, run string) ([]timeline.Curve, error) {
	return account(e, run, func(l *ledger.Ledger, _ time.Time) ([]timeline.Curve, bool) { return l.Curves(run) })
}

// Trainings returns how the split trainings of a run go, or went, beside their plans.
func (e *Engine) Trainings(_ context.Context, run string) ([]ledger.TrainingView, error) {
	return account(e, run, func(l *ledger.Ledger, _ time.Time) ([]ledger.TrainingView, bool) { return l.Trainings(run) })
}

// ledgerWait is how long a bill waits for the ledger to take in what the observer has taken in.
const ledgerWait = 5 * time.Second

// Bill returns who spent what, with all that is shown of runs by now.
func (e *Engine) Bill(ctx context.Context, query ledger.BillQuery) (ledger.Bill, error) {
	request, seen := e.observer.billRequest(query, e.now())
	waiting, cancel := context.WithTimeout(ctx, ledgerWait)
	defer cancel()
	if err := e.ledger.Reach(waiting, seen); err != nil {
		if ctx.Err() != nil {
			return ledger.Bill{}, ctx.Err()
		}
		return ledger.Bill{}, web.Starting("%v", err)
	}
	return e.ledger.Bill(ctx, request)
}

// billRequest asks for a bill of what was taken in up to a sequence.
func (o *observer) billRequest(query ledger.BillQuery, now time.Time) (request ledgerstore.Request, seen uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return ledgerstore.Request{
		BillQuery: query, Now: now, Latest: o.ledger.Latest(),
		Accruing: o.ledger.Accruing(now),
	}, o.seen
}

// Diff compares two runs.
func (e *Engine) Diff(_ context.Context, a, b string) (ledger.Diff, error) {
	e.observer.mu.Lock()
	defer e.observer.mu.Unlock()
	diff, missing := e.observer.ledger.Diff(a, b)
	if missing != "" {
		return ledger.Diff{}, unknownRun(missing)
	}
	return diff, nil
}

// Prices returns the catalogue of prices in force.
func (e *Engine) Prices(context.Context) ([]pricing.Row, error) { return e.config.Prices.Rows(), nil }
