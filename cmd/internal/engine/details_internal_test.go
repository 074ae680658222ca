package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/telemetry"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

var dawn = time.Date(2026, 11, 23, 6, 0, 0, 0, time.UTC)

// chronicle is the streams of an engine with what keeps and folds them.
type chronicle struct {
	t        *testing.T
	js       jetstream.JetStream
	store    *ledgerstore.Store
	observer *observer
	last     uint64
}

func newChronicle(t *testing.T) *chronicle {
	t.Helper()
	c := &chronicle{t: t, js: natstest.Start(t).Connect()}
	if err := loop.EnsureStreams(t.Context(), c.js); err != nil {
		t.Fatal(err)
	}
	store, err := ledgerstore.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	c.store = store
	c.observer = newObserver(telemetry.NewMetrics(), false, extent{}, slog.New(slog.DiscardHandler))
	c.work(func(ctx context.Context) error { return store.Keep(ctx, c.js, nil) })
	return c
}

// engine is one that answers from them, and runs nothing.
func (c *chronicle) engine() *Engine {
	kept := &stores{
		base: &base{config: &Config{Clock: time.Now}}, ledger: c.store, details: newDetails(c.js, c.store),
	}
	return &Engine{front: &front{venues: &venues{reports: &reports{stores: kept, observer: c.observer}}}}
}

// work does something until the test ends.
func (c *chronicle) work(part func(context.Context) error) {
	ctx, stop := context.WithCancel(c.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- part(ctx) }()
	c.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			c.t.Error(err)
		}
	})
}

// tell puts events into the streams and folds them.
func (c *chronicle) tell(events ...predictor.Event) {
	c.t.Helper()
	for _, event := range events {
		kind, data, err := loopwire.EncodeEvent(event)
		if err != nil {
			c.t.Fatal(err)
		}
		ack, err := c.js.Publish(c.t.Context(), loopwire.FactSubject(kind), data)
		if err != nil {
			c.t.Fatal(err)
		}
		line := loop.Line{Message: loopwire.Message{Event: event}}
		if kind == loopwire.KindSampled {
			line.Sample = ack.Sequence
		} else {
			c.last = ack.Sequence
		}
		line.Sequence = c.last
		if err := c.observer.apply(line); err != nil {
			c.t.Fatal(err)
		}
	}
}

// story is what a run of some tasks tells.
func story(run string, tasks int, at time.Time) (events []predictor.Event) {
	stage := predictor.StageID{App: "app", Build: "b", Name: "score"}
	second := func(s float64) time.Time { return at.Add(time.Duration(s * float64(time.Second))) }
	events = append(events, predictor.RunStarted{Run: run, Pipeline: "p", App: "app", Build: "b", At: at},
		predictor.Scheduled{Run: run, Stage: stage, Tasks: tasks, At: at})
	for i := range tasks {
		task := fmt.Sprint("t", i)
		events = append(events,
			predictor.AttemptStarted{
				Run: run, Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool, Host: "h",
				At: second(1),
			},
			predictor.Sampled{
				Run: run, Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool, CPU: 500, Step: 1,
				Metrics: map[string]float64{"loss": 0.5}, At: second(2),
			},
			predictor.Record{
				Run: run, Pipeline: "p", Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool, Host: "h",
				Outcome: predictor.Succeeded, Cost: 1_000_003, ScheduledAt: at, At: second(3),
			})
	}
	return append(events, predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: second(4)})
}

// TestARunThatIsNotFoldedAnyMoreIsShownAsItWas keeps a run, lets the ledger forget it, and looks at it.
func TestARunThatIsNotFoldedAnyMoreIsShownAsItWas(t *testing.T) {
	t.Parallel()
	c := newChronicle(t)
	mine, other := story("mine", 5, dawn), story("other", 3, dawn)
	for i := range max(len(mine), len(other)) { // they go on beside each other
		c.tell(mine[i:min(i+1, len(mine))]...)
		if i < len(other) {
			c.tell(other[i])
		}
	}
	e := c.engine()
	view, err := e.Run(t.Context(), "mine")
	if err != nil {
		t.Fatal(err)
	}
	attempts, err := e.Attempts(t.Context(), web.AttemptQuery{Run: "mine"})
	allocation, err2 := e.Allocation(t.Context(), "mine", 10)
	if err != nil || err2 != nil || len(attempts) != 5 {
		t.Fatal(len(attempts), err, err2)
	}
	if _, err := c.observer.keepSome(t.Context(), c.store, true); err != nil {
		t.Fatal(err)
	}
	c.observer.ledger = ledger.New() // as that of an engine that has just started
	if later, err := e.Run(t.Context(), "mine"); err != nil || !cmp.Equal(view, later) {
		t.Errorf("%v (-folded +kept):\n%s", err, cmp.Diff(view, later))
	}
	for range 2 { // the second time it is at hand
		again, err := e.Attempts(t.Context(), web.AttemptQuery{Run: "mine"})
		if err != nil || !cmp.Equal(attempts, again) {
			t.Errorf("%v (-folded +rebuilt):\n%s", err, cmp.Diff(attempts, again))
		}
		if again, err := e.Allocation(t.Context(), "mine", 10); err != nil || !cmp.Equal(allocation, again) {
			t.Errorf("%v (-folded +rebuilt):\n%s", err, cmp.Diff(allocation, again))
		}
	}
	if curves, err := e.Curves(t.Context(), "mine"); err != nil || len(curves) != 5 {
		t.Errorf("%d curves, %v; want that of each task", len(curves), err)
	}
	if _, err := e.Timeline(t.Context(), "nobody", 10); statusOf(err) != http.StatusNotFound {
		t.Errorf("the timeline of nobody: %v", err)
	}

	stream, err := c.js.Stream(t.Context(), loopwire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSequence(5)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Timeline(t.Context(), "mine", 10); err != nil {
		t.Errorf("a run that was looked at just now: %v", err)
	}
	if _, err := e.Timeline(t.Context(), "other", 10); statusOf(err) != http.StatusGone {
		t.Errorf("a run of which the stream has lost the beginning: %v", err)
	}
	if later, err := e.Run(t.Context(), "other"); err != nil || later.Totals.Attempts != 3 {
		t.Errorf("its summary: %+v, %v", later, err)
	}
}

// statusOf is that of an answer.
func statusOf(err error) int {
	if answer, ok := errors.AsType[*web.Error](err); ok {
		return answer.Status
	}
	return 0
}

// TestEachRunIsListedOnce pages through runs of which some are kept and some are folded.
func TestEachRunIsListedOnce(t *testing.T) {
	t.Parallel()
	c := newChronicle(t)
	const runs = 130
	for i := range runs {
		events := story(fmt.Sprintf("r%03d", i), 1, dawn.Add(time.Duration(i)*time.Minute))
		if i%10 == 0 {
			events = events[:2] // it goes on
		}
		c.tell(events...)
	}
	for more := true; more; {
		var err error
		if more, err = c.observer.keepSome(t.Context(), c.store, true); err != nil {
			t.Fatal(err)
		}
	}
	e := c.engine()
	for _, query := range []ledger.Query{
		{},
		{State: predictor.RunRunning},
		{State: predictor.RunSucceeded, Since: dawn.Add(time.Hour)},
	} {
		query.Limit = 7
		var want, got []string
		for i := range runs {
			state := predictor.RunSucceeded
			if i%10 == 0 {
				state = predictor.RunRunning
			}
			view := ledger.RunView{
				Run: fmt.Sprintf("r%03d", i), State: state,
				StartedAt: dawn.Add(time.Duration(i) * time.Minute),
			}
			if query.Selects(view) {
				want = append([]string{view.Run}, want...)
			}
		}
		for more := true; more; more = !query.After.IsZero() {
			page, err := e.Runs(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			for _, view := range page.Runs {
				got = append(got, view.Run)
			}
			query.After = page.Next
		}
		if !cmp.Equal(want, got) {
			t.Errorf("%+v:\n%s", query, cmp.Diff(want, got))
		}
	}
}
