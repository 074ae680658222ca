package engine

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"go.temporal.io/sdk/converter"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Engine is the embedded stack while it runs.
type Engine struct {
	*front

	began   time.Time // when Start was called
	started time.Time // when the API was served
}

// Start starts the embedded stack and returns once a run could be started.
func Start(ctx context.Context, config Config) (*Engine, error) {
	e := &Engine{began: time.Now()}
	boundMemory()
	life := newLifecycle(ctx, config.Logger)
	if err := life.start(ctx, func(ctx context.Context) error { return e.open(ctx, life, &config) }); err != nil {
		return nil, err
	}
	return e, nil
}

// open opens the parts.
func (e *Engine) open(ctx context.Context, life *lifecycle, config *Config) error {
	opened := func(part string) {
		config.Logger.DebugContext(ctx, "opened", "part", part, "after", time.Since(e.began))
	}
	database, err := openDatabase(ctx, life, config)
	if err != nil {
		return err
	}
	base, err := openBase(ctx, life, config)
	if err != nil {
		return err
	}
	opened("base")
	stores, err := openStores(ctx, base, database)
	if err != nil {
		return err
	}
	opened("stores")
	reports, err := openReports(ctx, stores)
	if err != nil {
		return err
	}
	opened("reports")
	venues, err := openVenues(ctx, reports)
	if err != nil {
		return err
	}
	opened("venues")
	if e.front, err = openFront(ctx, venues); err != nil {
		return err
	}
	opened("front")
	life.work("count events", func(ctx context.Context) error { e.countEvents(ctx); return nil })
	life.work("runs that need somebody", func(ctx context.Context) error { e.noticeRuns(ctx); return nil })
	life.work("give space back", func(ctx context.Context) error {
		e.whileLeading(ctx, "give space back", e.giveSpaceBack)
		return nil
	})
	life.work("superseded checkpoints", func(ctx context.Context) error {
		e.whileLeading(ctx, "superseded checkpoints", e.hearSuperseded)
		return nil
	})
	life.work("hosts elsewhere", func(ctx context.Context) error { e.watchHosts(ctx); return nil })
	life.work("hosts that stopped", func(ctx context.Context) error {
		e.whileLeading(ctx, "hosts that stopped", e.noteStopped)
		return nil
	})
	life.work("watch over runs", func(ctx context.Context) error {
		e.whileLeading(ctx, "watch over runs", e.watchOver)
		return nil
	})
	life.work("look ahead", func(ctx context.Context) error { e.lookAhead(ctx); return nil })
	if err := e.startAPI(ctx); err != nil {
		return err
	}
	life.work("the list of servers", func(ctx context.Context) error { e.tellServers(ctx); return nil })
	return e.awaitReady(ctx)
}

// now is the time by the engine's clock.
func (e *Engine) now() time.Time { return e.config.Clock() }

// HTTPAddress is the URL of the API.
func (e *Engine) HTTPAddress() string { return e.addresses.HTTP }

// tellEvery is how often those who wait for the start of the engine are told how far it is.
const tellEvery = time.Second

// awaitReady returns once all that happened before was taken in and the leader has decided what is in force.
func (e *Engine) awaitReady(ctx context.Context) error {
	ticker := time.NewTicker(tellEvery)
	defer ticker.Stop()
	for _, step := range []<-chan struct{}{e.observer.caughtUp, e.observer.planned} {
		for waiting := true; waiting; {
			select {
			case <-step:
				waiting = false
			case <-ticker.C:
				if err := e.observer.starting(); err != nil && e.config.Starting != nil {
					e.config.Starting(err.Error())
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	e.logger.InfoContext(ctx, "ready", "after", time.Since(e.began))
	return nil
}

// startAPI serves the API and the page.
func (e *Engine) startAPI(ctx context.Context) error {
	var metrics http.Handler
	if !e.config.NoMetrics {
		metrics = e.observer.metrics.Handler()
	}
	codec, err := converter.NewPayloadHTTPHandler(converter.PayloadHTTPHandlerOptions{
		PostStorageCodecs: []converter.PayloadCodec{e.servers.codec},
		ExternalStorage:   artifact.Offload(e.store, artifact.OffloadThreshold),
	})
	if err != nil {
		return fmt.Errorf("open the codec of payloads: %w", err)
	}
	server := web.New(web.Options{
		Engine: e, Keys: e.servers.own.Keys(), Tokens: e.tokens, Sessions: e.sessions, SignIn: e.signIn,
		Teams: e.config.Teams, Names: e.names(), HostOf: e.hosts.Of,
		Hosts: e.hostsHandler(),
		Page:  web.NewPage(), Artifacts: sentArtifacts{e.store}, Feed: &e.observer.feed, Codec: codec,
		Ready: e.observer.whole, Metrics: metrics, Logger: e.logger,
		ArtifactsMax: e.config.ArtifactsMax, ArtifactsUsage: func() (quantity.Bytes, error) {
			used, err := e.store.Usage(context.Background())
			return quantity.Bytes(used), err
		},
	})
	e.started = time.Now()
	e.onClose("the API", server.Close)
	if err := e.startEdge(ctx, server); err != nil {
		return err
	}
	e.working.Go(func() { // its addresses are known by now
		if err := server.Serve(e.listener); err != nil {
			e.fail(err)
		}
	})
	file := web.StackFile{HTTP: e.addresses.HTTP, PID: os.Getpid(), Version: e.config.Version, StartedAt: e.started}
	if err := file.Write(e.config.StateDir); err != nil {
		return err
	}
	e.onClose("the file of the stack", func(context.Context) error { return web.RemoveStackFile(e.config.StateDir) })
	return nil
}
