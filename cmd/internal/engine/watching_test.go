package engine_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/digits/digitstest"
)

// timed runs the sample once and returns how long it took from its start to its end.
func (e *testEngine) timed(id string, event web.Event) (time.Duration, ledger.RunView) {
	e.t.Helper()
	event.Pipeline, event.ID = "digits", id
	published, err := e.client.Publish(e.t.Context(), event)
	if err != nil {
		e.t.Fatal(err)
	}
	view := e.wait(published.Run, patience)
	if view.State != predictor.RunSucceeded {
		e.t.Fatalf("run %s %s: %s", view.Run, view.State, view.Error)
	}
	return view.EndedAt.Sub(view.StartedAt), view
}

// TestWatchingCostsLittle runs the sample in turn on an engine whose metrics are fetched every second and whose spans
// go to a collector, and on one without either, and tells the ratio of the medians. Sizes are static: what one engine
// learns and the other does not would be more than what is measured.
func TestWatchingCostsLittle(t *testing.T) {
	needMeasure(t)
	var spans atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		spans.Add(n)
	}))
	defer collector.Close()
	app := buildDigits(t)
	bare := startEngine(t, t.TempDir(), app, "--predictor", "off", "--no-metrics")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	watched := startEngine(t, t.TempDir(), app, "--predictor", "off")
	var scrapes atomic.Int64
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-t.Context().Done():
				return
			case <-ticker.C:
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, watched.address+"/metrics", http.NoBody)
			if err != nil {
				return
			}
			request.Header.Set("Authorization", "Bearer "+watched.token)
			if answer, err := http.DefaultClient.Do(request); err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
				scrapes.Add(1)
			}
		}
	}()
	input, err := json.Marshal(map[string]any{"shards": 100, "max_epochs": 6, "dir": digitstest.Images(t, 300)})
	if err != nil {
		t.Fatal(err)
	}
	event := web.Event{Input: input}
	bare.timed("warm", event)
	watched.timed("warm", event)
	var without, with []float64
	for n := range 12 {
		id := "r" + string(rune('a'+n))
		first, second := bare, watched
		if n%2 == 1 {
			first, second = watched, bare
		}
		for _, e := range []*testEngine{first, second} {
			took, _ := e.timed(id, event)
			if e == bare {
				without = append(without, took.Seconds())
			} else {
				with = append(with, took.Seconds())
			}
		}
	}
	t.Logf("the sample took %.2f s without and %.2f s with metrics and traces at the median of %d runs each, "+
		"interleaved: %+.1f%%; %d scrapes, %d bytes of spans",
		median(without), median(with), len(with), 100*(median(with)/median(without)-1), scrapes.Load(), spans.Load())
	if spans.Load() == 0 || scrapes.Load() == 0 {
		t.Error("nothing was watched")
	}
}

// TestACachedRerunOfDigits runs the sample twice with the same input, and tells what ran.
func TestACachedRerunOfDigits(t *testing.T) {
	needMeasure(t)
	e := startEngine(t, t.TempDir(), buildDigits(t))
	first, before := e.timed("first", web.Event{})
	second, after := e.timed("second", web.Event{Cache: true})
	t.Logf("the first run: %.2f s, %s, attempts %s", first.Seconds(), before.Totals.Cost, attemptsOf(before))
	t.Logf("the second run: %.2f s, %s, attempts %s; %d results reused that cost %s and %.1f s of attempts",
		second.Seconds(), after.Totals.Cost,
		attemptsOf(after), after.Reused.Tasks, after.Reused.Saved, after.Reused.Seconds)
	if string(before.Result) != string(after.Result) {
		t.Errorf("results differ: %s and %s", before.Result, after.Result)
	}
}
