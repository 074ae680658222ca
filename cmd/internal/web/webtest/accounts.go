package webtest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/timeline"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

// account asks the ledger about a run, at the time of the clock.
func account[T any](e *Engine, run string, ask func(l *ledger.Ledger, now time.Time) (T, bool)) (T, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	found, known := ask(e.ledger, e.now())
	if e.failure != nil {
		return found, e.failure
	}
	if !known {
		return found, unknown(run)
	}
	return found, nil
}

func unknown(run string) error {
	return web.NoRun(run)
}

// now is the time of Clock.
func (e *Engine) now() time.Time {
	if e.Clock == nil {
		return time.Now()
	}
	return e.Clock()
}

// detail asks what the attempts of a run did.
func detail[T any](e *Engine, run string, ask func(*ledger.Detail, time.Time) T) (T, error) {
	return account(e, run, func(l *ledger.Ledger, now time.Time) (answer T, known bool) {
		of, known := l.Detail(run)
		if known {
			answer = ask(of, now)
		}
		return answer, known
	})
}

// Timeline lays out the attempts of a run.
func (e *Engine) Timeline(_ context.Context, run string, marks int) (timeline.View, error) {
	return detail(e, run, func(d *ledger.Detail, now time.Time) timeline.View { return d.Timeline(now, marks) })
}

// Attempts returns attempts of a run.
func (e *Engine) Attempts(_ context.Context, query web.AttemptQuery) ([]timeline.Attempt, error) {
	return detail(e, query.Run, func(d *ledger.Detail, _ time.Time) []timeline.Attempt { return d.Attempts(query) })
}

// Allocation returns what each stage of a run held and used.
func (e *Engine) Allocation(_ context.Context, run string, points int) ([]timeline.Allocation, error) {
	return detail(e, run, func(d *ledger.Detail, now time.Time) []timeline.Allocation { return d.Allocation(now, points) })
}

// Breakdown returns where the time of a run went.
func (e *Engine) Breakdown(_ context.Context, run string) (timeline.Breakdown, error) {
	return detail(e, run, func(d *ledger.Detail, now time.Time) timeline.Breakdown { return d.Breakdown(now) })
}

// Curves returns what the tasks of a run reported as progress.
func (e *Engine) Curves(_ context.Context, run string) ([]timeline.Curve, error) {
	return account(e, run, func(l *ledger.Ledger, _ time.Time) ([]timeline.Curve, bool) { return l.Curves(run) })
}

// Learning returns how the trainings of tasks of a run go, as what was told of it has it.
func (e *Engine) Learning(ctx context.Context, run string) ([]predictor.Learning, error) {
	if _, err := e.Run(ctx, run); err != nil {
		return nil, err
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return predictor.Learn(e.folded(), e.now()).LearningAhead(run), nil
}

// Hindsight sets what was predicted of the attempts of a run beside what came.
func (e *Engine) Hindsight(_ context.Context, run, stage string, points int) ([]hindsight.Stage, error) {
	return detail(e, run, func(d *ledger.Detail, _ time.Time) []hindsight.Stage {
		return d.Hindsight(stage, points, e.plan.Sizings)
	})
}

// Arrivals says what comes at the stages of a run, as what was told of it has it: each event at its own time.
func (e *Engine) Arrivals(ctx context.Context, run string) (all []predictor.Arriving, err error) {
	view, err := e.Run(ctx, run)
	if err != nil {
		return nil, err
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	state := e.folded()
	for _, stage := range view.Stages {
		of := predictor.StageID{App: view.App, Build: view.Build, Name: stage.Name}
		if arriving, followed := state.Arriving(of); followed {
			all = append(all, arriving)
		}
	}
	return all, nil
}

// Capacity says how much of the pool would be held, as what was told has it.
func (e *Engine) Capacity(context.Context) (*predictor.Capacity, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	advice, known := e.folded().Capacity(e.snapshot())
	if !known {
		return nil, nil //nolint:nilnil // nobody knows, which is no error
	}
	return &advice, nil
}

// Measured returns what the attempts of a stage have shown, as what was told has it.
func (e *Engine) Measured(_ context.Context, stage string) (predictor.Measured, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	measured, names, found := e.folded().Measured(stage, e.snapshot())
	if !found {
		return predictor.Measured{}, web.Unmeasured(stage, names)
	}
	return measured, nil
}

// snapshot is what there is now, as Stack tells it.
func (e *Engine) snapshot() predictor.Snapshot {
	now := time.Now
	if e.Clock != nil {
		now = e.Clock
	}
	return predictor.Snapshot{
		Now: now(), Hosts: e.stack.Hosts, Functions: e.stack.Functions, Policy: predictor.DefaultPolicy(),
	}
}

// folded is the state that what was told makes: each event at its own time.
func (e *Engine) folded() (state predictor.State) {
	for _, event := range e.told {
		state = predictor.Fold(predictor.Pass(state, event.When()), event)
	}
	return state
}

// Trainings returns how the split trainings of a run go, or went, beside their plans.
func (e *Engine) Trainings(_ context.Context, run string) ([]ledger.TrainingView, error) {
	return account(e, run, func(l *ledger.Ledger, _ time.Time) ([]ledger.TrainingView, bool) { return l.Trainings(run) })
}

// Bill returns who spent what.
func (e *Engine) Bill(ctx context.Context, query ledger.BillQuery) (bill ledger.Bill, err error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.failure != nil {
		return ledger.Bill{}, e.failure
	}
	store, err := ledgerstore.Open(ctx, "", nil)
	if err != nil {
		return ledger.Bill{}, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	lines := make([]loop.Line, len(e.told))
	for i, event := range e.told {
		lines[i] = loop.Line{Sequence: uint64(i) + 1, Stored: event.When(), Message: wire.Message{Event: event}}
	}
	if err := store.Take(ctx, lines); err != nil {
		return ledger.Bill{}, err
	}
	now := e.now()
	return store.Bill(ctx, ledgerstore.Request{
		BillQuery: query, Now: now, Latest: e.ledger.Latest(),
		Accruing: e.ledger.Accruing(now),
	})
}

// Diff compares two runs.
func (e *Engine) Diff(_ context.Context, a, b string) (ledger.Diff, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	first, known := e.ledger.Run(a)
	if !known {
		return ledger.Diff{}, unknown(a)
	}
	second, known := e.ledger.Run(b)
	if !known {
		return ledger.Diff{}, unknown(b)
	}
	return ledger.Compare(first, second), e.failure
}

// Prices returns the catalogue that is built in.
func (e *Engine) Prices(context.Context) ([]pricing.Row, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return pricing.Default().Rows(), e.failure
}

// Alert keeps an alert and tells it to the streams.
func (e *Engine) Alert(alert alerting.Alert) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.alerts = append(e.alerts, alert)
	e.Feed.Alerted(alert)
}

// Alerts returns what Alert was given, newest first.
func (e *Engine) Alerts(_ context.Context, limit int) ([]alerting.Alert, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	newest := slices.Clone(e.alerts[max(0, len(e.alerts)-limit):])
	slices.Reverse(newest)
	return newest, e.failure
}

// Outlook answers with OnOutlook; without it nothing is known.
func (e *Engine) Outlook(ctx context.Context, run string, goal predictor.Goal) (predictor.Outlook, error) {
	if _, err := e.Run(ctx, run); err != nil {
		return predictor.Outlook{}, err
	}
	if e.OnOutlook == nil {
		return predictor.Outlook{Run: run, Goal: goal, At: e.now(), Why: "nothing is predicted here"}, nil
	}
	return e.OnOutlook(run, goal), nil
}

// Frontier is what was told has it: of a run that goes on what is left, of one that has ended what it could have come
// to.
func (e *Engine) Frontier(ctx context.Context, run string, goal predictor.Goal) (answer whatif.Answer, err error) {
	view, err := e.Run(ctx, run)
	if err != nil {
		return answer, err
	}
	if view.State == predictor.RunRunning {
		e.mutex.Lock()
		defer e.mutex.Unlock()
		return whatif.Of(e.folded().Prospect(run, goal, e.snapshot())), nil
	}
	taken, err := detail(e, run, func(d *ledger.Detail, _ time.Time) predictor.Taken { return d.Taken(view) })
	if err != nil {
		return answer, err
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return whatif.Of(e.folded().ProspectAfter(taken, goal, e.snapshot())), nil
}

// PipelineFrontier is what was told has it, of the app that has run it last.
func (e *Engine) PipelineFrontier(
	ctx context.Context, pipeline string, _ json.RawMessage, goal predictor.Goal,
) (answer whatif.Answer, err error) {
	coming := predictor.Coming{Pipeline: pipeline}
	earlier, err := e.Runs(ctx, web.RunQuery{Limit: 1, Pipeline: pipeline})
	if err != nil {
		return answer, err
	}
	for _, run := range earlier.Runs {
		coming.App = run.App
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return whatif.Of(e.folded().ProspectOf(coming, goal, e.snapshot())), nil
}

// SetGoal puts the goal in force when OnOutlook does not call it impossible.
func (e *Engine) SetGoal(ctx context.Context, run string, goal predictor.Goal) (predictor.Outlook, error) {
	view, err := e.Run(ctx, run)
	if err != nil {
		return predictor.Outlook{}, err
	}
	if view.State != predictor.RunRunning {
		return predictor.Outlook{}, web.Conflict("", "run %q has %s already", run, view.State)
	}
	outlook, err := e.Outlook(ctx, run, goal)
	if err != nil {
		return outlook, err
	}
	if outlook.Known && !outlook.Feasible {
		return outlook, &web.Error{
			Status: http.StatusUnprocessableEntity, Message: outlook.Summary,
			Hint: "choose one of the alternatives of the outlook",
		}
	}
	e.Apply(run, predictor.GoalChanged{Run: run, Goal: goal, At: e.now()})
	return outlook, nil
}

// Retry answers with OnRetry; without it a run that has ended starts again as RUN-again.
func (e *Engine) Retry(ctx context.Context, run string, request web.Retry) (web.Retried, error) {
	view, err := e.Run(ctx, run)
	if err != nil {
		return web.Retried{}, err
	}
	if view.State == predictor.RunRunning {
		return web.Retried{}, web.Conflict("wait for its end or cancel it", "run %q goes on", run)
	}
	if e.OnRetry != nil {
		return e.OnRetry(run, request)
	}
	retried := web.Retried{Run: run + "-again", Event: "again", Stages: []string{}}
	for _, stage := range view.Stages {
		if stage.Name == request.From {
			break
		}
		retried.Stages = append(retried.Stages, stage.Name)
		retried.Tasks += stage.Done
	}
	return retried, nil
}
