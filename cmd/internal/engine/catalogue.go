package engine

import (
	"context"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/build"
)

// adoptEvery is how often it is tried again to serve what others do.
const adoptEvery = 5 * time.Second

// openCatalogue opens what servers know of each other's builds. There is none where this one can only be alone.
func (s *stores) openCatalogue() {
	if s.self.Alone != "" {
		return
	}
	s.catalogue = build.OpenCatalogue(build.CatalogueOptions{
		Shared: s.shared, Artifacts: s.store, Builds: s.builds, Chains: s.chains, Server: s.self.Origin,
		Failed: func(what string, err error) {
			s.logger.Warn("what another server has is not taken over", "what", what, "error", err)
		},
	})
}

// publish serves a build, at all servers.
func (a *apps) publish(ctx context.Context, app served) error {
	if err := a.catalogue.Share(ctx, app.App); err != nil {
		return err
	}
	a.publishing.Lock() // in between it is served here and by no word of the catalogue
	defer a.publishing.Unlock()
	if err := a.serve(ctx, app); err != nil {
		return err
	}
	return a.catalogue.Serve(ctx, app.Descriptor.Name, app.Digest)
}

// begin serves the apps that the engine was started with. As before means that nobody has said which: then what other
// servers serve counts.
func (a *apps) begin(ctx context.Context, apps []build.App, asBefore bool) error {
	named := map[string]bool{}
	for _, app := range apps {
		named[app.Descriptor.Name] = true
	}
	if !asBefore {
		if err := a.catalogue.Withdraw(ctx, func(app string) bool { return named[app] }); err != nil {
			return err
		}
	}
	current := a.catalogue.Current()
	for _, app := range apps {
		if _, others := current[app.Descriptor.Name]; asBefore && others {
			continue
		}
		if err := a.publish(ctx, served{App: app}); err != nil {
			return err
		}
	}
	a.adopt(ctx)
	return nil
}

// followOthers serves what other servers begin to serve, until ctx ends.
func (a *apps) followOthers(ctx context.Context) {
	if a.catalogue == nil {
		return
	}
	if err := a.catalogue.TakeIn(ctx, a.before(a.retention)); err != nil && ctx.Err() == nil {
		a.logger.WarnContext(ctx, "what this server has stored is not all known to the others", "error", err)
	}
	again := time.NewTicker(adoptEvery)
	defer again.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.catalogue.Changed():
		case <-again.C:
			if !failed {
				continue
			}
		}
		failed = !a.adopt(ctx)
	}
}

// adopt serves what other servers serve, and no longer what none does. It reports whether it could.
func (a *apps) adopt(ctx context.Context) bool {
	if a.catalogue == nil {
		return true
	}
	whole := a.adoptChains(ctx)
	wanted := a.leave(ctx)
	for name, now := range wanted {
		if a.isCurrent(buildID{name, now.Digest}) {
			continue
		}
		app, err := a.workers.builds.Get(ctx, name, now.Digest)
		if err == nil {
			err = a.serve(ctx, served{App: app})
		}
		if err == nil {
			a.logger.InfoContext(ctx, "serves what another server does", "app", name, "build", now.Digest)
			continue
		}
		whole = false
		if a.firstLeft(name, now.Digest) && ctx.Err() == nil {
			a.logger.WarnContext(ctx, "what another server serves is not served here; it is tried again", "app", name, "build",
				now.Digest, "error", err)
		}
	}
	return whole
}

// leave serves no app any more that no server serves, and returns what they do.
func (a *apps) leave(ctx context.Context) map[string]build.Served {
	a.publishing.Lock()
	defer a.publishing.Unlock()
	wanted := a.catalogue.Current()
	a.mu.Lock()
	defer a.mu.Unlock()
	var gone []string
	for name, app := range a.current {
		if _, others := wanted[name]; !others && app.chain == nil {
			gone = append(gone, name)
		}
	}
	if len(gone) > 0 {
		if err := a.change(ctx, nil, gone); err != nil {
			a.logger.WarnContext(ctx, "apps that no server serves any more are still served here", "apps", gone, "error", err)
		}
	}
	return wanted
}

// firstLeft reports whether it is told for the first time that a build cannot be served.
func (a *apps) firstLeft(name, digest string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left[name] == digest {
		return false
	}
	if a.left == nil {
		a.left = map[string]string{}
	}
	a.left[name] = digest
	return true
}

// adoptChains makes the chains known that other servers have put, and serves those that must be.
func (a *apps) adoptChains(ctx context.Context) bool {
	newest, err := a.chains.Newest()
	if err != nil {
		a.logger.WarnContext(ctx, "the chains of other servers are not known", "error", err)
		return false
	}
	a.mu.Lock()
	before := a.stored
	a.stored = map[string]served{}
	a.mu.Unlock()
	a.keepStored(ctx, newest)
	a.mu.Lock()
	defer a.mu.Unlock()
	var batch []served
	for name, app := range a.stored {
		now, serves := a.current[name]
		if app.Digest == before[name].Digest || serves && (now.chain == nil || now.Digest == app.Digest) {
			continue
		}
		if serves || app.isBound() {
			batch = append(batch, app)
		}
	}
	a.serveEach(ctx, batch)
	return true
}
