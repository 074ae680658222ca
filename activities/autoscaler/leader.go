package autoscaler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// ErrDeposed says that another leader has taken a later term.
var ErrDeposed = errors.New("another leader has taken a later term")

// ErrSilent says that no heartbeat reached Temporal for half the heartbeat timeout, so that another leader may be elected soon.
var ErrSilent = errors.New("no heartbeat reached Temporal in time")

// Board is where the plan in force is.
type Board interface {
	// Current returns the plan in force and its revision; the zero Plan and revision 0 when there is none. With a revision, an error says
	// that the plan of this revision cannot be read, and wraps wire.ErrVersion when a newer build wrote it.
	Current(ctx context.Context) (predictor.Plan, uint64, error)
	// Replace puts plan in force if the one in force still has the given revision, and returns the new revision.
	Replace(ctx context.Context, plan predictor.Plan, revision uint64) (uint64, error)
}

// Options is what a Leader needs. All fields without a default are required.
type Options struct {
	// JetStream keeps the term and the checkpoint, and takes decisions; its streams and buckets exist.
	JetStream jetstream.JetStream
	// Board has the plan in force.
	Board Board
	// Follow calls handle with every message of the loop's stream from sequence from on, in order, until ctx ends or handle fails.
	// A message that cannot be read is the zero Message.
	Follow func(ctx context.Context, from uint64, handle func(sequence uint64, message wire.Message) error) error
	// Hosts returns the hosts whose lease is valid.
	Hosts func(ctx context.Context) ([]predictor.Host, error)
	// Stages returns the stages that are served, so that the backlog of each is looked at also when every hint of it was lost. Nil means none.
	Stages func() []predictor.StageID
	// Client takes heartbeats and windows, and tells backlogs.
	Client client.Client
	// Namespace is the Client's; empty means "default".
	Namespace string
	// Policy is the configuration; the zero Policy means predictor.DefaultPolicy.
	Policy predictor.Policy
	// Functions is what the function venue offers.
	Functions predictor.FunctionVenue
	// Leading is told when this process begins and ends to lead; nil ignores it.
	Leading func(leads bool)
	// TickEvery is how often the leader decides without being asked; 0 means every second.
	TickEvery time.Duration
	// Logger takes one line per decision; nil discards.
	Logger *slog.Logger
}

// Leader can lead the loop. One Leader serves one process; Temporal decides when it leads.
type Leader struct {
	options Options
}

// New returns a Leader, or an error that names the option that is missing.
func New(options Options) (*Leader, error) {
	for name, missing := range map[string]bool{
		"JetStream": options.JetStream == nil, "Board": options.Board == nil, "Follow": options.Follow == nil,
		"Hosts": options.Hosts == nil, "Client": options.Client == nil,
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
	if options.Leading == nil {
		options.Leading = func(bool) {}
	}
	if options.Stages == nil {
		options.Stages = func() []predictor.StageID { return nil }
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	return &Leader{options}, nil
}

// Lead is the activity: it leads until it is deposed, the worker stops, or serveFor has passed, when it returns nil so that the next
// one starts with a fresh timeout. It sends its heartbeats itself: only a heartbeat that Temporal has acknowledged counts as one.
func (l *Leader) Lead(ctx context.Context) error {
	info := activity.GetInfo(ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, serveFor, errServed)
	defer cancel()
	err := l.serve(ctx, side{
		beat: func(ctx context.Context) error {
			return l.options.Client.RecordActivityHeartbeat(ctx, info.TaskToken)
		},
		timeout:  cmp.Or(info.HeartbeatTimeout, heartbeatTimeout),
		stopping: activity.GetWorkerStopChannel(ctx),
		backlog:  l.backlog,
		window:   l.sendWindow,
	})
	if errors.Is(err, errServed) {
		return nil
	}
	return fmt.Errorf("lead the loop: %w", err)
}

// errServed ends a leader whose time is over; errStopping one whose worker stops.
var (
	errServed   = errors.New("served long enough")
	errStopping = errors.New("the worker is stopping")
)

// side is what a leader needs of Temporal.
type side struct {
	// beat returns nil once Temporal has acknowledged a heartbeat.
	beat func(ctx context.Context) error
	// timeout is how long Temporal waits for one before it elects again.
	timeout time.Duration
	// stopping is closed when the worker begins to stop.
	stopping <-chan struct{}
	// backlog returns how many tasks wait in a task queue.
	backlog func(ctx context.Context, queue string) (int, error)
	// window tells a run of its window.
	window func(ctx context.Context, window predictor.Window) error
}
