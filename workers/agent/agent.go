// Package agent owns one host: its children, their sizes and who is admitted.
//
// It obeys the plan's placements for its host: each placed stage is polled with as many slots as the plan says. An
// attempt is sized when it arrives, waits its turn until the host has that much room, runs in a child process of the
// user's build, or as a command, and gives the room back. Sizes are reserved, told to the child's runtime and held by
// the kernel where the host offers that.
package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/spawn"
)

const (
	defaultSampleEvery = time.Second
	defaultDrain       = 10 * time.Second
	defaultReady       = 30 * time.Second
	// availableShare is the part of the host's available memory that children get when no capacity is set; the rest is for
	// the engine, the page cache and what attempts take above their sizes.
	availableShare = 0.8
	// inventoryEvery is how often the host describes itself at least; inventoryPause how often at most.
	inventoryEvery = time.Second
	inventoryPause = 100 * time.Millisecond
	// lastWord bounds how long the agent tries to tell that it has nothing in hand any more.
	lastWord = time.Second
	// idlePerCPU bounds the idle children that are kept.
	idlePerCPU = 2
)

// Agent runs attempts on one host. All methods may be called concurrently.
type Agent struct {
	id         string
	base       quantity.Size // the capacity without GPUs
	cpus       []int
	price      quantity.Money // without GPUs
	gpuPrice   func(class string) quantity.Money
	recorder   activities.Recorder
	keeper     slot.Keeper
	declared   slot.Declared
	secrets    slot.Secrets
	superseded func(proof string, older []activities.Ref, made time.Time)
	plans      activities.Plans
	output     func(wire.LogSource) activities.Output
	inventory  func(context.Context, predictor.Host) error
	fence      *fence
	fenced     func(bool)
	remote     bool
	draining   atomic.Bool // it takes no more tasks, and ends when it runs none
	diskFull   atomic.Bool // see lookAtDisk
	disk       struct {
		sync.Mutex
		until time.Time // it counts as full; guarded by the mutex
	}
	inHand      func(context.Context, string, int, []slot.Taken) error
	held        func(context.Context, predictor.HostHeld) error
	started     func(context.Context, predictor.HostStarted) error
	sampleEvery time.Duration
	drain       time.Duration
	logger      *slog.Logger
	now         func() time.Time

	enforcer  *enforce.Enforcer
	client    client.Client
	journal   *slot.Journal
	commands  command.Options
	admission *admission
	gpus      *gpus
	children  *children
	gangs     gangs
	assists   chan struct{} // holds one for each program that prepares an attempt
	board     *slot.Board
	changed   chan struct{} // the inventory is out of date

	mu        sync.Mutex
	lacks     map[build]string                           // the builds that this host cannot run, and why
	instance  string                                     // of this start, or since it was fenced last
	sizings   map[predictor.StageID]predictor.Sizing     // of the stages that are placed here
	trainings map[predictor.StageID][]predictor.Training // of the same
	toLoss    map[string]time.Duration                   // of the same, by device class
	kinds     []predictor.HostKind                       // of hosts, as the plan tells
	running   map[*running]struct{}
}

// New returns an agent that does nothing until Run, which must be called: it gives back what New takes of the host.
func New(options Options) (*Agent, error) {
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("make an agent: %w", err)
	}
	a := &Agent{
		id: options.Host, instance: options.Instance, client: options.Client, started: options.Started,
		base: options.Capacity, cpus: slices.Clone(options.CPUs), price: options.PricePerHour, gpuPrice: options.GPUPrice,
		recorder: options.Recorder, keeper: options.Results, declared: options.Declared,
		secrets:    options.Secrets,
		superseded: options.Superseded, plans: options.Plans,
		output: options.Output, inventory: options.Inventory, held: options.Held,
		fence: newFence(options.Lease, options.uptime), remote: options.Elsewhere,
		fenced: options.Fenced, inHand: options.InHand,
		sampleEvery: options.SampleEvery, drain: options.Drain,
		logger: options.Logger.With("host", options.Host), now: options.Now,
		changed: make(chan struct{}, 1),
		sizings: make(map[predictor.StageID]predictor.Sizing), running: make(map[*running]struct{}),
	}
	enforcer, err := enforce.Open(enforce.Options{
		StateDir: options.StateDir, Mode: options.Enforcement, Processes: options.Processes, Logger: a.logger,
	})
	if err != nil {
		return nil, fmt.Errorf("make an agent: %w", err)
	}
	a.enforcer = enforcer
	a.journal, err = slot.OpenJournal(filepath.Join(options.StateDir, "attempts", string(predictor.Pool)), predictor.Pool,
		a.id, a.instance, a.logger)
	if err != nil {
		return nil, fmt.Errorf("make an agent: %w", errors.Join(err, enforcer.Close()))
	}
	a.journal.Proofs = options.Proofs
	a.commands = command.Options{
		Root: filepath.Join(options.StateDir, "workspaces"), Cache: filepath.Join(options.StateDir, "command-cache"),
		Store:    options.Store,
		MaxBytes: options.WorkspaceBytes, User: options.User,
	}
	if own, err := os.Executable(); err == nil {
		a.commands.Own = own
	}
	a.base.CPU, a.base.Memory = min(a.base.CPU, enforcer.Limit().CPU), min(a.base.Memory, enforcer.Limit().Memory)
	a.gpus = newGPUs(options.GPUs, options.OfferGPUs, a.logger)
	a.admission = &admission{capacity: a.base, changed: a.touch, callIn: a.callIn}
	a.gpus.limit = func() { a.admission.limit(a.gpus.usable(a.base)) }
	a.children = &children{
		builds: options.Builds, groups: enforcer, artifacts: options.ArtifactsURL, server: options.ServerURL,
		extra: maps.Clone(options.Environment), user: options.User, logger: a.logger,
		maxIdle: idlePerCPU * max(len(a.cpus), 1), patience: options.ReadyTimeout, lack: a.lack,
	}
	a.assists = make(chan struct{}, mostAssists)
	a.gangs.agent, a.gangs.ways, a.gangs.address = a, options.Gangs, options.TrainingAddress
	a.board = slot.NewBoard(options.Client, a.handle, a.logger)
	return a, nil
}

// Run obeys the plan until ctx ends. Then it polls no more, lets running attempts end for a while, interrupts the rest,
// kills all children and returns. An interrupted attempt is Lost: it counts for nothing and is done again elsewhere.
// Run is called once.
func (a *Agent) Run(ctx context.Context) (err error) {
	//nolint:contextcheck // groups are removed also when ctx has ended
	defer func() { err = errors.Join(err, a.enforcer.Close()) }()
	spawner, err := spawn.New(spawn.Options{CPUs: a.cpus, User: a.children.user})
	if err != nil {
		return fmt.Errorf("run the agent of %s: %w", a.id, err)
	}
	defer spawner.Close()
	a.children.start = spawner.StartBy
	if _, err := command.Sweep(ctx, a.commands.Root); err != nil {
		a.logger.WarnContext(ctx, "workspaces of a crashed agent are left", "error", err)
	}
	var describing sync.WaitGroup
	// Also while what runs may end: the host is there until it has.
	holding, release := context.WithCancel(context.WithoutCancel(ctx))
	describing.Go(func() { a.describe(holding) })
	describing.Go(func() { a.gpus.watch(holding, a.sampleEvery, a.touch) })
	describing.Go(func() { a.tellHeld(holding) })
	defer context.AfterFunc(ctx, func() { a.draining.Store(true); a.touch() })()
	giving, enough := context.WithCancel(ctx)
	err = a.obeyPlans(ctx, func() {
		describing.Go(func() { a.journal.GiveBack(giving, a.client, a.recorder) })
	})
	release()
	enough()
	describing.Wait()
	err = errors.Join(err, a.journal.Close(err == nil))
	a.children.obey(nil)
	a.children.reap(ctx) // all of them
	if err != nil {
		return fmt.Errorf("run the agent of %s: %w", a.id, err)
	}
	return nil
}

// obeyPlans tells that the agent has started, and obeys the plan for as long as its lease lasts, again and again until
// ctx ends. Begun is called once, when it is known that it has started.
func (a *Agent) obeyPlans(ctx context.Context, begun func()) error {
	for first := true; a.fence.await(ctx); first = false {
		slot.TellStarted(ctx, a.started, predictor.HostStarted{
			Host: a.id, Venue: predictor.Pool, Instance: a.currentInstance(), At: a.now(),
		}, a.logger)
		if first {
			begun()
		} else {
			a.fenced(false)
		}
		leased, release := a.fence.guard(ctx)
		var ganging sync.WaitGroup
		ganging.Go(func() { a.gangs.run(leased) })
		err := a.board.Run(leased, a.plans, a.obey, a.drain)
		cause := context.Cause(leased)
		release()
		ganging.Wait()
		if err != nil || !errors.Is(cause, slot.ErrFenced) {
			return err
		}
		a.logger.WarnContext(ctx, "the lease of this host could not be renewed: what ran was stopped")
		a.mu.Lock()
		a.instance = rand.Text()
		a.mu.Unlock()
		a.fenced(true)
	}
	return nil
}

// currentInstance names this start of the agent, or what it is since it was fenced last.
func (a *Agent) currentInstance() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.instance
}

// describe reports the inventory, which renews the lease, and stops the children for which the plan has no slot until
// ctx ends.
func (a *Agent) describe(ctx context.Context) {
	ticker := time.NewTicker(inventoryEvery)
	defer ticker.Stop()
	pause := time.NewTicker(inventoryPause)
	defer pause.Stop()
	told := handed{changes: -1}
	for ctx.Err() == nil {
		a.lookAtDisk(false)
		a.renew(ctx)
		told = a.tellInHand(ctx, told)
		a.children.reap(ctx)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		select {
		case <-a.changed:
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWord)
	defer cancel()
	a.tellInHand(last, told) // none, unless some did not return
}

// renew tells how the host stands.
func (a *Agent) renew(ctx context.Context) {
	trying, taken, done := a.fence.try(ctx)
	defer done()
	err := a.inventory(trying, a.Host())
	switch {
	case err == nil:
		taken()
	case ctx.Err() == nil:
		a.logger.WarnContext(ctx, "the host's inventory was not taken; trying again", "error", err)
	}
}

// handed is what was told last of the attempts in hand, and when.
type handed struct {
	instance string
	changes  int
	at       time.Time
}

// tellAgain is after how long what is in hand is told again though it has not changed: it may be another server that
// hears it, or one that has begun anew.
const tellAgain = 10 * time.Second

// tellInHand tells which attempts the host has in hand, where these have changed since they were told, and now and
// then.
func (a *Agent) tellInHand(ctx context.Context, told handed) handed {
	if a.inHand == nil {
		return told
	}
	taken, changes := a.journal.InHand()
	now := handed{a.currentInstance(), changes, time.Now()}
	if now.instance == told.instance && now.changes == told.changes && now.at.Sub(told.at) < tellAgain {
		return told
	}
	trying, _, done := a.fence.try(ctx)
	defer done()
	if err := a.inHand(trying, now.instance, now.changes+1, taken); err != nil {
		a.logger.DebugContext(ctx, "which attempts are in hand was not taken; it is told again", "error", err)
		return told
	}
	return now
}

// Host describes the host as it stands now.
func (a *Agent) Host() predictor.Host {
	capacity, _ := a.gpus.usable(a.base)
	return predictor.Host{
		ID: a.id, Instance: a.currentInstance(), Drained: a.draining.Load(), DiskFull: a.diskFull.Load(),
		Lacks:    a.lacking(),
		Capacity: capacity, GPUs: a.gpus.describe(), GPUsUnknown: a.gpus.unknown(),
		Free:         a.admission.free(),
		PricePerHour: a.perHour(), CPUs: slices.Clone(a.cpus),
		Enforcement: string(a.enforcer.Mode()), At: a.now(), TrainingAddress: a.gangs.offered(),
	}
}

// capacity is that of the host, with the GPUs that attempts may have, also those that do not work now.
func (a *Agent) capacity() quantity.Size { return a.gpus.room(a.base) }

// perHour is what holding all of the host costs, with the GPUs that attempts may have.
func (a *Agent) perHour() quantity.Money {
	has := a.capacity()
	if a.gpuPrice == nil || has.GPU <= 0 {
		return a.price
	}
	return a.price + a.gpuPrice(has.DeviceClass).Prorated(quantity.Fraction{Of: int64(has.GPU), In: int64(quantity.Core)})
}

// Stages returns the stages that this host polls or still runs, sorted.
func (a *Agent) Stages() []predictor.StageID { return a.board.Stages() }

// Running tells how many attempts this host has taken from the queues and not ended, those that wait for room included.
func (a *Agent) Running() int { return a.board.Running() }

// Idle tells how many children wait for an attempt.
func (a *Agent) Idle() int { return a.children.idles() }

// callIn asks for what is lent to running attempts, as far as others wait for it.
func (a *Agent) callIn() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for r := range a.running {
		select {
		case r.recalled <- struct{}{}:
		default: // it is asked already
		}
	}
}

// touch makes the inventory be reported soon.
func (a *Agent) touch() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// obey takes over a plan: it remembers the sizings of the stages placed here, and for how many children there are
// slots, resizes what runs and returns the slots.
func (a *Agent) obey(plan predictor.Plan) map[predictor.StageID]slot.Target {
	targets := placed(plan, a.id)
	slots := make(map[build]int)
	for stage, target := range targets {
		slots[build{stage.App, stage.Build}] += target.Slots
	}
	a.children.obey(slots)
	a.mu.Lock()
	runs := slices.Collect(maps.Keys(a.running))
	wanted := maps.Clone(targets)
	// attempts of a stage that is placed here no more may still run, or arrive by an open poll
	for _, stage := range a.board.Stages() {
		wanted[stage] = slot.Target{}
	}
	sizings := make(map[predictor.StageID]predictor.Sizing, len(wanted))
	for _, sizing := range plan.Sizings {
		if _, ok := wanted[sizing.Stage]; ok {
			sizings[sizing.Stage] = sizing
		}
	}
	trainings := make(map[predictor.StageID][]predictor.Training, len(plan.Trainings))
	for _, past := range plan.Trainings {
		if _, ok := wanted[past.Stage]; ok {
			trainings[past.Stage] = past.Newest
		}
	}
	toLoss := make(map[string]time.Duration, len(plan.TimesToLoss))
	for _, class := range plan.TimesToLoss {
		toLoss[class.DeviceClass] = class.Mean
	}
	// A plan of this host alone tells of no stage that is placed here no more.
	for stage := range wanted {
		if _, told := sizings[stage]; told {
			continue
		}
		if sizing, known := a.sizings[stage]; known {
			sizings[stage] = sizing
		}
		if past, known := a.trainings[stage]; known && trainings[stage] == nil {
			trainings[stage] = past
		}
	}
	before := a.sizings
	a.sizings, a.trainings, a.toLoss, a.kinds = sizings, trainings, toLoss, plan.Kinds
	a.mu.Unlock()
	for _, r := range runs {
		stage := r.try.Task.Stage
		if sizing, ok := sizings[stage]; ok && sizing != before[stage] {
			r.resize(sizing, a.now())
		}
	}
	return targets
}

// placed returns what plan places on host; several devices of a host add up.
func placed(plan predictor.Plan, host string) map[predictor.StageID]slot.Target {
	targets := make(map[predictor.StageID]slot.Target)
	for _, p := range plan.Placements {
		if p.Host == host && p.Slots > 0 {
			target := targets[p.Stage]
			target.Slots += p.Slots
			targets[p.Stage] = target
		}
	}
	for _, g := range plan.Grants {
		if target, ok := targets[g.Stage]; ok && g.Venue == predictor.Pool {
			target.PoolOnly = g.PoolOnly
			targets[g.Stage] = target
		}
	}
	return targets
}

// sizing is what the plan says of a stage that is placed here.
func (a *Agent) sizing(stage predictor.StageID) (sizing predictor.Sizing, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sizing, known = a.sizings[stage]
	return sizing, known
}

// past is how earlier split trainings of the stage went, newest first. It must not be changed.
func (a *Agent) past(stage predictor.StageID) []predictor.Training {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.trainings[stage]
}

// timeToLoss is how long attempts on devices of a class go on in the mean before they are lost.
func (a *Agent) timeToLoss(class string) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return cmp.Or(a.toLoss[class], predictor.UsualTimeToLoss)
}

// sizingOf is how attempts of the task's stage are sized.
func (a *Agent) sizingOf(task wire.Task) predictor.Sizing {
	sizing, known := a.sizing(task.Stage)
	if !known {
		sizing = predictor.FirstSizing(task.Stage, task.Declared, task.Input, a.admission.free(), a.capacity())
	}
	return sizing
}

// begin notes that an attempt runs in live from now on, and says so.
func (a *Agent) begin(r *running, live target) {
	now := a.attend(r, live)
	r.try.Began(now)
	task, need := r.try.Task, r.try.Need()
	a.recorder.Tell(predictor.AttemptStarted{
		Run: task.Run, Stage: task.Stage, Task: task.ID, Attempt: r.try.Number, Venue: predictor.Pool, Host: a.id,
		Instance: a.currentInstance(),
		PoolOnly: r.try.PoolOnly, Queue: r.try.Queue(now), Grant: r.held(), GPUs: r.gpus.uuids,
		Members: r.gang.perHour(),
		Input:   need.Input, Features: a.sizingOf(task).Duration.RestsOn(need.Features), At: now,
	})
}

// attend makes an attempt that is in live from now on one that is resized, and whose loan is called in.
func (a *Agent) attend(r *running, live target) (now time.Time) {
	now = a.now()
	r.attach(live, now)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running[r] = struct{}{}
	return now
}

// end notes that an attempt no longer runs.
func (a *Agent) end(r *running) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, r)
}
