package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/results"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// chainWorkers runs the workflows of chains in this process: a chain is data, and its workflow code is the engine's
// own.
type chainWorkers struct {
	stored   *build.Chains
	temporal client.Client
	recorder *loop.Recorder
	results  *results.Results
	window   int // of a run at first, in tasks of one stage
}

// run polls the workflow queue of a chain until ctx ends or polling fails for good.
func (w *chainWorkers) run(ctx context.Context, id buildID, c chain.Chain) error {
	ports := runs.Ports{
		App: id.app, Build: id.build, Stages: c.Stages(), Whole: true, Window: w.window,
		Tell: w.recorder.Tell, Find: w.results.Find,
		End: func(ctx context.Context, over runs.Ended) error {
			return w.recorder.End(ctx, over.Started, over.Ended, over.Done)
		},
	}
	failed := make(chan error, 1)
	polling := runs.WorkerOptions(ports)
	polling.OnFatalError = func(err error) {
		select {
		case failed <- err:
		default: // one is enough to start it again
		}
	}
	queue := worker.New(w.temporal, loopwire.WorkflowQueue(id.app, id.build), polling)
	runs.Register(queue, ports, []runs.AnyPipeline{c.Pipeline()})
	if err := queue.Start(); err != nil {
		return fmt.Errorf("poll %s: %w", loopwire.WorkflowQueue(id.app, id.build), err)
	}
	defer queue.Stop()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// RegisterChain stores a chain and serves it.
func (e *Engine) RegisterChain(ctx context.Context, c chain.Chain) (web.App, error) {
	if err := e.catalogue.CheckChain(c); err != nil {
		return web.App{}, web.Invalid("", "%v", err)
	}
	path, fresh, err := e.chains.Put(c)
	if err != nil {
		return web.App{}, err
	}
	app := servedChain(c, path)
	if err := e.apps.serve(ctx, app); err != nil {
		if fresh { // the next engine must not find it
			err = errors.Join(err, e.chains.Remove(c.Name(), c.Digest()))
		}
		return web.App{}, err
	}
	if err := e.catalogue.ShareChain(ctx, c); err != nil {
		return web.App{}, err
	}
	return describeApp(app), nil
}

// servedChain is a chain as the app of one pipeline that it is to all others.
func servedChain(c chain.Chain, path string) served {
	return served{App: build.App{Descriptor: c.App(), Digest: c.Digest(), Path: path}, chain: &c}
}

// chainIdle is how long a chain that nothing needs is served after it was wanted last. Until then an event finds it at
// once.
const chainIdle = time.Hour

// serveStored serves the chains of before that must be: those that events reach by a subject or a schedule of
// their own, and those of runs that go on. The others are served when they are wanted. Runs of older chains that go on
// find their worker by apps.tidy.
func (a *apps) serveStored(ctx context.Context) error {
	newest, err := a.chains.Newest()
	if err != nil {
		return err
	}
	a.keepStored(ctx, newest)
	a.serveBound(ctx)
	needed, err := a.needed(ctx)
	if err != nil { // apps.tidy asks again
		a.logger.WarnContext(ctx, "the chains of runs that go on are not known yet", "error", err)
		return nil
	}
	a.tend(ctx, needed)
	return nil
}

// keepStored makes the chains known to apps. Those that were stored before chains were checked, and are wrong, are left
// out.
func (a *apps) keepStored(ctx context.Context, chains []build.StoredChain) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range chains {
		if err := one.Validate(chain.Checks{Binding: trigger.Check}); err != nil {
			a.logger.WarnContext(ctx, "a stored chain cannot run and is not served; correct its file and run it again", "chain",
				one.Name(), "path", one.Path, "error", err)
			continue
		}
		a.stored[one.Name()] = servedChain(one.Chain, one.Path)
	}
}

// serveBound serves the stored chains that declare a subject or a schedule.
func (a *apps) serveBound(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var bound []served
	for _, app := range a.waiting() {
		if app.isBound() {
			bound = append(bound, app)
		}
	}
	a.serveEach(ctx, bound)
}

// serveEach serves all of these chains at once, or, where one of them cannot be served, each that can. The caller holds
// mu.
func (a *apps) serveEach(ctx context.Context, batch []served) {
	if len(batch) == 0 || a.change(ctx, batch, nil) == nil {
		return
	}
	for _, app := range batch {
		if err := a.change(ctx, []served{app}, nil); err != nil {
			a.logger.WarnContext(ctx, "a stored chain is not served",
				"chain", app.Descriptor.Name, "path", app.Path, "error", err)
		}
	}
}

// waiting lists the stored chains that are not served now and whose names are free, by name. The caller holds mu.
func (a *apps) waiting() []served {
	taken := map[string]bool{}
	for name, app := range a.current {
		taken[name] = true
		for _, pipeline := range app.Descriptor.Pipelines {
			taken[pipeline.Name] = true
		}
	}
	var waiting []served
	for _, name := range slices.Sorted(maps.Keys(a.stored)) {
		if !taken[name] {
			waiting = append(waiting, a.stored[name])
		}
	}
	return waiting
}

// isBound reports whether events reach the chain by a subject or a schedule of its own.
func (s served) isBound() bool {
	return slices.ContainsFunc(s.Descriptor.Pipelines, func(p loopwire.Pipeline) bool { return len(p.Bindings) > 0 })
}

// use notes that a chain is wanted. The caller holds mu.
func (a *apps) use(ctx context.Context, app served) {
	a.used[app.Descriptor.Name] = time.Now()
	if err := errors.Join(a.chains.Touch(app.Descriptor.Name, app.Digest),
		a.catalogue.Use(ctx, app.Descriptor.Name, app.Digest)); err != nil { // it may be forgotten a little early
		a.logger.DebugContext(ctx, "the use of a chain is not noted", "error", err)
	}
}

// want serves the stored chain of this name, or whose runs events on this subject start, if there is one. It reports
// whether one is served.
func (a *apps) want(ctx context.Context, target string) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, app := range a.stored {
		if name != target && loopwire.EventSubject(name) != target {
			continue
		}
		if now, is := a.current[name]; is && now.chain != nil {
			a.use(ctx, now)
			return true, nil
		}
		if !slices.ContainsFunc(a.waiting(), func(other served) bool { return other.Descriptor.Name == name }) {
			return false, nil // an app has the name
		}
		err := a.change(ctx, []served{app}, nil)
		return err == nil, err
	}
	return false, nil
}

// wanted is want for the trigger.
func (a *apps) wanted(ctx context.Context, subject string) bool {
	served, err := a.want(ctx, subject)
	if err != nil && ctx.Err() == nil {
		a.logger.WarnContext(ctx, "a stored chain is not served", "subject", subject, "error", err)
	}
	return served
}

// tend serves the stored chains that runs which go on, events that wait or bindings by command need, and serves those
// no longer that nothing needs and that were not wanted for a while.
func (a *apps) tend(ctx context.Context, needed map[buildID]bool) {
	stats, err := a.trigger.Stats(ctx)
	if err != nil {
		a.logger.DebugContext(ctx, "count the events that wait", "error", err)
		return
	}
	busy := map[string]bool{}
	for id := range needed {
		busy[id.app] = true
	}
	for _, one := range stats.Bindings {
		if one.Waiting > 0 || one.Bound.Origin == trigger.Command {
			busy[one.Bound.Binding.Pipeline] = true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serveEach(ctx, slices.DeleteFunc(a.waiting(), func(app served) bool { return !busy[app.Descriptor.Name] }))
	if idle := a.idle(busy, time.Now()); len(idle) > 0 {
		if err := a.change(ctx, nil, idle); err != nil {
			a.logger.DebugContext(ctx, "idle chains are still served", "error", err)
		}
	}
}

// idle lists the chains that are served, though nothing needs them and nobody wanted them for a while. The busy ones
// are wanted now. The caller holds mu.
func (a *apps) idle(busy map[string]bool, now time.Time) (idle []string) {
	for name, app := range a.current {
		switch {
		case app.chain == nil || app.isBound():
		case busy[name]:
			a.used[name] = now
		case now.Sub(a.used[name]) > chainIdle:
			idle = append(idle, name)
		}
	}
	return idle
}

// forget removes the chains that were not used for so long that no run of them is known any more, and of those of
// several servers the builds as well: who leads does, and the others follow.
func (a *apps) forget(ctx context.Context, needed map[buildID]bool) {
	then := a.before(a.retention)
	keep := func(name, digest string) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return needed[buildID{name, digest}] || a.current[name].Digest == digest
	}
	var err error
	switch {
	case a.catalogue == nil:
		err = a.chains.Forget(then, func(name, digest string) bool {
			if keep(name, digest) {
				return true
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.stored[name].Digest == digest {
				delete(a.stored, name)
			}
			return false
		})
	case a.leads():
		current := a.catalogue.Current()
		err = a.catalogue.Forget(ctx, then, func(name, digest string) bool {
			return keep(name, digest) || current[name].Digest == digest
		})
	}
	if err = errors.Join(err, a.catalogue.Sweep(then, keep)); err != nil { // they take a little room, no more
		a.logger.WarnContext(ctx, "what was not used for long is not removed", "error", err)
	}
}

// takesAnyCommand reports whether c is the chain of a command that comes with each run.
func takesAnyCommand(c *chain.Chain) bool {
	if c == nil {
		return false
	}
	single, err := chain.Single(c.Name())
	return err == nil && single.Digest() == c.Digest()
}

// Result returns the result of a run, whatever its size.
func (e *Engine) Result(ctx context.Context, run string) (json.RawMessage, error) {
	view, err := e.Run(ctx, run)
	if err != nil {
		return nil, err
	}
	if view.State != predictor.RunSucceeded {
		return nil, web.Conflict("", "run %q is %s and has no result", run, view.State)
	}
	var result json.RawMessage
	err = e.temporal.GetWorkflow(ctx, run, "").Get(ctx, &result)
	if errors.Is(err, activities.ErrMissing) {
		return nil, web.Gone("run it again", "the result of run %q is gone: %s", run, cmp.Or(view.Notice, err.Error()))
	}
	if err != nil {
		return nil, fmt.Errorf("read the result of run %s: %w", run, err)
	}
	return result, nil
}
