// Package webtest holds an engine in memory, for tests of the API and of what calls it.
package webtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Engine accounts for events in a real ledger and runs nothing. Use New; its methods may be called concurrently, once
// its fields are set.
type Engine struct {
	// Feed tells what Apply and Decide changed.
	Feed web.Feed
	// OnPublish is called with each event and the run that it starts, after Publish has answered for it; nil does nothing.
	OnPublish func(event web.Event, run string)
	// OnCancel is called with each run that is cancelled; nil does nothing.
	OnCancel func(run string)
	// OnOutlook answers Outlook, and SetGoal before a goal is taken; nil knows nothing.
	OnOutlook func(run string, goal predictor.Goal) predictor.Outlook
	// OnRetry answers Retry of a run that has ended; nil starts it again in name only.
	OnRetry func(run string, request web.Retry) (web.Retried, error)
	// OnCollect answers Collect; nil collects nothing.
	OnCollect func(dry bool) (retention.Collection, error)
	// Teams are whose runs are by what they were started with, where that is not what was applied.
	Teams map[string]string
	// Clock is the time up to which runs that go on are accounted for; nil is time.Now.
	Clock func() time.Time
	// Results are the results of runs whose ledger does not have them whole.
	Results map[string]json.RawMessage

	mutex    sync.Mutex
	ledger   *ledger.Ledger // all below guarded by mutex
	told     []predictor.Event
	stack    web.Stack
	plan     predictor.Plan
	bindings []web.Binding
	dead     []web.DeadLetter
	alerts   []alerting.Alert
	events   int
	printed  []logs.Line
	news     chan struct{} // closed by the next Print
	failure  error
	listed   Listed
	tunings  map[string][]runs.Tuning // by run
}

// New returns an engine with this stack.
func New(stack web.Stack) *Engine {
	return &Engine{ledger: ledger.New(), stack: stack, news: make(chan struct{})}
}

// Apply accounts for events, and tells the streams that run has changed; an empty run tells nothing.
func (e *Engine) Apply(run string, events ...predictor.Event) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for _, event := range events {
		e.ledger.Apply(event)
	}
	e.told = append(e.told, events...)
	if run != "" {
		e.Feed.RunChanged(run)
	}
}

// Forecast tells what is expected of a run.
func (e *Engine) Forecast(run string, now time.Time, forecast predictor.Forecast) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.ledger.Forecast(run, now, forecast)
	e.Feed.RunChanged(run)
}

// Decide puts a plan in force and keeps its decisions.
func (e *Engine) Decide(plan predictor.Plan) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.plan = plan
	e.ledger.SetPlan(plan)
	for _, decision := range plan.Decisions {
		e.ledger.Decided(decision)
		e.Feed.Decided(decision)
	}
	e.Feed.Planned(plan)
}

// AddDead adds a dead letter.
func (e *Engine) AddDead(letter web.DeadLetter) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.dead = append(e.dead, letter)
}

// Fail makes every method answer err from now on; nil ends that.
func (e *Engine) Fail(err error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.failure = err
}

// Stack returns the stack.
func (e *Engine) Stack(context.Context) (web.Stack, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	stack := e.stack
	stack.Apps = slices.Clone(stack.Apps)
	return stack, e.failure
}

// SetHosts sets the hosts that Stack tells.
func (e *Engine) SetHosts(hosts ...predictor.Host) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.stack.Hosts = hosts
}

// SetAddress sets the address that Stack tells.
func (e *Engine) SetAddress(http string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.stack.Addresses.HTTP = http
}

// SetFunctions sets what Stack tells that functions offer.
func (e *Engine) SetFunctions(functions predictor.FunctionVenue) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.stack.Functions = functions
}

// SetFunctionsAddress sets the address of functions that Stack tells.
func (e *Engine) SetFunctionsAddress(address string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.stack.Addresses.Functions = address
}

// SetFunctionBuilds sets the place that Stack tells of functions, and the builds whose functions it tells it may call.
func (e *Engine) SetFunctionBuilds(place string, builds ...string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.stack.FunctionPlace, e.stack.FunctionBuilds = place, builds
}

// Check returns the error of Fail.
func (e *Engine) Check(context.Context) error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.failure
}

// Plan returns the plan in force.
func (e *Engine) Plan(context.Context) (predictor.Plan, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.plan, e.failure
}

// Runs returns runs from the ledger.
func (e *Engine) Runs(_ context.Context, query web.RunQuery) (ledger.Page, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return ledger.Join(query, e.ledger.Runs(query), ledger.Part{}), e.failure
}

// RunTotals adds up runs from the ledger, one by one.
func (e *Engine) RunTotals(_ context.Context, query web.RunQuery) (ledger.RunTotals, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	query.Limit, query.After = 0, ledger.Place{}
	totals := ledger.NewRunTotals()
	for _, view := range e.ledger.Runs(query).Runs {
		one := ledger.RunTotals{Runs: 1, Cost: view.Totals.Cost}
		if view.Goal.Deadline > 0 && view.Actual.Seconds > view.Goal.Deadline.Seconds() {
			one.MissedDeadlines = 1
		}
		if view.Goal.Budget > 0 && view.Totals.Cost > view.Goal.Budget {
			one.MissedBudgets = 1
		}
		totals.Add(view.State, one)
	}
	return totals, e.failure
}

// Run returns one run from the ledger.
func (e *Engine) Run(_ context.Context, run string) (ledger.RunView, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	view, known := e.ledger.Run(run)
	if !known {
		return view, unknown(run)
	}
	return view, e.failure
}

// TeamOf answers what Teams has, else what was applied.
func (e *Engine) TeamOf(ctx context.Context, run string) (string, error) {
	if team, told := e.Teams[run]; told {
		return team, nil
	}
	view, err := e.Run(ctx, run)
	return view.Team, err
}

// Decisions returns decisions from the ledger.
func (e *Engine) Decisions(_ context.Context, query web.DecisionQuery) ([]predictor.Decision, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if query.Run == "" {
		return e.ledger.Decisions(nil, query.Limit), e.failure
	}
	view, known := e.ledger.Run(query.Run)
	if !known {
		return nil, e.failure
	}
	return e.ledger.Decisions(&view, query.Limit), e.failure
}

// Result returns what Results has, else what the ledger does.
func (e *Engine) Result(ctx context.Context, run string) (json.RawMessage, error) {
	view, err := e.Run(ctx, run)
	if err != nil {
		return nil, err
	}
	if view.State != predictor.RunSucceeded {
		return nil, web.Conflict("", "run %q is %s and has no result", run, view.State)
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if result, found := e.Results[run]; found {
		return result, nil
	}
	return view.Result, nil
}

// History returns a history without events.
func (e *Engine) History(ctx context.Context, run string) (json.RawMessage, error) {
	_, err := e.Run(ctx, run)
	return json.RawMessage(`{"events":[]}`), err
}

// Print adds lines to the log, each as a message of its own.
func (e *Engine) Print(lines ...logs.Line) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for _, line := range lines {
		line.Sequence = uint64(len(e.printed) + 1)
		line.Resume = line.Sequence + 1
		e.printed = append(e.printed, line)
	}
	close(e.news)
	e.news = make(chan struct{})
}

// Logs hands out what Print has added, and adds.
func (e *Engine) Logs(ctx context.Context, query logs.Query, handle func(logs.Line) error) error {
	next, ended := max(query.From, 1), query.Until == nil
	for {
		e.mutex.Lock()
		printed, news, failure := e.printed, e.news, e.failure
		e.mutex.Unlock()
		if failure != nil {
			return failure
		}
		found := slices.DeleteFunc(slices.Clone(printed[min(int(next)-1, len(printed)):]), func(line logs.Line) bool {
			return !selected(query, line)
		})
		if query.Tail > 0 {
			found = found[max(0, len(found)-query.Tail):]
		}
		for _, line := range found {
			if err := handle(line); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
		next, query.Tail = uint64(len(printed)+1), 0
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-query.Until:
			ended = true
		case <-news:
		}
	}
}

func selected(query logs.Query, line logs.Line) bool {
	return line.Run == query.Run && (query.Stage == "" || line.Stage == query.Stage) &&
		(query.Task == "" || line.Task == query.Task) &&
		(query.Attempt == 0 || line.Attempt == query.Attempt) && !line.At.Before(query.Since)
}

// Cancel tells OnCancel.
func (e *Engine) Cancel(ctx context.Context, run string) error {
	view, err := e.Run(ctx, run)
	if err != nil {
		return err
	}
	if view.State != predictor.RunRunning {
		return web.Conflict("", "run %q has %s already", run, view.State)
	}
	if e.OnCancel != nil {
		e.OnCancel(run)
	}
	return nil
}

// Publish answers with a run and tells OnPublish.
func (e *Engine) Publish(_ context.Context, event web.Event) (web.Published, error) {
	e.mutex.Lock()
	if e.failure != nil {
		defer e.mutex.Unlock()
		return web.Published{}, e.failure
	}
	e.events++
	published := web.Published{Event: event.ID}
	if published.Event == "" {
		published.Event = fmt.Sprintf("event-%d", e.events)
	}
	if event.Pipeline != "" {
		published.Run = event.Pipeline + "-" + published.Event
	}
	e.mutex.Unlock()
	if e.OnPublish != nil {
		e.OnPublish(event, published.Run)
	}
	return published, nil
}

// Bindings returns what Bind made.
func (e *Engine) Bindings(context.Context) ([]web.Binding, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return slices.Clone(e.bindings), e.failure
}

// Bind keeps a binding.
func (e *Engine) Bind(_ context.Context, binding wire.Binding) (web.Binding, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	made := web.Binding{Binding: binding, Key: fmt.Sprintf("%s-%d", binding.Pipeline, len(e.bindings)+1)}
	e.bindings = append(e.bindings, made)
	return made, e.failure
}

// Unbind removes a binding.
func (e *Engine) Unbind(_ context.Context, key string) error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	before := len(e.bindings)
	e.bindings = slices.DeleteFunc(e.bindings, func(b web.Binding) bool { return b.Key == key })
	if len(e.bindings) == before {
		return web.NotFound("`spillway bindings` lists the keys", "there is no binding %q", key)
	}
	return nil
}

// Dead returns the dead letters.
func (e *Engine) Dead(_ context.Context, limit int) ([]web.DeadLetter, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return slices.Clone(e.dead[:min(limit, len(e.dead))]), e.failure
}

// Replay removes dead letters; each of them starts its run.
func (e *Engine) Replay(_ context.Context, sequence uint64) (replayed web.Replayed, err error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.dead = slices.DeleteFunc(e.dead, func(letter web.DeadLetter) bool {
		if sequence != 0 && letter.Sequence != sequence {
			return false
		}
		replayed.Replayed++
		replayed.Outcomes = append(replayed.Outcomes, web.ReplayOutcome{
			Sequence: letter.Sequence, Run: letter.Pipeline + "-" + letter.Event,
		})
		return true
	})
	if sequence != 0 && replayed.Replayed == 0 {
		return replayed, web.NotFound("`spillway dead list` shows the sequences", "there is no dead letter %d", sequence)
	}
	return replayed, nil
}

// errNoApp says that AddApp was not called for a path.
var errNoApp = errors.New("no such app")

// Register makes the app whose path it is the current one of its name.
func (e *Engine) Register(_ context.Context, path string) (web.App, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for i, app := range e.stack.Apps {
		if app.Path == path {
			e.stack.Apps[i].Current = true
			return e.stack.Apps[i], nil
		}
	}
	return web.App{}, fmt.Errorf("register %s: %w", path, errNoApp)
}

// RegisterChain makes the chain the current build of its name.
func (e *Engine) RegisterChain(_ context.Context, c chain.Chain) (web.App, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	app := web.App{App: c.App(), Build: c.Digest(), Path: "/chains/" + c.Name(), Chain: true, Current: true}
	e.stack.Apps = slices.DeleteFunc(e.stack.Apps, func(other web.App) bool { return other.Name == app.Name })
	e.stack.Apps = append(e.stack.Apps, app)
	return app, e.failure
}

// AddApp makes Register know an app; it is served at once when it is current.
func (e *Engine) AddApp(app web.App) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.stack.Apps = append(e.stack.Apps, app)
}
