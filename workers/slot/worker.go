package slot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// Handler runs one attempt of task and returns its result. The context is that of a Temporal activity; it ends when the
// run is cancelled, when the server gave the attempt up, or with the cause [ErrInterrupted] when this process has to
// stop. Handlers of one worker run concurrently, one in each slot.
type Handler func(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error)

var (
	// ErrInterrupted is the cause of a context that ended because the process that runs the attempt stops.
	ErrInterrupted = errors.New("the process that ran the attempt is shutting down")
	// ErrFenced is the cause of a context that ended because the host could not tell the engine that it is there: by the
	// time that its lease ends, nothing of it runs any more.
	ErrFenced = errors.New("the host was cut off from the engine: its attempts were stopped before others may have them")
	// ErrClosed is returned by Set after Close.
	ErrClosed = errors.New("the worker is closed")
)

const (
	// maxPollers bounds the long polls of one queue under backlog; at rest there is one.
	maxPollers = 16
	// unbounded is how long Temporal's worker waits for running attempts before it would cancel them. A worker is stopped
	// as soon as its stage has no slot, and lowering slots never interrupts an attempt; Close sets the deadline instead.
	unbounded = 10 * 365 * 24 * time.Hour
	// obeyGrace is how long Close waits for handlers to return, and for Temporal to take what they return, once it has
	// ended their contexts.
	obeyGrace = 15 * time.Second
	// handlingLook is how often Close looks whether the handlers of a fenced worker have returned.
	handlingLook = 10 * time.Millisecond
)

// poller is a Temporal worker on one task queue.
type poller interface {
	Start() error
	Stop() // waits for running attempts
}

// Worker polls the queues of one stage. It holds nothing at the server while it has no slots. All methods may be called
// concurrently.
type Worker struct {
	stage   predictor.StageID
	handler Handler
	logger  *slog.Logger
	client  client.Client
	slots   *slots
	create  func(queue) (poller, error)

	interrupted   chan struct{}
	interruptOnce sync.Once
	cause         error        // of the interruption; to be read once interrupted is closed
	handling      atomic.Int64 // handlers that have not returned

	mu       sync.Mutex
	closed   bool
	pollers  [queues]poller
	draining int
	drained  chan struct{} // closed and replaced whenever draining falls to 0
}

// New returns a worker for stage without slots. Logger is required.
func New(c client.Client, stage predictor.StageID, handler Handler, logger *slog.Logger) *Worker {
	w := &Worker{
		stage:       stage,
		handler:     handler,
		client:      c,
		logger:      logger.With("stage", stage.String()),
		slots:       newSlots(),
		interrupted: make(chan struct{}),
		drained:     make(chan struct{}),
	}
	w.create = w.newPoller
	return w
}

// Set makes n the number of attempts that may run at a time; poolOnly also polls the stage's second queue, with the
// same slots. Zero or less polls nothing and leaves nothing open at the server. Running attempts go on; a poll that is
// already open may bring one more task. Setting what is set already costs nothing, except that a queue whose polling
// could not be started is tried again.
func (w *Worker) Set(n int, poolOnly bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return fmt.Errorf("set slots of %s: %w", w.stage, ErrClosed)
	}
	n = max(n, 0)
	w.slots.resize(n)
	return errors.Join(w.poll(stageQueue, n > 0), w.poll(poolQueue, n > 0 && poolOnly))
}

// poll starts or stops polling q; the caller holds mu.
func (w *Worker) poll(q queue, wanted bool) error {
	current := w.pollers[q]
	switch {
	case wanted && current == nil:
		created, err := w.create(q)
		if err != nil {
			return fmt.Errorf("poll %s: %w", w.name(q), err)
		}
		if err := created.Start(); err != nil {
			w.retire(created) // what it holds is only given back by Stop
			return fmt.Errorf("poll %s: %w", w.name(q), err)
		}
		w.pollers[q] = created
	case !wanted && current != nil:
		w.pollers[q] = nil
		w.retire(current)
	}
	return nil
}

// retire stops p without waiting for it; the caller holds mu.
func (w *Worker) retire(p poller) {
	w.draining++
	go func() {
		p.Stop()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.draining--
		if w.draining == 0 {
			close(w.drained)
			w.drained = make(chan struct{})
		}
	}()
}

// Running tells how many attempts run now.
func (w *Worker) Running() int { return w.slots.count() }

// Idle reports whether the worker polls nothing and runs nothing.
func (w *Worker) Idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.draining == 0 && w.pollers == [queues]poller{}
}

// Close stops polling and waits for running attempts, and until Temporal has taken what they came to. When ctx ends it
// interrupts them, and it returns an error when one still does not return within obeyGrace. For a Temporal that has not
// taken by then what they came to it waits no longer. Where ctx has ended with the cause ErrFenced, it waits for what
// runs here, and not until Temporal, which may be away, has heard of it. The worker cannot be used again.
func (w *Worker) Close(ctx context.Context) error {
	w.mu.Lock()
	w.closed = true
	w.slots.resize(0)
	for q := range queues {
		if p := w.pollers[q]; p != nil {
			w.pollers[q] = nil
			w.retire(p)
		}
	}
	w.mu.Unlock()
	if w.wait(ctx) == nil {
		return nil
	}
	fenced := errors.Is(context.Cause(ctx), ErrFenced)
	w.interruptOnce.Do(func() {
		if w.cause = ErrInterrupted; fenced {
			w.cause = ErrFenced
		}
		close(w.interrupted)
	})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), obeyGrace)
	defer cancel()
	if fenced {
		for w.handling.Load() > 0 && wait.For(ctx, handlingLook) {
		}
		return nil // one that has not returned has no process any more
	}
	if w.wait(ctx) == nil {
		return nil
	}
	if left := w.handling.Load(); left > 0 {
		return fmt.Errorf("close the worker of %s: %d attempts did not return within %s of being interrupted", w.stage,
			left, obeyGrace)
	}
	w.logger.WarnContext(ctx, "Temporal was not told in time what attempts came to; it finds out by their heartbeats")
	return nil
}

// wait waits until all retired pollers have stopped.
func (w *Worker) wait(ctx context.Context) error {
	for {
		w.mu.Lock()
		draining, drained := w.draining, w.drained
		w.mu.Unlock()
		if draining == 0 {
			return nil
		}
		select {
		case <-drained:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *Worker) name(q queue) string {
	if q == poolQueue {
		return w.stage.PoolQueue()
	}
	return w.stage.Queue()
}

// newPoller returns a Temporal worker for activities of any name on q.
func (w *Worker) newPoller(q queue) (poller, error) {
	unused, err := worker.NewFixedSizeSlotSupplier(1)
	if err != nil {
		return nil, err
	}
	tuner, err := worker.NewCompositeTuner(worker.CompositeTunerOptions{
		ActivitySlotSupplier:        supplier{w.slots, q},
		WorkflowSlotSupplier:        unused,
		LocalActivitySlotSupplier:   unused,
		NexusSlotSupplier:           unused,
		SessionActivitySlotSupplier: unused,
	})
	if err != nil {
		return nil, err
	}
	var created worker.Worker
	created = worker.New(w.client, w.name(q), worker.Options{
		Tuner:                  tuner,
		DisableWorkflowWorker:  true,
		DisableEagerActivities: true,
		ActivityTaskPollerBehavior: worker.NewPollerBehaviorAutoscaling(worker.PollerBehaviorAutoscalingOptions{
			InitialNumberOfPollers: 1, MinimumNumberOfPollers: 1, MaximumNumberOfPollers: maxPollers,
		}),
		WorkerStopTimeout: unbounded,
		OnFatalError:      func(err error) { w.forget(q, created, err) },
	})
	created.RegisterDynamicActivity(w.run, activity.DynamicRegisterOptions{})
	return created, nil
}

// forget drops a poller that the server refuses for good, so that the next Set tries again with a new one.
func (w *Worker) forget(q queue, p poller, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logger.Error("temporal refuses to be polled", "queue", w.name(q), "error", err)
	if w.pollers[q] == p {
		w.pollers[q] = nil
		w.retire(p)
	}
}

// run is the activity behind every stage.
func (w *Worker) run(ctx context.Context, args converter.EncodedValues) (wire.Result, error) {
	w.handling.Add(1)
	defer w.handling.Add(-1)
	task, input, err := decode(w.stage, activity.GetInfo(ctx).WorkflowExecution.ID, args)
	if err != nil {
		return wire.Result{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx = context.WithValue(withBeater(ctx, w.client, cancel), reserverKey{}, reserver{client: w.client})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-w.interrupted:
			cancel(w.cause)
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(nil); <-watching }()
	return w.handler(ctx, task, input)
}

// MalformedError is the type of the application error about a task that this build cannot read or must not run. A retry
// cannot help.
const MalformedError = "SpillwayMalformedTask"

// decode reads the arguments of a stage activity that workflow has scheduled, and refuses what is not a task of stage
// and of a run.
func decode(
	stage predictor.StageID, workflow string, args converter.EncodedValues,
) (wire.Task, json.RawMessage, error) {
	var task wire.Task
	var input json.RawMessage
	err := args.Get(&task, &input)
	switch {
	case err != nil:
		err = fmt.Errorf("a stage activity takes a task and its input as JSON; start stages through the spillway package: %w",
			err)
	case task.Version != wire.Version:
		err = fmt.Errorf("%w: %d, this build reads %d; run the spillway binary that the app was built for", wire.ErrVersion,
			task.Version, wire.Version)
	case task.Stage != stage:
		err = fmt.Errorf("the task is for stage %s; tasks go to the queue that bears their stage's name", task.Stage)
	case task.ID == "":
		err = errors.New("the task has no ID; start stages through the spillway package")
	case task.Run == "" || workflow != task.Run && !strings.HasPrefix(workflow, task.Run+"/"): // a run, or a part of it
		err = fmt.Errorf("the task says that it is of run %q, and workflow %q has scheduled it; start stages through the "+
			"spillway package", task.Run, workflow)
	}
	if err != nil {
		err = fmt.Errorf("read a task from %s: %w", stage.Queue(), err)
		return wire.Task{}, nil, Refuse(err)
	}
	return task, input, nil
}

// Refuse is what a Handler returns for a task that must not run, before it has begun an [Attempt]: no retry can help,
// and nobody accounts for it.
func Refuse(err error) error {
	return temporal.NewNonRetryableApplicationError(err.Error(), MalformedError, err)
}
