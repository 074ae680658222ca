package engine

import (
	"context"
	"time"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// unknownRun says that there is no such run.
func unknownRun(run string) error {
	return web.NoRun(run)
}

// account asks about a run: the ledger that is folded, or for a run that ended earlier one that is rebuilt.
func account[T any](
	ctx context.Context, e *Engine, run string, ask func(*ledger.Ledger) (T, bool),
) (answer T, err error) {
	e.observer.mu.Lock()
	answer, known := ask(e.observer.ledger)
	e.observer.mu.Unlock()
	if known {
		return answer, nil
	}
	err = e.details.ask(ctx, run, func(rebuilt *ledger.Ledger) { answer, _ = ask(rebuilt) })
	return answer, err
}

// detail is what the attempts of a run did.
func (e *Engine) detail(ctx context.Context, run string) (*ledger.Detail, error) {
	return account(ctx, e, run, func(l *ledger.Ledger) (*ledger.Detail, bool) { return l.Detail(run) })
}

// Timeline lays out the attempts of a run.
func (e *Engine) Timeline(ctx context.Context, run string, marks int) (timeline.View, error) {
	of, err := e.detail(ctx, run)
	if err != nil {
		return timeline.View{}, err
	}
	return of.Timeline(e.now(), marks), nil
}

// Attempts returns attempts of a run.
func (e *Engine) Attempts(ctx context.Context, query web.AttemptQuery) ([]timeline.Attempt, error) {
	of, err := e.detail(ctx, query.Run)
	if err != nil {
		return nil, err
	}
	return of.Attempts(query), nil
}

// Allocation returns what each stage of a run held and used.
func (e *Engine) Allocation(ctx context.Context, run string, points int) ([]timeline.Allocation, error) {
	of, err := e.detail(ctx, run)
	if err != nil {
		return nil, err
	}
	return of.Allocation(e.now(), points), nil
}

// Breakdown returns where the time of a run went.
func (e *Engine) Breakdown(ctx context.Context, run string) (timeline.Breakdown, error) {
	of, err := e.detail(ctx, run)
	if err != nil {
		return timeline.Breakdown{}, err
	}
	return of.Breakdown(e.now()), nil
}

// Curves returns what the tasks of a run reported as progress.
func (e *Engine) Curves(ctx context.Context, run string) ([]timeline.Curve, error) {
	return account(ctx, e, run, func(l *ledger.Ledger) ([]timeline.Curve, bool) { return l.Curves(run) })
}

// Learning returns how the trainings of tasks of a run that run go, and are expected to go on.
func (e *Engine) Learning(ctx context.Context, run string) ([]predictor.Learning, error) {
	if _, err := e.Run(ctx, run); err != nil {
		return nil, err
	}
	return e.observer.learning(run), nil
}

// Hindsight sets what was predicted of the attempts of a run beside what came, and how fast they were beside what the
// plan in force knows of it.
func (e *Engine) Hindsight(ctx context.Context, run, stage string, points int) ([]hindsight.Stage, error) {
	of, err := e.detail(ctx, run)
	if err != nil {
		return nil, err
	}
	plan, err := e.Plan(ctx)
	if err != nil {
		return nil, err
	}
	return of.Hindsight(stage, points, plan.Sizings), nil
}

// Arrivals says what comes at the stages of a run, and what is forecast.
func (e *Engine) Arrivals(ctx context.Context, run string) ([]predictor.Arriving, error) {
	view, err := e.Run(ctx, run)
	if err != nil {
		return nil, err
	}
	return e.observer.arrivals(view), nil
}

// arrivals tells what comes at the stages of a run.
func (o *observer) arrivals(run ledger.RunView) (all []predictor.Arriving) {
	for _, stage := range run.Stages {
		o.mu.Lock() // a stage takes about a millisecond: others may look between
		arriving, followed := o.state.Arriving(predictor.StageID{
			App: run.App, Build: run.Build, Name: stage.Name, Team: run.Team,
		})
		o.mu.Unlock()
		if followed {
			all = append(all, arriving)
		}
	}
	return all
}

// Capacity says how much of the pool would be held for what is forecast of all runs.
func (e *Engine) Capacity(ctx context.Context) (*predictor.Capacity, error) {
	hosts, err := e.livingHosts(ctx)
	if err != nil {
		return nil, err
	}
	e.observer.mu.Lock()
	defer e.observer.mu.Unlock()
	advice, known := e.observer.state.Capacity(e.snapshot(hosts))
	if !known {
		return nil, nil //nolint:nilnil // nobody knows, which is no error
	}
	return &advice, nil
}

// Measured returns what the attempts of a stage have shown.
func (e *Engine) Measured(ctx context.Context, stage string) (predictor.Measured, error) {
	hosts, err := e.livingHosts(ctx)
	if err != nil {
		return predictor.Measured{}, err
	}
	e.observer.mu.Lock()
	defer e.observer.mu.Unlock()
	measured, names, found := e.observer.state.Measured(stage, e.snapshot(hosts))
	if !found {
		return predictor.Measured{}, web.Unmeasured(stage, names)
	}
	return measured, nil
}

// snapshot is what there is now.
func (e *Engine) snapshot(hosts []predictor.Host) predictor.Snapshot {
	return predictor.Snapshot{
		Now: e.now(), Hosts: hosts, Functions: e.functions, Policy: e.config.Policy, Teams: e.config.Teams.Bounds(),
	}
}

// Trainings returns how the split trainings of a run go, or went, beside their plans.
func (e *Engine) Trainings(ctx context.Context, run string) ([]ledger.TrainingView, error) {
	return account(ctx, e, run, func(l *ledger.Ledger) ([]ledger.TrainingView, bool) { return l.Trainings(run) })
}

// ledgerWait is how long sums wait for the ledger to take in what the observer has taken in.
const ledgerWait = 5 * time.Second

// reachLedger waits until the ledger has taken in all up to a sequence.
func (e *Engine) reachLedger(ctx context.Context, sequence uint64) error {
	waiting, cancel := context.WithTimeout(ctx, ledgerWait)
	defer cancel()
	err := e.ledger.Reach(waiting, sequence)
	if err != nil && ctx.Err() == nil {
		return web.Starting("%v", err)
	}
	return ctx.Err()
}

// Bill returns who spent what, with all that is shown of runs by now.
func (e *Engine) Bill(ctx context.Context, query ledger.BillQuery) (ledger.Bill, error) {
	request, seen := e.observer.billRequest(query, e.now())
	if err := e.reachLedger(ctx, seen); err != nil {
		return ledger.Bill{}, err
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
	}, o.at.Sequence
}

// Diff compares two runs.
func (e *Engine) Diff(ctx context.Context, a, b string) (ledger.Diff, error) {
	first, err := e.Run(ctx, a)
	if err != nil {
		return ledger.Diff{}, err
	}
	second, err := e.Run(ctx, b)
	if err != nil {
		return ledger.Diff{}, err
	}
	return ledger.Compare(first, second), nil
}

// Prices returns the catalogue of prices in force.
func (e *Engine) Prices(context.Context) ([]pricing.Row, error) { return e.config.Prices.Rows(), nil }
