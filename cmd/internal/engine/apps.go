package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/secrets"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// apps knows which builds are served: the current one of each app, for new runs, and older ones as long as a run needs
// them. A chain that no event can reach by a subject of its own is served when a run of it is wanted, and until it was
// idle for a while.
type apps struct {
	chains  *build.Chains
	workers *workflowWorkers
	trigger *trigger.Trigger
	client  client.Client
	logger  *slog.Logger
	secrets secrets.Directory
	// before says since when things have not aged by more than that: see space.Collector.Before.
	before func(age time.Duration) time.Time
	// catalogue is what other servers have of it; nil where there is none.
	catalogue *build.Catalogue
	// leads says whether this server leads, which alone forgets what nobody needs.
	leads func() bool
	// retention is for how long Temporal keeps closed runs.
	retention time.Duration
	//nolint:containedctx // workers live as long as the engine serves, not as long as the call that starts them
	life context.Context

	publishing sync.Mutex // held while an app is served here and at all servers

	mu      sync.Mutex
	current map[string]served    // guarded by mu: by the app's name
	stored  map[string]served    // guarded by mu: the newest chain of each name, served or not
	used    map[string]time.Time // guarded by mu: when a chain that is served was last wanted
	left    map[string]string    // guarded by mu: digests, by name, of what others serve and this server cannot
	tidied  bool                 // guarded by mu: the workers of old builds whose runs go on are kept by now
}

// served is a build that new runs start with.
type served struct {
	build.App

	chain *chain.Chain // nil for a binary
}

// serve makes these the builds that new runs of their pipelines start with: all or none.
func (a *apps) serve(ctx context.Context, batch ...served) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.change(ctx, batch, nil)
}

// change makes the builds of batch current, and those of the apps in gone no longer: all or nothing. The caller holds
// mu.
func (a *apps) change(ctx context.Context, batch []served, gone []string) error {
	before := a.current
	a.current = maps.Clone(before)
	for _, name := range gone {
		delete(a.current, name)
	}
	changed := len(gone) > 0
	var names []string
	for _, app := range batch {
		name := app.Descriptor.Name
		if err := a.admit(app); err != nil {
			a.current = before
			return err
		}
		changed = changed || app.chain == nil || a.current[name].Digest != app.Digest
		names = append(names, name)
		a.current[name] = app
	}
	if changed {
		if err := a.trigger.SetTargets(ctx, a.targets()); err != nil {
			a.current = before
			if errors.Is(err, trigger.ErrRefused) {
				return web.Conflict("change what starts its runs", "serve app %s: %v", strings.Join(names, ", "), err)
			}
			return fmt.Errorf("serve app %s: %w", strings.Join(names, ", "), err)
		}
	}
	for _, app := range batch {
		a.workers.keep(a.life, buildID{app.Descriptor.Name, app.Digest})
		if app.chain != nil {
			a.stored[app.Descriptor.Name] = app
			a.use(ctx, app)
		}
	}
	return nil
}

// admit refuses an app that has the name or a pipeline of another. The caller holds mu.
func (a *apps) admit(app served) error {
	name := app.Descriptor.Name
	if err := checkSecrets(a.secrets, app.Descriptor); err != nil {
		return err
	}
	before, had := a.current[name]
	if !had && app.chain != nil { // a chain that is not served now keeps its name among chains, but yields it to an app
		before, had = a.stored[name]
	}
	if had {
		if err := replaceable(before, app); err != nil {
			return err
		}
	}
	pipelines := map[string]string{}
	for name, other := range a.current {
		for _, pipeline := range other.Descriptor.Pipelines {
			pipelines[pipeline.Name] = name
		}
	}
	for _, pipeline := range app.Descriptor.Pipelines {
		if owner, taken := pipelines[pipeline.Name]; taken && owner != name {
			return web.Conflict("rename one of them; a command takes --name",
				"pipeline %q of app %q is served by app %q already", pipeline.Name, name, owner)
		}
	}
	return nil
}

// replaceable refuses an app that has the name of another and is no newer build of it.
func replaceable(before, app served) error {
	name := app.Descriptor.Name
	switch {
	case (before.chain == nil) != (app.chain == nil):
		return web.Conflict("rename one of them; a command takes --name",
			"the name %q is that of an app that is served already", name)
	case takesAnyCommand(app.chain) && !takesAnyCommand(before.chain):
		return web.Conflict("give the command another name with --name",
			"the name %q is that of a chain that is served already", name)
	default:
		return nil
	}
}

// check asks the code of a run's pipeline whether it takes the input (see trigger.Options.Check). A chain's is the
// engine's own.
func (a *apps) check(ctx context.Context, start trigger.Start) error {
	a.mu.Lock()
	app := a.current[start.App]
	a.mu.Unlock()
	if app.chain == nil || app.Digest != start.Build {
		return a.workers.checks.check(ctx, start)
	}
	if err := app.chain.CheckInput(start.Input); err != nil {
		return trigger.Refuse("input of pipeline %s: %s", start.Pipeline, err)
	}
	return nil
}

// targets are the pipelines that events may start. The caller holds mu.
func (a *apps) targets() []trigger.Target {
	var targets []trigger.Target
	for _, app := range a.current {
		for _, pipeline := range app.Descriptor.Pipelines {
			targets = append(targets, trigger.Target{
				App: app.Descriptor.Name, Build: app.Digest, Version: app.Descriptor.WorkflowVersion, Pipeline: pipeline,
			})
		}
	}
	slices.SortFunc(targets, func(x, y trigger.Target) int { return cmp.Compare(x.Pipeline.Name, y.Pipeline.Name) })
	return targets
}

// list describes the builds that new runs start with: those that are served, and the chains that are when they are
// wanted.
func (a *apps) list() []web.App {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []web.App
	for _, app := range a.current {
		all = append(all, describeApp(app))
	}
	for _, app := range a.waiting() {
		if !takesAnyCommand(app.chain) { // its command comes with a run, which serves it
			all = append(all, describeApp(app))
		}
	}
	slices.SortFunc(all, func(x, y web.App) int { return cmp.Compare(x.Name, y.Name) })
	return all
}

// describeApp describes an app that new runs start with.
func describeApp(app served) web.App {
	return web.App{App: app.Descriptor, Build: app.Digest, Path: app.Path, Chain: app.chain != nil, Current: true}
}

// stages lists the stages of all builds that are served.
func (a *apps) stages() []predictor.StageID {
	a.mu.Lock()
	defer a.mu.Unlock()
	var stages []predictor.StageID
	for _, app := range a.current {
		for _, stage := range app.Descriptor.Stages {
			stages = append(stages, predictor.StageID{App: app.Descriptor.Name, Build: app.Digest, Name: stage.Name})
		}
	}
	return stages
}

// running lists the builds whose tasks may run: those that new runs start with, and old ones whose runs go on.
func (a *apps) running() []buildID {
	all := a.workers.kept()
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, app := range a.current {
		if id := (buildID{name, app.Digest}); !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

// isCurrent reports whether new runs start with id.
func (a *apps) isCurrent(id buildID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current[id.app].Digest == id.build
}

// live lists the digests of the builds whose tasks may run: those that new runs start with, and old ones whose runs go
// on. These are known once the runs that go on were listed.
func (a *apps) live() (digests []string, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	builds := map[string]bool{}
	for _, app := range a.current {
		builds[app.Digest] = true
	}
	for _, id := range a.workers.kept() {
		builds[id.build] = true
	}
	return append([]string{}, slices.Sorted(maps.Keys(builds))...), a.tidied
}

// tidyEvery is how often workers of old builds are looked at.
const tidyEvery = 15 * time.Second

// tidy keeps the workers of old builds while their runs go on and stops them after, and serves the chains that are
// needed, until ctx ends.
func (a *apps) tidy(ctx context.Context) {
	ticker := time.NewTicker(tidyEvery)
	defer ticker.Stop()
	for first := true; ; first = false {
		needed, err := a.needed(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			a.logger.DebugContext(ctx, "list the builds that runs need", "error", err)
		default:
			a.tend(ctx, needed)
			if !first { // by now the trigger knows all bindings, and what they need is served
				a.forget(ctx, needed)
			}
			for id := range needed {
				a.workers.keep(a.life, id)
				if err := a.catalogue.Use(ctx, id.app, id.build); err != nil {
					a.logger.DebugContext(ctx, "the use of a build is not noted", "build", id.String(), "error", err)
				}
			}
			for _, id := range a.workers.kept() {
				if !needed[id] && !a.isCurrent(id) {
					a.workers.drop(id)
				}
			}
			a.mu.Lock()
			a.tidied = true
			a.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// needed lists the builds of runs that go on.
func (a *apps) needed(ctx context.Context) (map[buildID]bool, error) {
	needed := map[buildID]bool{}
	var page []byte
	for {
		answer, err := a.client.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			Query: "ExecutionStatus = 'Running'", PageSize: 1000, NextPageToken: page,
		})
		if err != nil {
			return nil, fmt.Errorf("list running workflows: %w", err)
		}
		for _, execution := range answer.GetExecutions() {
			if app, digest, found := wire.ParseWorkflowQueue(execution.GetTaskQueue()); found {
				needed[buildID{app, digest}] = true
			}
		}
		if page = answer.GetNextPageToken(); len(page) == 0 {
			return needed, nil
		}
	}
}

// Register serves the stored build whose executable is path.
func (e *Engine) Register(ctx context.Context, path string) (web.App, error) {
	stored, err := e.builds.List()
	if err != nil {
		return web.App{}, err
	}
	i := slices.IndexFunc(stored, func(app build.App) bool { return filepath.Clean(app.Path) == filepath.Clean(path) })
	if i < 0 {
		return web.App{}, web.Invalid("build it first: spillway dev --app DIR", "no stored build has its executable at %s",
			path)
	}
	app := served{App: stored[i]}
	if err := e.apps.publish(ctx, app); err != nil {
		return web.App{}, err
	}
	return describeApp(app), nil
}
