package autoscaler

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// ErrSuperseded says that another leader has taken a later term.
var ErrSuperseded = errors.New("another leader has taken a later term")

// PlanStore is where the plan in force is.
type PlanStore interface {
	// Current returns the plan in force and its revision; the zero Plan and revision 0 when there is none. With a
	// revision, an error says that the plan of this revision cannot be read, and wraps wire.ErrVersion when a newer build
	// wrote it.
	Current(ctx context.Context) (predictor.Plan, uint64, error)
	// Replace puts plan in force if the one in force still has the given revision, and returns the new revision.
	Replace(ctx context.Context, plan predictor.Plan, revision uint64) (uint64, error)
}

// HostPlanStore is where what each host obeys of the plan in force is. A store of plans may be one.
type HostPlanStore interface {
	// HostPlans returns the revisions of what there is, by host.
	HostPlans(ctx context.Context) (map[string]uint64, error)
	// ReplaceHostPlans replaces what these hosts obey where that still has the revision that each says, and sets it to
	// the new one.
	ReplaceHostPlans(ctx context.Context, plans []loop.HostPlan) error
}

const (
	// firstPause and lastPause bound the wait before the next campaign after a term that failed; one that lasted steady
	// counts as none.
	firstPause = 200 * time.Millisecond
	lastPause  = 5 * time.Second
	steady     = time.Minute
)

// Options is what a Leader needs. All fields without a default are required.
type Options struct {
	// JetStream keeps the term and the checkpoint, and takes decisions; its streams and buckets exist.
	JetStream jetstream.JetStream
	// LeaseJetStream keeps the lease. It should have a connection of its own, so that no renewal waits behind other
	// messages; nil means JetStream.
	LeaseJetStream jetstream.JetStream
	// Plans has the plan in force.
	Plans PlanStore
	// HostPlans has what each host obeys of it; nil where hosts read all of it.
	HostPlans HostPlanStore
	// Follow calls handle with every message of the loop's stream from sequence from on, in order, until ctx ends or
	// handle fails, and when it was stored. A message that cannot be read is the zero Message.
	Follow func(ctx context.Context, from uint64,
		handle func(sequence uint64, stored time.Time, message wire.Message) error) error
	// Extent returns the sequences of the oldest and of the newest message that the loop's stream holds now; both are 0
	// when it holds none.
	Extent func(ctx context.Context) (first, last uint64, err error)
	// Hosts returns the hosts whose lease is valid.
	Hosts func(ctx context.Context) ([]predictor.Host, error)
	// Stages returns the stages that are served, so that the backlog of each is looked at also when every hint of it was
	// lost. Nil means none.
	Stages func() []predictor.StageID
	// Client takes windows and tells backlogs.
	Client client.Client
	// Namespace is the Client's; empty means "default".
	Namespace string
	// Teams are those that are declared now; nil for none.
	Teams func() []predictor.Team
	// Policy is the configuration; the zero Policy means predictor.DefaultPolicy.
	Policy predictor.Policy
	// Functions is what the function venue offers.
	Functions predictor.FunctionVenue
	// Leading is told the term in which this process begins to lead, and 0 when it ends to: it leads from when a plan that
	// it decided is in force. Nil ignores it.
	Leading func(term uint64)
	// Server is the name of the server that this process is, which the others see in the lease; empty tells none.
	Server string
	// Following is told the name of the server that leads whenever its lease is seen renewed, about once a second while
	// another process leads. Nil ignores it.
	Following func(server string)
	// Failed is told each time that a term or a campaign ends although the process goes on; nil ignores it.
	Failed func()
	// Ticked is told after every tick what it took; nil ignores it. It must not block.
	Ticked func(took Took)
	// TickEvery is how often the leader decides without being asked; 0 means every second.
	TickEvery time.Duration
	// Now is the clock by which it is decided; nil means time.Now. It may be set back and forward while the leader leads.
	Now func() time.Time
	// Logger takes one line per decision; nil discards.
	Logger *slog.Logger
}

// Took is how long one tick took. Parts that it did not have are 0.
type Took struct {
	// Hosts is the time until it was known which hosts have a lease, Decide that of the decision, Post the time until the
	// plan was in force. Whole is all of it.
	Hosts, Decide, Post, Whole time.Duration
}

// Leader can lead the loop. One Leader serves one process; the lease decides when it leads.
type Leader struct {
	options Options
	id      string        // names this process in the lease
	lasts   time.Duration // how long a lease lasts
	term    uint64        // the last that this process took; 0 before the first. It belongs to the goroutine of Run
	health  health
	higher  atomic.Uint64 // a term that somebody else has taken, by the word of Deposed
}

// New returns a Leader, or an error that names the option that is missing.
func New(options Options) (*Leader, error) {
	for name, missing := range map[string]bool{
		"JetStream": options.JetStream == nil, "Plans": options.Plans == nil, "Follow": options.Follow == nil,
		"Extent": options.Extent == nil, "Hosts": options.Hosts == nil, "Client": options.Client == nil,
	} {
		if missing {
			return nil, fmt.Errorf("new autoscaler: Options.%s is required", name)
		}
	}
	options.Namespace = cmp.Or(options.Namespace, client.DefaultNamespace)
	options.TickEvery = cmp.Or(options.TickEvery, time.Second)
	if options.Policy == (predictor.Policy{}) {
		options.Policy = predictor.DefaultPolicy()
	}
	if options.LeaseJetStream == nil {
		options.LeaseJetStream = options.JetStream
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Failed == nil {
		options.Failed = func() {}
	}
	if options.Ticked == nil {
		options.Ticked = func(Took) {}
	}
	if options.Leading == nil {
		options.Leading = func(uint64) {}
	}
	if options.Following == nil {
		options.Following = func(string) {}
	}
	if options.Teams == nil {
		options.Teams = func() []predictor.Team { return nil }
	}
	if options.Stages == nil {
		options.Stages = func() []predictor.StageID { return nil }
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	return &Leader{options: options, id: rand.Text(), lasts: leaseTime}, nil
}

// Prepare opens the bucket of the lease, and makes it where there is none: where that cannot be, as there is no room or
// no right, nobody could ever lead. Run does so too; this says so at the start.
func (l *Leader) Prepare(ctx context.Context) error {
	_, err := openLeases(ctx, l.options.LeaseJetStream, l.id)
	return err
}

// Run leads the loop whenever the lease is this process's, until ctx ends. A term that fails is told, and after a pause
// the lease is campaigned for anew: the last plan stays in force meanwhile, and whatever else this process does goes
// on.
func (l *Leader) Run(ctx context.Context) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		began := time.Now()
		err := l.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > steady {
			pause = firstPause
		}
		l.health.failed(err)
		l.options.Failed()
		l.options.Logger.WarnContext(ctx, "the lead was lost; campaign for it again", "error", err, "pause", pause)
		if !wait.For(ctx, pause) {
			return
		}
	}
}

// Deposed says that something which only leaders write is of a later term than this one leads in: it leads no more, and
// the next term that it takes is later than that one. It may be called at any time.
func (l *Leader) Deposed(term uint64) {
	for {
		known := l.higher.Load()
		if term <= known || term > wire.MaxTerm || l.higher.CompareAndSwap(known, term) {
			return
		}
	}
}

// once waits for the lease and leads one term. It returns why that ended, which is never nil.
func (l *Leader) once(ctx context.Context) error {
	own, err := openLeases(ctx, l.options.LeaseJetStream, l.id)
	if err != nil {
		return err
	}
	own.server = l.options.Server
	own.renewed = func(server string) {
		l.health.follows(server)
		l.options.Following(server)
	}
	if err := own.campaign(ctx, l.lasts); err != nil {
		return err
	}
	err = l.serveRecovering(ctx, ports{taken: time.Now(), renew: own.renew, backlog: l.backlog, window: l.sendWindow})
	if !errors.Is(err, ErrLeaseLost) {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		err = errors.Join(err, own.release(last))
	}
	return err
}

// serveRecovering leads one term, and makes an error of a panic: what decides is fed with whatever users' runs are, and
// a fault of it must not end what runs.
func (l *Leader) serveRecovering(ctx context.Context, outside ports) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("the leader panicked: %v\n%s", fault, debug.Stack())
		}
	}()
	return l.serve(ctx, outside)
}

// ports is what a term needs of NATS's lease and of Temporal.
type ports struct {
	// taken is when the lease was taken; renew renews it, and wraps ErrLeaseLost when another process holds it.
	taken time.Time
	renew func(ctx context.Context) error
	// backlog returns how many tasks wait in a task queue.
	backlog func(ctx context.Context, queue string) (int, error)
	// window tells a run of its window.
	window func(ctx context.Context, window predictor.Window, id string) error
}
