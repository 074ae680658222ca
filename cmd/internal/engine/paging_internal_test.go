package engine

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/telemetry"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// TestManyRunsAndALargeOneAreMeasured folds 12,000 runs that go on and one of 250,000 attempts, and asks about them
// while it folds more.
func TestManyRunsAndALargeOneAreMeasured(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("a measurement: run it with SPILLWAY_MEASURE=1")
	}
	const runs, attempts = 12_000, 250_000
	c := newChronicle(t)
	o := newObserver(telemetry.NewMetrics(), true, extent{}, slog.New(slog.DiscardHandler))
	c.observer = o
	sequence := uint64(0)
	fold := func(event predictor.Event) {
		sequence++
		if err := o.apply(lineOf(sequence, event)); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	for i := range runs {
		for _, event := range story(fmt.Sprint("r", i), 1, dawn.Add(time.Duration(i)*time.Second))[:3] {
			fold(event)
		}
	}
	large := story("large", attempts, dawn)
	for _, event := range large[:len(large)-1] {
		if _, sample := event.(predictor.Sampled); !sample {
			fold(event)
		}
	}
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	t.Logf("folded in %s; heap %d MiB", time.Since(began).Round(time.Millisecond), memory.HeapAlloc>>20)

	// The fold goes on beside the questions; the longest wait for it is how far it falls behind.
	stop, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		most := time.Duration(0)
		for i := 0; ; i++ {
			select {
			case <-stop:
				longest <- most
				return
			case <-time.After(time.Millisecond):
			}
			begun := time.Now()
			fold(predictor.Record{
				Run: "large", Pipeline: "p", Stage: predictor.StageID{App: "app", Build: "b", Name: "score"},
				Task:    fmt.Sprint("t", i),
				Attempt: 2, Venue: predictor.Pool, Host: "h", Outcome: predictor.Succeeded, At: dawn.Add(time.Minute),
			})
			most = max(most, time.Since(begun))
		}
	}()
	e := c.engine()
	ask := func(what string, answer func() (any, error)) {
		begun := time.Now()
		value, err := answer()
		if err == nil {
			_, err = json.Marshal(value)
		}
		took := time.Since(begun)
		t.Logf("%s: %s", what, took.Round(time.Millisecond))
		if err != nil || took > 300*time.Millisecond {
			t.Errorf("%s takes %s (%v), want at most 300 ms", what, took, err)
		}
	}
	ctx := t.Context()
	for range 2 {
		ask("the first page of runs", func() (any, error) { return e.Runs(ctx, web.RunQuery{Limit: 200}) })
		ask("those of a state", func() (any, error) {
			return e.Runs(ctx, web.RunQuery{Limit: 200, State: predictor.RunSucceeded})
		})
		ask("the large run", func() (any, error) { return e.Run(ctx, "large") })
		ask("its timeline", func() (any, error) { return e.Timeline(ctx, "large", 1000) })
		ask("its allocation", func() (any, error) { return e.Allocation(ctx, "large", 300) })
		ask("its breakdown", func() (any, error) { return e.Breakdown(ctx, "large") })
		ask("its first attempts", func() (any, error) { return e.Attempts(ctx, web.AttemptQuery{Run: "large", Limit: 1000}) })
	}
	close(stop)
	if behind := <-longest; behind > 2*time.Second {
		t.Errorf("the fold was %s behind, want at most 2 s", behind)
	} else {
		t.Logf("the fold was at most %s behind", behind.Round(time.Millisecond))
	}
	for i := range runs {
		view, known := o.run(fmt.Sprint("r", i))
		if !known || view.Pipeline != "p" || !view.StartedAt.Equal(dawn.Add(time.Duration(i)*time.Second)) {
			t.Fatalf("run %d is %+v", i, ledger.RunView{Run: view.Run, Pipeline: view.Pipeline, StartedAt: view.StartedAt})
		}
	}
}
