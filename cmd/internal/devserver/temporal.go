package devserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/server/common/authorization"
	clusterconfig "go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/temporal"

	"github.com/spillway-ml/spillway/activities/wait"
)

const (
	// temporalStartTimeout bounds the start of Temporal: about 0.4 s on a quiet machine, many times that on a busy one.
	temporalStartTimeout = 60 * time.Second
	// probeTimeout bounds one try to learn whether Temporal is ready.
	probeTimeout = 2 * time.Second
	// firstPause and lastPause are the shortest and the longest pause between two tries.
	firstPause, lastPause = 5 * time.Millisecond, 200 * time.Millisecond
)

// temporalServer is the Temporal server: its four services in this process.
type temporalServer struct {
	address  string
	server   temporal.Server // nil before launch
	client   client.Client   // nil before launch
	db       *database
	fatal    *fatality
	stopping *atomic.Bool
	settings dynamicconfig.StaticClient
	gate     gate

	endGiving context.CancelFunc // nil before the database gives back room
	giving    sync.WaitGroup
}

// startTemporal starts Temporal on o.TemporalPort, behind gate, and returns once it starts workflows. A server that
// comes with an error was started in part and is to be stopped.
func startTemporal(ctx context.Context, o Options, gate gate) (*temporalServer, error) {
	ports, err := reserveTemporal(ctx, o.TemporalPort)
	if err != nil {
		return nil, err
	}
	defer ports.free()
	t := &temporalServer{
		address:  hostPort(ports.grpc.port),
		db:       newDatabase(o.Dir, o.SyncAlways),
		fatal:    &fatality{},
		stopping: &atomic.Bool{},
		settings: dynamicSettings(),
		gate:     gate,
	}
	if o.unfair {
		delete(t.settings, dynamicconfig.MatchingEnableFairness.Key())
	}
	if err := t.db.prepare(); err != nil {
		return nil, err
	}
	if err := t.fatal.run(func() error {
		return t.launch(ports, temporalLog{o.Logger, t.fatal, t.stopping})
	}); err != nil {
		return t, fmt.Errorf("start temporal in %s: %w", o.Dir, err)
	}
	t.client, err = client.NewLazyClient(client.Options{
		HostPort:  t.address,
		Namespace: Namespace,
		Logger:    log.NewStructuredLogger(slog.New(slog.DiscardHandler)),

		Credentials:       client.NewAPIKeyStaticCredentials(gate.keys.Token()),
		ConnectionOptions: client.ConnectionOptions{TLSDisabled: true}, // it does not leave this machine
	})
	if err == nil {
		err = t.awaitReady(ctx)
	}
	if err != nil {
		return t, fmt.Errorf("start temporal in %s: %w", o.Dir, err)
	}
	giving, end := context.WithCancel(context.WithoutCancel(ctx))
	t.endGiving = end
	t.giving.Go(func() { t.db.giveBack(giving, o.Logger) })
	return t, nil
}

// launch builds the server, which binds its ports, and starts its services.
func (t *temporalServer) launch(ports *temporalPorts, logger temporalLog) error {
	cfg := temporalConfig(ports, t.db)
	inner, err := innerTLS()
	if err != nil {
		return err
	}
	services := make([]string, 0, len(cfg.Services))
	hosts := make(map[primitives.ServiceName]static.Hosts)
	for name, service := range cfg.Services {
		services = append(services, name)
		hosts[primitives.ServiceName(name)] = static.SingleLocalHost(hostPort(service.RPC.GRPCPort))
	}
	ports.handOver()
	// What Temporal's own workers call the binary that they are of: the digest of a file this large takes a good part of
	// a start, and nobody asks for it.
	worker.SetBinaryChecksum("spillway")
	server, err := temporal.NewServer(
		temporal.WithConfig(cfg),
		temporal.ForServices(services),
		temporal.WithStaticHosts(hosts),
		temporal.WithLogger(logger),
		temporal.WithAuthorizer(t.gate),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper { return t.gate }),
		temporal.WithTLSConfigFactory(inner),
		temporal.WithDynamicConfigClient(t.settings),
	)
	if err != nil {
		return fmt.Errorf("build the server: %w", err)
	}
	t.server = server
	return server.Start()
}

// temporalConfig is the static configuration of one Temporal process with all services.
func temporalConfig(ports *temporalPorts, db *database) *config.Config {
	const store = "sqlite"
	cfg := &config.Config{}
	cfg.Global.Membership.MaxJoinDuration = 30 * time.Second
	cfg.Global.Membership.BroadcastAddress = loopback
	cfg.Persistence = config.Persistence{
		DefaultStore:     store,
		VisibilityStore:  store,
		NumHistoryShards: shards,
		DataStores:       map[string]config.DataStore{store: {SQL: db.cfg}},
	}
	cfg.ClusterMetadata = &clusterconfig.Config{
		FailoverVersionIncrement: 10,
		MasterClusterName:        cluster,
		CurrentClusterName:       cluster,
		ClusterInformation: map[string]clusterconfig.ClusterInformation{cluster: {
			Enabled:                true,
			InitialFailoverVersion: 1,
			RPCAddress:             hostPort(ports.grpc.port),
			ClusterID:              "spillway",
		}},
	}
	cfg.DCRedirectionPolicy.Policy = "noop"
	const off = "disabled"
	cfg.Archival.History.State, cfg.Archival.Visibility.State = off, off
	cfg.NamespaceDefaults.Archival.History.State, cfg.NamespaceDefaults.Archival.Visibility.State = off, off
	cfg.Services = map[string]config.Service{}
	for name, reserved := range map[primitives.ServiceName]*reservation{
		primitives.FrontendService:         ports.grpc,
		primitives.InternalFrontendService: ports.inner, // for Temporal's own workers, which cannot show a token
		primitives.HistoryService:          ports.history,
		primitives.MatchingService:         ports.matching,
		primitives.WorkerService:           ports.worker,
	} {
		cfg.Services[string(name)] = config.Service{RPC: config.RPC{BindOnIP: loopback, GRPCPort: reserved.port}}
	}
	return cfg
}

// dynamicSettings are the settings of Temporal that differ from its defaults, which are made for many hosts and
// tenants.
func dynamicSettings() dynamicconfig.StaticClient {
	const unlimited = 1_000_000 // a second; one machine comes nowhere near it
	return dynamicconfig.StaticClient{
		// A close of a run can be missed by a waiting client, which then learns of it only when its long poll ends: 20 s by
		// default.
		dynamicconfig.HistoryLongPollExpirationInterval.Key(): time.Second,
		// A worker that stops takes its open polls back; otherwise a task that arrives just then waits for its heartbeat
		// timeout.
		dynamicconfig.EnableCancelWorkerPollsOnShutdown.Key(): true,
		// A run that is blocked goes on soon after the code that can replay it is back (ten minutes by default), and is told
		// before that.
		dynamicconfig.WorkflowTaskRetryMaxInterval.Key():                               10 * time.Second,
		dynamicconfig.NumConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute.Key(): 2,
		// Bursts of tasks must wait for room in the pool, never for a rate limit.
		dynamicconfig.FrontendRPS.Key():                                         unlimited,
		dynamicconfig.FrontendMaxNamespaceRPSPerInstance.Key():                  unlimited,
		dynamicconfig.FrontendMaxNamespaceVisibilityRPSPerInstance.Key():        unlimited,
		dynamicconfig.FrontendMaxConcurrentLongRunningRequestsPerInstance.Key(): 100_000,
		dynamicconfig.MatchingRPS.Key():                                         unlimited,
		dynamicconfig.HistoryRPS.Key():                                          unlimited,
		dynamicconfig.FrontendPersistenceMaxQPS.Key():                           unlimited,
		dynamicconfig.MatchingPersistenceMaxQPS.Key():                           unlimited,
		dynamicconfig.HistoryPersistenceMaxQPS.Key():                            unlimited,
		dynamicconfig.VisibilityPersistenceMaxReadQPS.Key():                     unlimited,
		dynamicconfig.VisibilityPersistenceMaxWriteQPS.Key():                    unlimited,
		// Every task in flight of a run may ask it for more money at a time.
		dynamicconfig.WorkflowExecutionMaxInFlightUpdates.Key(): 1_000,
		dynamicconfig.WorkflowExecutionMaxTotalUpdates.Key():    10_000,
		// Who is not let in reads why.
		dynamicconfig.ExposeAuthorizerErrors.Key(): true,
		// A newly registered search attribute or endpoint is to be seen at once.
		dynamicconfig.ForceSearchAttributesCacheRefreshOnRead.Key(): true,
		dynamicconfig.ForceNexusEndpointRefreshOnRead.Key():         true,
		// One partition a task queue. More spread a queue over hosts, of which there is one here, and priorities order the
		// tasks of a partition only. It must not be lowered for an existing database: tasks in a partition that is no longer
		// read wait for ever.
		dynamicconfig.MatchingNumTaskqueueReadPartitions.Key():  1,
		dynamicconfig.MatchingNumTaskqueueWritePartitions.Key(): 1,
		// Tasks of one priority are served in turn by their fairness keys, which are their pipelines. What waits in the
		// queues of a database from before is served first; a server without it serves what waits in those of this one.
		dynamicconfig.MatchingEnableFairness.Key(): true,
		// Mutable states: one of a run of one stage takes about 25 kB, and the run one more entry while it starts. Those
		// that were used last are kept, so that a steady flow finds its runs there, and of a burst none is left five
		// minutes after it.
		dynamicconfig.HistoryCacheHostLevelMaxSize.Key(): historyEntries,
		dynamicconfig.HistoryCacheTTL.Key():              historyTTL,
		dynamicconfig.HistoryCacheBackgroundEvict.Key(): dynamicconfig.CacheBackgroundEvictSettings{
			Enabled: true, LoopInterval: historyTTL / 10, MaxEntryPerCall: historyEntries,
		},
		// Events for other clusters, of which there are none; 0 keeps none.
		dynamicconfig.XDCCacheMaxSizeBytes.Key(): 0,
		// Who starts the same ID again and again is slowed down; by default 10,000 IDs of each shard are remembered.
		dynamicconfig.BusinessIDReuseLimiterCacheSize.Key(): 500,
		// What a queue has done since it last wrote down how far it is, half a minute by default, is done again after a
		// start, which waits for the database meanwhile.
		dynamicconfig.TimerProcessorUpdateAckInterval.Key():      queueAck,
		dynamicconfig.TransferProcessorUpdateAckInterval.Key():   queueAck,
		dynamicconfig.VisibilityProcessorUpdateAckInterval.Key(): queueAck,
		// Goroutines that work off queues: 512 each by default, of which all but a few wait for the one connection to the
		// database.
		dynamicconfig.TimerProcessorSchedulerWorkerCount.Key():                  queueWorkers,
		dynamicconfig.TransferProcessorSchedulerWorkerCount.Key():               queueWorkers,
		dynamicconfig.VisibilityProcessorSchedulerWorkerCount.Key():             queueWorkers,
		dynamicconfig.ArchivalProcessorSchedulerWorkerCount.Key():               1,
		dynamicconfig.ReplicationProcessorSchedulerWorkerCount.Key():            1,
		dynamicconfig.ReplicationLowPriorityProcessorSchedulerWorkerCount.Key(): 1,
	}
}

const (
	// historyEntries and historyTTL bound the cache of mutable states, queueAck what a start does again of a queue, and
	// queueWorkers its goroutines.
	historyEntries = 512
	queueAck       = 5 * time.Second
	historyTTL     = 5 * time.Minute
	queueWorkers   = 64
)

// awaitReady waits until Temporal starts workflows.
func (t *temporalServer) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, temporalStartTimeout)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := t.probe(ctx)
		if err == nil || t.fatal.cause() != nil {
			return errors.Join(t.fatal.cause(), err)
		}
		if !wait.For(ctx, pause) {
			return fmt.Errorf("wait until it is ready: %w (the last try: %w)", ctx.Err(), err)
		}
	}
}

// probe asks for a workflow that does not exist. Temporal can say so only when the frontend serves, knows the
// namespace, and history has the shard of the workflow: the same that starting it would take. Each probe asks for
// another one, so that tries after a failed one are not all about one shard.
func (t *temporalServer) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if _, err := t.client.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
		return err
	}
	_, err := t.client.DescribeWorkflowExecution(ctx, fmt.Sprintf("spillway-probe-%016x", rand.Uint64()), "")
	if _, absent := errors.AsType[*serviceerror.NotFound](err); absent {
		return nil
	}
	return err
}

// check reports whether the frontend serves and no service has failed for good.
func (t *temporalServer) check(ctx context.Context) error {
	if err := t.fatal.cause(); err != nil {
		return err
	}
	_, err := t.client.CheckHealth(ctx, &client.CheckHealthRequest{})
	return err
}

// stop ends Temporal's services and leaves its database complete in one file.
func (t *temporalServer) stop(ctx context.Context) error {
	if t.endGiving != nil {
		t.endGiving()
		t.giving.Wait()
	}
	if t.client != nil {
		t.client.Close()
	}
	if t.server == nil {
		return nil
	}
	t.stopping.Store(true)
	fresh := &fatality{} // what failed before is no news now
	if err := await(ctx, "stop temporal", func() error { return fresh.run(t.server.Stop) }); err != nil {
		return err
	}
	return t.db.checkpoint()
}

// temporalPorts are the ports that Temporal is told to listen on: the frontend's and one for each inner service. The
// frontend has a second one, of HTTP, which is left out: it takes what any web page can make a browser send.
type temporalPorts struct {
	grpc, inner, history, matching, worker *reservation
}

// reserveTemporal reserves the ports, grpcPort for the frontend, or a free one for 0.
func reserveTemporal(ctx context.Context, grpcPort int) (*temporalPorts, error) {
	p := &temporalPorts{}
	var err error
	if p.grpc, err = reserve(ctx, grpcPort); err != nil {
		return nil, &PortError{Name: "temporal-port", Port: grpcPort, Err: err}
	}
	for _, r := range []**reservation{&p.inner, &p.history, &p.matching, &p.worker} {
		if *r, err = reserve(ctx, 0); err != nil {
			p.free()
			return nil, fmt.Errorf("find a free port for a service of temporal: %w", err)
		}
	}
	return p, nil
}

func (p *temporalPorts) all() []*reservation {
	return []*reservation{p.grpc, p.inner, p.history, p.matching, p.worker}
}

// handOver makes way for Temporal's listeners.
func (p *temporalPorts) handOver() {
	for _, r := range p.all() {
		r.handOver()
	}
}

// free ends the reservations that were made.
func (p *temporalPorts) free() {
	for _, r := range p.all() {
		if r != nil {
			r.free()
		}
	}
}
