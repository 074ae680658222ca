package check_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/activities/telemetry"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// busy serves metrics of an engine in which a run begins and ends between any two scrapes, and everything that can
// happen happens to it.
func busy(t *testing.T) *httptest.Server {
	t.Helper()
	metrics := telemetry.NewMetrics()
	metrics.SetLeader(true)
	stage := predictor.StageID{App: "digits", Build: "b", Name: "train"}
	size := quantity.Size{CPU: 1000, Memory: 128 * quantity.MiB}
	var scrapes atomic.Int64
	serve := metrics.Handler()
	guard := &access.Guard{Keys: accesstest.Keys(), Rule: func(*http.Request) access.Rule {
		return access.Rule{Needs: access.Scraper}
	}}
	server := httptest.NewServer(guard.Wrap(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		run, now := fmt.Sprint("run-", scrapes.Add(1)), time.Now()
		events := []predictor.Event{
			predictor.RunStarted{
				Run: run, Pipeline: "digits", Goal: predictor.Goal{Deadline: time.Second, Budget: quantity.USD},
				At: now.Add(-time.Minute),
			},
			predictor.Reused{Run: run, Stage: stage, Tasks: 1, Saved: quantity.USD, At: now},
			predictor.BacklogObserved{Stage: stage, Tasks: 3, At: now},
			predictor.HostHeld{
				Host: "host-1", Capacity: quantity.Size{CPU: 4000, Memory: quantity.GiB, GPU: 1000},
				PricePerHour: quantity.USD, From: now, At: now,
			},
		}
		for i, venue := range []predictor.Venue{predictor.Pool, predictor.Function} {
			events = append(events, predictor.Record{
				Run: run, Pipeline: "digits", Stage: stage, Task: "train-1", Attempt: i + 1, Venue: venue,
				Outcome: predictor.Succeeded,
				Queue:   time.Second, Start: time.Second, At: now, Grant: size, Cost: quantity.USD / 100,
				Predicted: predictor.Prediction{Wall: predictor.Interval{Mid: 3}, Memory: predictor.Interval{Mid: 64e6}},
				Usage: quantity.Usage{
					Wall: 4 * time.Second, Fetch: time.Second, Publish: time.Second,
					PeakMemory: 64 * quantity.MiB,
				},
			})
		}
		for _, event := range append(events, predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: now}) {
			metrics.Apply(wire.Message{Event: event})
		}
		metrics.Apply(wire.Message{Decision: &predictor.Decision{Stage: stage, Venue: predictor.Pool, What: "slots"}})
		metrics.ApplyPlan(predictor.Plan{Term: 1, Tick: uint64(scrapes.Load()), Grants: []predictor.Grant{
			{Stage: stage, Venue: predictor.Pool, Slots: 2, Size: size},
			{Stage: stage, Venue: predictor.Function, Slots: 2, Size: size},
		}})
		metrics.CountAlert(alerting.Alert{Kind: alerting.KindDeadlineAtRisk})
		metrics.CountEvent(telemetry.EventDead)
		metrics.SetDevice(telemetry.DeviceReading{
			GPU: "0", UUID: "GPU-1", Device: "nvidia0", Model: "H200", Host: "host-1",
			Busy: 1, EngineActive: 1, Watts: 1, Uncorrected: 1, Used: 1, Free: 1,
		})
		serve.ServeHTTP(w, request)
	})))
	t.Cleanup(server.Close)
	return server
}

// startPrometheus starts one that scrapes target every second, and returns where it listens.
func startPrometheus(t *testing.T, target string, flags ...string) string {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "promtool") {
			t.Fatalf("prometheus is required: %v", err)
		}
		t.Skip("prometheus is not installed: the package of that name of Debian and of Ubuntu has it")
	}
	var listen net.ListenConfig
	free, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, dir := free.Addr().String(), t.TempDir()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs(filepath.Join(rulesDir, "rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n"+
		"- {job_name: spillway, authorization: {credentials_file: token}, static_configs: [{targets: [%q]}]}\n", rules,
		strings.TrimPrefix(target, "http://"))
	file := filepath.Join(dir, "prometheus.yml")
	for name, text := range map[string]string{
		file:                        config,
		filepath.Join(dir, "token"): accesstest.Keys().MetricsToken() + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), path,
		append(flags, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
			"--web.listen-address="+address)...)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 10 * time.Second
	var output strings.Builder
	command.Stderr = &output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Wait() // the test's context has ended it
		if t.Failed() {
			t.Logf("prometheus said:\n%s", output.String())
		}
	})
	return "http://" + address
}

// ask returns how many series answer an expression; ok is false while Prometheus does not answer.
func ask(ctx context.Context, t *testing.T, prometheus, expression string) (series int, ok bool) {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		prometheus+"/api/v1/query?query="+url.QueryEscape(expression), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, false
	}
	defer func() { _ = response.Body.Close() }() // read to its end
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, false
	}
	var answer struct {
		Status string
		Data   struct{ Result []any }
	}
	if response.StatusCode == http.StatusServiceUnavailable {
		return 0, false // it is still starting
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %s: %s", expression, response.Status, body)
	}
	return len(answer.Data.Result), true
}

func TestEveryPanelShowsSomethingOfABusyEngine(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"classic histograms": nil,
		"native histograms":  {"--enable-feature=native-histograms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prometheus := startPrometheus(t, busy(t).URL, flags...)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for file, board := range dashboards(t) {
				for _, panel := range board.Panels {
					for _, target := range panel.Targets {
						expression := strings.ReplaceAll(plain(target.Expr), "[5m]", "[30s]")
						for {
							if series, ok := ask(ctx, t, prometheus, expression); ok && series > 0 {
								break
							}
							select {
							case <-ctx.Done():
								t.Fatalf("%s: %s: nothing answers %s", file, panel.Title, expression)
							case <-time.After(200 * time.Millisecond): // until it has scraped twice
							}
						}
					}
				}
			}
			classic, _ := ask(ctx, t, prometheus, "spillway_attempt_run_seconds_bucket")
			if native := len(flags) > 0; (classic == 0) != native {
				t.Errorf("%d series of classic buckets were scraped, natively: %t", classic, native)
			}
		})
	}
}
