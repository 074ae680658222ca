package engine

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"

	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/sdk/worker"

	"github.com/spillway-ml/spillway/activities/autoscaler"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/workers/spawn"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// takeAgain is after how long it is tried again to take events.
const takeAgain = 2 * time.Second

// engineQueue is the task queue of what the engine itself runs on Temporal: the firings of schedules.
const engineQueue = "spillway-engine"

// front is what starts runs and steers them: the apps that are served, the trigger and the leader.
type front struct {
	*venues
	outside

	apps    *apps
	trigger *trigger.Trigger
	leader  *autoscaler.Leader
	inHand  inHand // what hosts elsewhere run

	attributes bool // runs bear search attributes
}

// openFront serves the apps, starts their runs for events, and takes part in who leads.
func openFront(ctx context.Context, v *venues) (*front, error) {
	f := &front{venues: v}
	var err error
	if f.outside, err = openOutside(ctx, v); err != nil {
		return nil, err
	}
	v.joined.Store(f.hosts)
	f.keepSessions()
	if err := f.startApps(ctx); err != nil {
		return nil, err
	}
	if err := f.startLeader(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

// startApps serves the apps, and starts their runs for events.
func (f *front) startApps(ctx context.Context) error {
	workers, err := f.startWorkers(ctx)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(f.life)
	f.onClose("workflow workers", func(context.Context) error {
		stop()
		workers.wait()
		return nil
	})
	f.apps = &apps{
		chains: f.chains, workers: workers, client: f.temporal, logger: f.logger, life: serving,
		secrets: f.config.Secrets, before: f.space.Ago, catalogue: f.catalogue, leads: f.lead.leads,
		retention: f.servers.Retention(),
		current:   map[string]served{}, stored: map[string]served{}, used: map[string]time.Time{},
	}
	f.trigger, err = trigger.New(trigger.Options{
		JetStream: f.stream, Starter: trigger.NewTemporalStarter(f.temporal, trigger.StarterOptions{
			Window: f.config.Policy.Window, Prices: f.prices(), Attributes: f.attributes,
			TeamOf: func(pipeline string) string { team, _ := f.config.Teams.Now().Owner(pipeline); return team },
		}),
		Permit:    f.permit,
		Scheduler: trigger.NewTemporalScheduler(f.temporal, engineQueue), Logger: f.logger, Wanted: f.apps.wanted,
		Remembered: f.servers.Retention(),
		Check:      f.apps.check, Lost: func(streams []string) { f.alert(alerting.StreamsLost(streams, f.config.Clock())) },
		Restored: func(keys []string) { f.alert(alerting.BindingsRestored(keys, f.config.Clock())) },
		Leads:    f.lead.leads, Taking: f.observer.taking,
	})
	if err != nil {
		return err
	}
	f.apps.trigger = f.trigger // each of the two calls the other
	if err := f.apps.begin(ctx, f.config.Apps, f.config.AppsAsBefore); err != nil {
		return err
	}
	if err := f.apps.serveStored(ctx); err != nil {
		return err
	}
	f.work("builds of other servers", func(ctx context.Context) error { f.apps.followOthers(ctx); return nil })
	f.work("teams", func(ctx context.Context) error { f.config.Teams.Follow(ctx, f.logger); return nil })
	f.work("old builds", func(ctx context.Context) error { f.apps.tidy(ctx); return nil })
	f.work("trigger", func(ctx context.Context) error {
		f.whileLeading(ctx, "take events", f.takeEvents)
		return nil
	})
	f.work("bindings that others make", func(ctx context.Context) error { f.trigger.Follow(ctx); return nil })
	return nil
}

// startWorkers opens what workflow workers are started with; none of them is yet.
func (f *front) startWorkers(ctx context.Context) (*workflowWorkers, error) {
	spawner, err := spawn.New(spawn.Options{})
	if err != nil {
		return nil, err
	}
	f.onClose("the starter of workflow workers", func(context.Context) error { spawner.Close(); return nil })
	behind, err := f.servers.DialTemporal()
	if err != nil {
		return nil, err
	}
	f.onClose("the connection behind the proxies of Temporal", func(context.Context) error { return behind.Close() })
	f.attributes = makeAttributes(ctx, operatorservice.NewOperatorServiceClient(behind), f.servers, f.logger)
	return &workflowWorkers{
		checks: &inputChecks{},
		builds: f.builds, spawner: spawner, admit: f.servers.own.AdmitBuild, behind: behind,
		namespace: f.servers.Namespace(), logger: f.logger,
		stop: map[buildID]context.CancelFunc{},
		chains: &chainWorkers{
			stored: f.chains, temporal: f.temporal, recorder: f.recorder, results: f.results,
			window: f.config.Policy.Window,
		},
		environment: []string{
			wire.ArtifactsEnvironment + "=" + f.store.local,
			wire.ResultsKeyEnvironment + "=" + hex.EncodeToString(f.servers.own.Keys().PublicKey()),
			wire.WindowEnvironment + "=" + strconv.Itoa(f.config.Policy.Window),
		},
	}, nil
}

// startLeader takes part in who leads the loop, and polls the engine's own queue.
func (f *front) startLeader(ctx context.Context) error {
	if err := autoscaler.EndLegacyWorkflow(ctx, f.temporal); err != nil {
		return err
	}
	lease, err := f.connectNATS("spillway lead")
	if err != nil {
		return err
	}
	f.leader, err = autoscaler.New(autoscaler.Options{
		JetStream: f.stream, LeaseJetStream: lease, Client: f.temporal, Namespace: f.servers.Namespace(),
		Plans: f.plans, HostPlans: f.plans, Hosts: f.livingHosts, Stages: f.stages,
		Follow: func(ctx context.Context, from uint64, handle func(uint64, time.Time, wire.Message) error) error {
			return loop.Follow(ctx, f.stream, from, &loop.FollowOptions{Logger: f.logger}, func(line loop.Line) error {
				return handle(line.Sequence, line.Stored, line.Message)
			})
		},
		Extent: func(ctx context.Context) (first, last uint64, err error) { return loop.Extent(ctx, f.stream) },
		Policy: f.config.Policy, Teams: f.config.Teams.Bounds, Functions: f.functions, Leading: f.leading,
		Server: f.self.ID, Following: func(string) { f.observer.following() },
		Failed: f.observer.metrics.CountLeaderFailure,
		Ticked: func(took autoscaler.Took) {
			f.observer.metrics.Ticked(took.Hosts, took.Decide, took.Post, took.Whole)
		},
		Now: f.config.Clock, Logger: f.logger,
	})
	if err != nil {
		return err
	}
	if err := f.leader.Prepare(ctx); err != nil {
		return err
	}
	f.led.Store(f.leader)
	f.lead.hearOf(f.leader.Deposed)
	engine := worker.New(f.temporal, engineQueue,
		worker.Options{DisableEagerActivities: true, WorkerStopTimeout: 2 * time.Second})
	trigger.RegisterSchedules(engine, f.stream)
	if err := engine.Start(); err != nil {
		return fmt.Errorf("poll the engine's queue: %w", err)
	}
	f.onClose("the engine's queue", func(context.Context) error { engine.Stop(); return nil })
	f.work("lead the loop", func(ctx context.Context) error { f.leader.Run(ctx); return nil })
	return nil
}

// stages are those that are served, with the queue that each team has of each: a team is one that was declared, or that
// somebody has a token of.
func (f *front) stages() []predictor.StageID {
	teams := map[string]bool{}
	for _, one := range f.config.Teams.Now() {
		teams[one.Name] = true
	}
	for _, one := range f.tokens.Issued() {
		teams[one.Team] = true
	}
	if f.signIn != nil {
		for _, name := range f.signIn.Teams() {
			teams[name] = true
		}
	}
	delete(teams, "") // whose queue each stage has
	stages := f.apps.stages()
	for _, stage := range slices.Clone(stages) {
		for team := range teams {
			stage.Team = team
			stages = append(stages, stage)
		}
	}
	return stages
}

// takeEvents starts runs for events, until ctx ends.
func (f *front) takeEvents(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.trigger.Run(ctx)
		if ctx.Err() != nil {
			return
		}
		f.logger.ErrorContext(ctx, "events start no runs; it is tried again", "error", err)
		wait.For(ctx, takeAgain)
	}
}

// leading is told when this server begins to lead, with its term, and with 0 when it ends to.
func (f *front) leading(term uint64) {
	f.observer.leading(term > 0)
	f.ledger.Lead(term)
	f.lead.set(term)
}
