package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/alerts"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/autoscaler"
	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/telemetry"
	"github.com/spillway-ml/spillway/activities/traces"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/devserver"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/agent"
	"github.com/spillway-ml/spillway/workers/function"
	"github.com/spillway-ml/spillway/workers/spawn"
	"github.com/spillway-ml/spillway/workers/spill"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// Engine is the embedded stack while it runs.
type Engine struct {
	config    Config
	addresses web.Addresses
	began     time.Time // when Start was called
	started   time.Time
	logger    *slog.Logger

	life      context.Context //nolint:containedctx // what the engine starts lives until Close, not as long as the call that starts it
	end       context.CancelFunc
	closing   context.Context //nolint:containedctx // of Close: as long as parts may take to end in good order
	hurry     context.CancelFunc
	working   sync.WaitGroup
	done      chan struct{}
	closeOnce sync.Once
	mu        sync.Mutex
	closers   []closer // guarded by mu: what Close has still to do, in the order in which things were started
	left      error    // what Close has met; to be read once done is closed
	err       error    // guarded by mu: why the engine ended by itself

	listener  net.Listener
	servers   *devserver.Server
	stream    jetstream.JetStream
	store     *artifact.Files
	temporal  client.Client
	plans     *loop.Plans
	leases    *loop.Leases
	recorder  *loop.Recorder
	results   *results.Results
	ledger    *ledgerstore.Store
	output    *logs.Writer
	builds    *build.Store
	chains    *build.Chains
	apps      *apps
	trigger   *trigger.Trigger
	agent     *agent.Agent
	observer  *observer
	leader    *autoscaler.Leader
	alerts    *alerts.Sender
	functions predictor.FunctionVenue
	local     *function.Host // nil when functions are off, or run elsewhere
}

// Start starts the embedded stack and returns once a run could be started.
func Start(ctx context.Context, config Config) (*Engine, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	closing, hurry := context.WithCancel(context.WithoutCancel(ctx))
	e := &Engine{
		config: config, logger: config.Logger, life: life, end: end, closing: closing, hurry: hurry, done: make(chan struct{}), began: time.Now(),
	}
	for _, step := range []func(context.Context) error{
		e.startServers, e.connect, e.prepareStores, e.startObserver, e.openAlerts, e.startPool, e.startFunctions,
		e.startApps, e.startLeader, e.startWatch, e.startAPI, e.awaitReady,
	} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, e.Close(context.WithoutCancel(ctx)))
		}
	}
	return e, nil
}

// now is the time by the engine's clock.
func (e *Engine) now() time.Time { return e.config.Clock() }

// HTTPAddress is the URL of the API.
func (e *Engine) HTTPAddress() string { return e.addresses.HTTP }

// Done is closed when the engine has ended.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Err is why the engine ended by itself.
func (e *Engine) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// engineQueue is the task queue of what the engine itself runs on Temporal: the firings of schedules.
const engineQueue = "spillway-engine"

// portTries is how often usual ports are chosen anew when another program takes one between the choice and its use.
const portTries = 3

func (e *Engine) startServers(ctx context.Context) error {
	listener, err := e.listen(ctx)
	if err != nil {
		return err
	}
	e.listener = listener
	e.addresses.HTTP = "http://" + listener.Addr().String()
	e.onClose("the port of the API", func(context.Context) error {
		if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	for try := 1; ; try++ {
		servers, err := e.startDevserver(ctx)
		var occupied *devserver.DirError
		if err != nil && e.config.Ports.Usual && try < portTries && !errors.As(err, &occupied) {
			e.logger.DebugContext(ctx, "start the servers again on other ports", "error", err)
			continue
		}
		if err != nil {
			return err
		}
		e.servers = servers
		e.addresses.Temporal, e.addresses.TemporalUI, e.addresses.NATS = servers.TemporalAddress(), servers.UIURL(), servers.NATSURL()
		e.onClose("the servers", func(context.Context) error { return servers.Close() })
		return nil
	}
}

// listen opens the port of the API: the one that was asked for, else the usual one while it is free, else any.
func (e *Engine) listen(ctx context.Context) (net.Listener, error) {
	open := func(port int) (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	port := e.config.Ports.HTTP
	if port == 0 && e.config.Ports.Usual {
		if listener, err := open(UsualHTTP); err == nil {
			return listener, nil
		}
	}
	listener, err := open(port)
	if err != nil {
		return nil, fmt.Errorf("listen on port %d for the API: %w; choose another with --http-port", port, err)
	}
	return listener, nil
}

func (e *Engine) startDevserver(ctx context.Context) (*devserver.Server, error) {
	ports := e.config.Ports
	if ports.Usual {
		for _, port := range []struct {
			chosen *int
			usual  int
		}{{&ports.Temporal, UsualTemporal}, {&ports.UI, UsualUI}, {&ports.NATS, UsualNATS}} {
			if *port.chosen != 0 {
				continue
			}
			free, _, err := devserver.ChoosePort(ctx, port.usual)
			if err != nil {
				return nil, err
			}
			*port.chosen = free
		}
	}
	return devserver.Start(ctx, devserver.Options{
		Dir: e.config.StateDir, TemporalPort: ports.Temporal, UIPort: ports.UI, NATSPort: ports.NATS, NoUI: e.config.NoUI, Logger: e.logger,
		// What a killed engine has left must not make anybody show a token at a port that is not this engine's.
		Locked: func() error { return web.RemoveStackFile(e.config.StateDir) },
	})
}

func (e *Engine) connect(ctx context.Context) error {
	var err error
	if e.stream, err = e.connectNATS("spillway"); err != nil {
		return err
	}
	if e.store, err = artifact.Open(e.artifactDir()); err != nil {
		return err
	}
	if err = e.admitStages(ctx); err != nil {
		return err
	}
	e.temporal, err = client.DialContext(ctx, client.Options{
		HostPort:        e.addresses.Temporal,
		Logger:          sdklog.NewStructuredLogger(e.logger),
		ExternalStorage: artifact.Offload(e.store, artifact.OffloadThreshold),

		Credentials:       client.NewAPIKeyStaticCredentials(e.servers.Keys().Token()),
		ConnectionOptions: client.ConnectionOptions{TLSDisabled: true}, // it does not leave this machine
	})
	if err != nil {
		return fmt.Errorf("connect to Temporal at %s: %w", e.addresses.Temporal, err)
	}
	e.onClose("the connection to Temporal", func(context.Context) error { e.temporal.Close(); return nil })
	return nil
}

// connectNATS returns JetStream on a connection of its own.
func (e *Engine) connectNATS(name string) (jetstream.JetStream, error) {
	connection, err := nats.Connect("", nats.InProcessServer(e.servers.NATSInProcess()), nats.MaxReconnects(-1), nats.Name(name),
		nats.CustomInboxPrefix("_INBOX_engine")) // builds of earlier versions read _INBOX
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	e.onClose("the connection to NATS of "+name, func(context.Context) error { connection.Close(); return nil })
	stream, err := jetstream.New(connection)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return e.servers.Streams(stream), nil
}

func (e *Engine) artifactDir() string { return filepath.Join(e.config.StateDir, "artifacts") }

func (e *Engine) artifactsURL() string { return artifact.URL(e.artifactDir()) }

func (e *Engine) prepareStores(ctx context.Context) (err error) {
	if err = ensureStores(ctx, e.stream); err != nil {
		return err
	}
	keys := e.servers.Keys()
	e.results = results.New(e.stream, e.store, results.Signing{Public: keys.PublicKey(), Sign: keys.Sign})
	e.output = logs.NewWriter(e.stream, logs.WriterOptions{Logger: e.logger})
	e.ledger, err = ledgerstore.Open(ctx, ledgerstore.Path(e.config.StateDir), &ledgerstore.Options{Logger: e.logger})
	if err != nil {
		return err
	}
	e.onClose("the ledger", func(context.Context) error { return e.ledger.Close() })
	if e.plans, err = loop.NewPlans(ctx, e.stream, e.logger); err != nil {
		return err
	}
	if e.leases, err = loop.NewLeases(ctx, e.stream, e.logger); err != nil {
		return err
	}
	e.builds, e.chains = build.NewStore(e.config.StateDir, nil), build.NewChains(e.config.StateDir)
	return nil
}

func (e *Engine) startObserver(ctx context.Context) error {
	metrics := telemetry.NewMetrics()
	e.recorder = loop.NewRecorder(e.stream, &loop.RecorderOptions{Logger: e.logger, Dropped: metrics.CountDropped})
	e.onClose("the recorder", e.recorder.Close)
	first, last, err := loop.Extent(ctx, e.stream)
	if err != nil {
		return err
	}
	e.observer = newObserver(metrics, !e.config.NoMetrics, extent{first, last}, e.logger)
	if err := e.startTraces(ctx); err != nil {
		return err
	}
	e.work("follow the loop", func(ctx context.Context) error { return loop.Follow(ctx, e.stream, 0, e.observer.apply, e.logger) })
	e.work("keep the ledger", func(ctx context.Context) error { return e.ledger.Keep(ctx, e.stream) })
	e.work("watch the plan", func(ctx context.Context) error {
		return e.plans.Watch(ctx, func(plan predictor.Plan) { e.observer.obey(ctx, plan) })
	})
	return nil
}

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
			case <-e.life.Done():
				return errors.New("the engine was closed while it started")
			case <-e.done:
				return e.Err()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	e.logger.InfoContext(ctx, "ready", "after", time.Since(e.began))
	return nil
}

// startTraces sends what passes through the loop as traces, where somebody wants them.
func (e *Engine) startTraces(ctx context.Context) error {
	if e.config.Traces.Endpoint == "" {
		return nil
	}
	options := e.config.Traces
	options.Since, options.Logger = time.Now(), e.logger
	tracer, err := traces.New(ctx, options)
	if err != nil {
		return err
	}
	e.observer.tracer = tracer
	e.onClose("traces", func(ctx context.Context) error {
		if err := tracer.Close(ctx); err != nil { // a collector that is away is no failure of the engine
			e.logger.WarnContext(ctx, "the last spans are lost", "error", err)
		}
		return nil
	})
	return nil
}

// hostName is the name of this host.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}

func (e *Engine) startPool(context.Context) (err error) {
	host := hostName()
	e.agent, err = agent.New(agent.Options{
		Host: host, StateDir: e.config.StateDir, Enforcement: e.config.Limits, Capacity: quantity.Size{Memory: e.config.PoolMemory},
		Client: e.temporal, CPUs: e.config.PoolCPUs, PricePerHour: e.config.HostPrice, ArtifactsURL: e.artifactsURL(),
		User: e.config.StageUser, Builds: stageBuilds{e.builds, e.config.StageUser},
		Store: e.store, Declared: e.declared, Recorder: e.recorder, Results: e.results, Plans: e.plans, Output: e.openOutput,
		Inventory: e.leases.PutHost, Held: e.recorder.Held, Started: e.recorder.Started,
		Now: e.config.HostClock, Logger: e.logger,
	})
	if err != nil {
		return err
	}
	e.onClose("the lease of this host", func(ctx context.Context) error { return e.leases.DropHost(ctx, host) })
	e.work("pool", e.agent.Run)
	return nil
}

// openOutput takes what an attempt prints.
func (e *Engine) openOutput(source wire.LogSource) activities.Output { return e.output.Attempt(source) }

// prices are those in force on this engine.
func (e *Engine) prices() *wire.Prices {
	host := e.agent.Host()
	prices := wire.Prices{HostPerHour: host.PricePerHour, HostCapacity: host.Capacity}
	if e.functions.Enabled {
		prices.FunctionPerGiBSecond, prices.FunctionPerRequest = e.functions.PerGiBSecond, e.functions.PerRequest
	}
	return &prices
}

// startApps serves the apps, and starts their runs for events.
func (e *Engine) startApps(ctx context.Context) error {
	workers, err := e.startWorkers()
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(e.life)
	e.onClose("workflow workers", func(context.Context) error {
		stop()
		workers.wait()
		return nil
	})
	e.apps = &apps{
		chains: e.chains, workers: workers, client: e.temporal, logger: e.logger, life: serving,
		current: map[string]served{}, stored: map[string]served{}, used: map[string]time.Time{},
	}
	e.trigger, err = trigger.New(trigger.Options{
		JetStream: e.stream, Starter: trigger.NewTemporalStarter(e.temporal, e.config.Policy.Window, e.prices()),
		Scheduler: trigger.NewTemporalScheduler(e.temporal, engineQueue), Logger: e.logger, Wanted: e.apps.wanted,
		Check: e.apps.check, Lost: func(streams []string) { e.alert(alerting.StreamsLost(streams, e.now())) },
	})
	if err != nil {
		return err
	}
	e.apps.trigger = e.trigger // each of the two calls the other
	for _, app := range e.config.Apps {
		if err := e.apps.serve(ctx, served{App: app}); err != nil {
			return err
		}
	}
	if err := e.serveStoredChains(ctx); err != nil {
		return err
	}
	e.work("old builds", func(ctx context.Context) error { e.apps.tidy(ctx); return nil })
	e.work("trigger", e.trigger.Run)
	e.work("count events", func(ctx context.Context) error { e.countEvents(ctx); return nil })
	e.work("runs that need somebody", func(ctx context.Context) error { e.noticeRuns(ctx); return nil })
	return nil
}

// startWorkers opens what workflow workers are started with; none of them is yet.
func (e *Engine) startWorkers() (*workflowWorkers, error) {
	spawner, err := spawn.New(spawn.Options{})
	if err != nil {
		return nil, err
	}
	e.onClose("the starter of workflow workers", func(context.Context) error { spawner.Close(); return nil })
	doors, err := e.servers.DialTemporal()
	if err != nil {
		return nil, err
	}
	e.onClose("the connection behind the doors to Temporal", func(context.Context) error { return doors.Close() })
	return &workflowWorkers{
		checks: &inputChecks{},
		builds: e.builds, spawner: spawner, admit: e.servers.AdmitBuild, doors: doors, logger: e.logger, stop: map[buildID]context.CancelFunc{},
		chains: &chainWorkers{stored: e.chains, temporal: e.temporal, recorder: e.recorder, results: e.results, window: e.config.Policy.Window},
		environment: []string{
			wire.ArtifactsEnvironment + "=" + e.artifactsURL(),
			wire.ResultsKeyEnvironment + "=" + hex.EncodeToString(e.servers.Keys().PublicKey()),
			wire.WindowEnvironment + "=" + strconv.Itoa(e.config.Policy.Window),
		},
	}, nil
}

func (e *Engine) startLeader(ctx context.Context) error {
	if err := autoscaler.EndLegacyWorkflow(ctx, e.temporal); err != nil {
		return err
	}
	lease, err := e.connectNATS("spillway lead")
	if err != nil {
		return err
	}
	e.leader, err = autoscaler.New(autoscaler.Options{
		JetStream: e.stream, LeaseJetStream: lease, Client: e.temporal, Board: e.plans, Hosts: e.leases.Hosts, Stages: e.apps.stages,
		Follow: func(ctx context.Context, from uint64, handle func(uint64, wire.Message) error) error {
			return loop.Follow(ctx, e.stream, from, handle, e.logger)
		},
		Extent: func(ctx context.Context) (first, last uint64, err error) { return loop.Extent(ctx, e.stream) },
		Policy: e.config.Policy, Functions: e.functions, Leading: e.observer.leading, Failed: e.observer.metrics.CountLeaderFailure,
		Now: e.now, Logger: e.logger,
	})
	if err != nil {
		return err
	}
	engine := worker.New(e.temporal, engineQueue, worker.Options{DisableEagerActivities: true, WorkerStopTimeout: 2 * time.Second})
	trigger.RegisterSchedules(engine, e.stream)
	if err := engine.Start(); err != nil {
		return fmt.Errorf("poll the engine's queue: %w", err)
	}
	e.onClose("the engine's queue", func(context.Context) error { engine.Stop(); return nil })
	e.work("lead the loop", func(ctx context.Context) error { e.leader.Run(ctx); return nil })
	return nil
}

func (e *Engine) startAPI(context.Context) error {
	var metrics http.Handler
	if !e.config.NoMetrics {
		metrics = e.observer.metrics.Handler()
	}
	server := web.New(web.Options{
		Engine: e, Keys: e.servers.Keys(), Page: web.NewPage(), Artifacts: e.store, Feed: &e.observer.feed, Ready: e.observer.whole, Metrics: metrics, Logger: e.logger,
		ArtifactsMax: e.config.ArtifactsMax, ArtifactsUsage: func() (quantity.Bytes, error) {
			used, err := e.store.Usage()
			return quantity.Bytes(used), err
		},
	})
	e.started = time.Now()
	e.working.Go(func() {
		if err := server.Serve(e.listener); err != nil {
			e.fail(err)
		}
	})
	e.onClose("the API", server.Close)
	file := web.StackFile{HTTP: e.addresses.HTTP, PID: os.Getpid(), Version: e.config.Version, StartedAt: e.started}
	if err := file.Write(e.config.StateDir); err != nil {
		return err
	}
	e.onClose("the file of the stack", func(context.Context) error { return web.RemoveStackFile(e.config.StateDir) })
	return nil
}

func (e *Engine) startFunctions(ctx context.Context) error {
	if !e.config.Functions.Enabled {
		return nil
	}
	functions, err := e.openFunctions(ctx)
	if err != nil {
		return err
	}
	spilling, err := spill.New(spill.Options{
		Host: hostName(), StateDir: e.config.StateDir, Client: e.temporal, Functions: functions, Recorder: e.recorder, Started: e.recorder.Started,
		Results: e.results, Plans: e.plans, Venue: e.functions, Output: e.openOutput, Now: e.config.HostClock, Logger: e.logger,
	})
	if err != nil {
		return err
	}
	e.work("spill", spilling.Run)
	return nil
}
