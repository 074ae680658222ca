package autoscaler

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	train = predictor.StageID{App: "digits", Build: "b1", Name: "train"}
	score = predictor.StageID{App: "digits", Build: "b1", Name: "score"}
)

// stream returns a JetStream context on an in-process NATS server with the loop's streams.
func stream(t *testing.T) jetstream.JetStream {
	t.Helper()
	js := natstest.Start(t).Connect()
	if err := loop.EnsureStreams(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	return js
}

func newPlans(t *testing.T, js jetstream.JetStream) *loop.Plans {
	t.Helper()
	plans, err := loop.NewPlans(t.Context(), js, nil)
	if err != nil {
		t.Fatal(err)
	}
	return plans
}

// wrapped is a PlanStore whose Replace a test can hold up or spoil.
type wrapped struct {
	PlanStore
	replace func(ctx context.Context, plan predictor.Plan, revision uint64) (uint64, error)
}

func (w *wrapped) Replace(ctx context.Context, plan predictor.Plan, revision uint64) (uint64, error) {
	return w.replace(ctx, plan, revision)
}

// publish puts events on the loop's stream and returns the sequence of the last.
func publish(t *testing.T, js jetstream.JetStream, events ...predictor.Event) (last uint64) {
	t.Helper()
	for _, event := range events {
		kind, data, err := wire.EncodeEvent(event)
		if err != nil {
			t.Fatal(err)
		}
		ack, err := js.Publish(t.Context(), wire.LoopSubject(kind), data)
		if err != nil {
			t.Fatal(err)
		}
		last = ack.Sequence
	}
	return last
}

func scheduled(stage predictor.StageID, tasks int) predictor.Scheduled {
	return predictor.Scheduled{Run: "run-1", Stage: stage, Tasks: tasks, Input: quantity.KiB, At: time.Now()}
}

func record(stage predictor.StageID, task string) predictor.Record {
	return predictor.Record{
		Run: "run-1", Pipeline: "train", Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool, Host: "laptop",
		Outcome: predictor.Succeeded, At: time.Now(),
		Usage: quantity.Usage{CPU: time.Second, Wall: time.Second, PeakMemory: 64 * quantity.MiB, Input: quantity.KiB},
	}
}

var laptop = predictor.Host{
	ID:       "laptop",
	Capacity: quantity.Size{CPU: 8000, Memory: 16 * quantity.GiB},
	Free:     quantity.Size{CPU: 8000, Memory: 16 * quantity.GiB},
}

// options are those of a leader on js with one host.
func options(t *testing.T, js jetstream.JetStream) Options {
	t.Helper()
	return Options{
		JetStream: js,
		Plans:     newPlans(t, js),
		Follow: func(ctx context.Context, from uint64, handle func(uint64, time.Time, wire.Message) error) error {
			return loop.Follow(ctx, js, from, nil, func(line loop.Line) error {
				return handle(line.Sequence, line.Stored, line.Message)
			})
		},
		Extent:    func(ctx context.Context) (uint64, uint64, error) { return loop.Extent(ctx, js) },
		Hosts:     func(context.Context) ([]predictor.Host, error) { return []predictor.Host{laptop}, nil },
		Client:    &fakeClient{stats: &taskqueuepb.TaskQueueStats{ApproximateBacklogCount: 3}},
		TickEvery: 50 * time.Millisecond,
	}
}

func leader(t *testing.T, options Options) *Leader {
	t.Helper()
	l, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// fakePorts is the lease and Temporal as far as a term sees them.
type fakePorts struct {
	renewals atomic.Int64
	silent   atomic.Bool // renewals fail from now on
	tasks    int         // in every shared queue

	mu      sync.Mutex
	windows []predictor.Window
}

func (f *fakePorts) ports() ports {
	return ports{
		taken: time.Now(),
		renew: func(context.Context) error {
			if f.silent.Load() {
				return errors.New("connection refused")
			}
			f.renewals.Add(1)
			return nil
		},
		backlog: func(_ context.Context, queue string) (int, error) {
			if strings.HasSuffix(queue, ".pool") {
				return 0, nil
			}
			return f.tasks, nil
		},
		window: func(_ context.Context, window predictor.Window, _ string) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.windows = append(f.windows, window)
			return nil
		},
	}
}

// priority is that which a run was told last; 0 when it was told none.
func (f *fakePorts) priority(run string) (priority int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, window := range f.windows {
		if window.Run == run {
			priority = window.Priority
		}
	}
	return priority
}

// serving is a term in the background.
type serving struct {
	stop context.CancelFunc
	done chan struct{}
	err  error
}

// serve lets l lead in the background until the test ends.
func serve(t *testing.T, l *Leader, outside ports) *serving {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &serving{stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = l.serve(ctx, outside)
	}()
	t.Cleanup(func() { cancel(); <-s.done })
	return s
}

// lead lets l campaign and lead in the background until it is stopped, at the latest when the test ends.
func lead(t *testing.T, l *Leader) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// wait returns why the term ended.
func (s *serving) wait(t *testing.T) error {
	t.Helper()
	select {
	case <-s.done:
		return s.err
	case <-time.After(time.Minute):
		t.Fatal("the term does not end")
		return nil
	}
}

// eventually polls until ok; what it waits for crosses a real server.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// slots returns how many slots the plan in force grants at the pool.
func slots(t *testing.T, plans PlanStore, stage predictor.StageID) int {
	t.Helper()
	plan, _, err := plans.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, grant := range plan.Grants {
		if grant.Stage == stage && grant.Venue == predictor.Pool {
			return grant.Slots
		}
	}
	return 0
}

// messages returns everything on the loop's stream.
func messages(t *testing.T, js jetstream.JetStream) (all []wire.Message) {
	t.Helper()
	stream, err := js.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	last := stream.CachedInfo().State.LastSeq
	if last == 0 {
		return nil
	}
	end := errors.New("end")
	err = loop.Follow(t.Context(), js, 0, nil, func(line loop.Line) error {
		all = append(all, line.Message)
		if line.Sequence >= last {
			return end
		}
		return nil
	})
	if !errors.Is(err, end) {
		t.Fatal(err)
	}
	return all
}
