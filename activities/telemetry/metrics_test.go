package telemetry_test

import (
	"bufio"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/spillway-ml/spillway/activities/telemetry"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// series serves the metrics as Prometheus fetches them and returns each line of ours by name and labels.
func series(t *testing.T, metrics *telemetry.Metrics) map[string]string {
	t.Helper()
	answer := httptest.NewRecorder()
	metrics.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics",
		http.NoBody))
	values := map[string]string{}
	for scanner := bufio.NewScanner(answer.Body); scanner.Scan(); {
		if name, value, found := strings.Cut(scanner.Text(), " "); found && strings.HasPrefix(name, "spillway_") {
			values[name] = value
		}
	}
	return values
}

// check compares some of the series.
func check(t *testing.T, metrics *telemetry.Metrics, want map[string]string) {
	t.Helper()
	all, got := series(t, metrics), map[string]string{}
	for name := range want {
		got[name] = all[name]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestMetricsShowWhatRecordsSay(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	good := record("train-1", 1)
	good.Queue, good.Start, good.Cost = 2*time.Second, 20*time.Millisecond, quantity.USD/4
	good.Usage = quantity.Usage{Wall: 4 * time.Second, PeakMemory: 100}
	good.Predicted = predictor.Prediction{Wall: predictor.Interval{Mid: 3}, Memory: predictor.Interval{Mid: 150}}
	odd := record("train-2", 1)
	odd.Outcome, odd.Venue = "exploded", "moon"
	odd.Queue, odd.Cost = -time.Second, -quantity.USD
	metrics.Apply(wire.Message{Event: good})
	metrics.Apply(wire.Message{Event: good})
	metrics.Apply(wire.Message{Event: odd})
	check(t, metrics, map[string]string{
		`spillway_attempts_total{app="digits",outcome="succeeded",stage="train",venue="pool"}`:                 "2",
		`spillway_attempts_total{app="digits",outcome="out_of_memory",stage="train",venue="function"}`:         "0",
		`spillway_attempts_total{app="digits",outcome="other",stage="train",venue="other"}`:                    "1",
		`spillway_attempt_queue_seconds_sum{app="digits",stage="train",venue="pool"}`:                          "4",
		`spillway_attempt_queue_seconds_count{app="digits",stage="train",venue="other"}`:                       "0",
		`spillway_attempt_start_seconds_bucket{app="digits",stage="train",venue="pool",le="0.03"}`:             "2",
		`spillway_attempt_run_seconds_sum{app="digits",stage="train",venue="pool"}`:                            "8",
		`spillway_attempt_peak_memory_bytes{app="digits",stage="train",venue="pool"}`:                          "100",
		`spillway_cost_dollars_total{app="digits",stage="train",venue="pool"}`:                                 "0.5",
		`spillway_cost_dollars_total{app="digits",stage="train",venue="function"}`:                             "0",
		`spillway_prediction_relative_error_ratio_sum{app="digits",quantity="wall",stage="train"}`:             "0.5",
		`spillway_prediction_relative_error_ratio_sum{app="digits",quantity="memory",stage="train"}`:           "1",
		`spillway_prediction_relative_error_ratio_bucket{app="digits",quantity="wall",stage="train",le="0.3"}`: "2",
		`spillway_prediction_relative_error_ratio_bucket{app="digits",quantity="wall",stage="train",le="0.2"}`: "0",
	})
}

func TestMetricsShowTheLoop(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	newBuild := predictor.StageID{App: "digits", Build: "b2", Name: "train"}
	for _, event := range []predictor.Event{
		predictor.RunStarted{Run: "run-1"},
		predictor.RunStarted{Run: "run-2"},
		predictor.RunEnded{Run: "run-1", State: predictor.RunSucceeded},
		predictor.RunEnded{Run: "run-2", State: "vanished"},
		predictor.BacklogObserved{Stage: stage, Tasks: 5},
		predictor.BacklogObserved{Stage: stage, PoolOnly: true, Tasks: 2},
		predictor.BacklogObserved{Stage: newBuild, Tasks: 10},
		predictor.BacklogObserved{Stage: stage, Tasks: 1},
		predictor.BacklogObserved{Stage: stage, Tasks: -8},
		predictor.Sampled{Stage: stage},
	} {
		metrics.Apply(wire.Message{Event: event})
	}
	metrics.Apply(wire.Message{Decision: &predictor.Decision{Stage: stage, Venue: predictor.Function, What: "slots"}})
	metrics.Apply(wire.Message{Decision: &predictor.Decision{Stage: stage, Run: "run-1", What: "window"}})
	metrics.Apply(wire.Message{})
	metrics.CountEvent(telemetry.EventDuplicate)
	metrics.CountEvent("lost")
	metrics.CountDropped()
	metrics.SetLeader(true)
	check(t, metrics, map[string]string{
		`spillway_runs_total{state="running"}`:                                               "2",
		`spillway_runs_total{state="succeeded"}`:                                             "1",
		`spillway_runs_total{state="failed"}`:                                                "0",
		`spillway_runs_total{state="other"}`:                                                 "1",
		`spillway_backlog_tasks{app="digits",stage="train"}`:                                 "12",
		`spillway_decisions_total{app="digits",stage="train",venue="function",what="slots"}`: "1",
		`spillway_decisions_total{app="digits",stage="train",venue="",what="window"}`:        "1",
		`spillway_unreadable_messages_total`:                                                 "1",
		`spillway_events_total{result="started"}`:                                            "0",
		`spillway_events_total{result="duplicate"}`:                                          "1",
		`spillway_events_total{result="other"}`:                                              "1",
		`spillway_dropped_messages_total`:                                                    "1",
		`spillway_leader`:                                                                    "1",
	})
	metrics.SetLeader(false)
	metrics.Apply(wire.Message{Event: predictor.BacklogObserved{Stage: newBuild}})
	metrics.Apply(wire.Message{Event: predictor.BacklogObserved{Stage: stage, PoolOnly: true}})
	check(t, metrics, map[string]string{`spillway_leader`: "0", `spillway_backlog_tasks{app="digits",stage="train"}`: "0"})
}

func TestMetricsShowThePlanInForce(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	grant := func(build string, venue predictor.Venue, slots int) predictor.Grant {
		return predictor.Grant{
			Stage: predictor.StageID{App: "digits", Build: build, Name: "train"}, Venue: venue, Slots: slots,
			Size: quantity.Size{CPU: 1500, Memory: 64 * quantity.MiB},
		}
	}
	const pool, function = `{app="digits",stage="train",venue="pool"}`, `{app="digits",stage="train",venue="function"}`
	metrics.ApplyPlan(predictor.Plan{
		Term: 2, Tick: 1,
		Grants: []predictor.Grant{
			grant("b1", predictor.Pool, 3), grant("b2", predictor.Pool, 1),
			grant("b2", predictor.Function, 8),
		},
	})
	metrics.ApplyPlan(predictor.Plan{Term: 1, Tick: 9}) // of a leader that was deposed
	check(t, metrics, map[string]string{
		"spillway_slots" + pool: "4", "spillway_slots" + function: "8", "spillway_grant_cpu_cores" + pool: "1.5",
		"spillway_grant_memory_bytes" + function: "6.7108864e+07", "spillway_plan_term": "2", "spillway_plan_tick": "1",
	})
	metrics.ApplyPlan(predictor.Plan{
		Term: 2, Tick: 2, Grants: []predictor.Grant{grant("b2", predictor.Pool, 1)},
		Teams: []predictor.TeamRow{
			{Held: 1},
			{
				Team: predictor.Team{Name: "vision", Slots: 4, PerDay: quantity.USD}, Held: 3, Waiting: 9, Spent: quantity.USD / 2,
			},
		},
	})
	check(t, metrics, map[string]string{
		`spillway_team_slots{team="default"}`: "1", `spillway_team_most_slots{team="default"}`: "0",
		`spillway_team_slots{team="vision"}`: "3", `spillway_team_most_slots{team="vision"}`: "4",
		`spillway_team_waiting_tasks{team="vision"}`: "9", `spillway_team_spent_today_dollars{team="vision"}`: "0.5",
		`spillway_team_most_per_day_dollars{team="vision"}`: "1",
	})
	check(t, metrics, map[string]string{
		"spillway_slots" + pool: "1", "spillway_slots" + function: "0",
		"spillway_grant_memory_bytes" + function: "0",
	})
}

func TestMadeUpStagesShareOneSetOfSeries(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	metrics.SetLimit(40)
	var all sync.WaitGroup
	for app := range 4 {
		all.Go(func() {
			for name := range 60 {
				metrics.Apply(wire.Message{Event: predictor.Record{Stage: predictor.StageID{
					App:  fmt.Sprint("app-", app),
					Name: fmt.Sprint("s", name),
				}, Venue: predictor.Pool, Outcome: predictor.Failed}})
			}
		})
	}
	all.Wait()
	check(t, metrics,
		map[string]string{`spillway_attempts_total{app="other",outcome="failed",stage="other",venue="pool"}`: "200"})
}

func TestNamesOfSeriesKeepToPrometheusConventions(t *testing.T) {
	t.Parallel()
	families, err := everything().Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		if strings.HasPrefix(problem.Metric, "spillway_") {
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
}

func TestNumbersThatAreNotFiniteNeverReachASeries(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	bad := record("train-1", 1)
	bad.Usage.Wall = time.Second
	for _, mid := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0} {
		bad.Predicted.Wall.Mid = mid
		metrics.Apply(wire.Message{Event: bad})
	}
	check(t, metrics,
		map[string]string{`spillway_prediction_relative_error_ratio_count{app="digits",quantity="wall",stage="train"}`: "0"})
}

var stage = predictor.StageID{App: "digits", Build: "b1", Name: "train"}

func record(task string, attempt int) predictor.Record {
	return predictor.Record{
		Run: "run-1", Pipeline: "train", Stage: stage, Task: task, Attempt: attempt,
		Venue: predictor.Pool, Outcome: predictor.Succeeded,
	}
}
