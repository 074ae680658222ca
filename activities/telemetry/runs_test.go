package telemetry_test

import (
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/telemetry"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func apply(metrics *telemetry.Metrics, events ...predictor.Event) {
	for _, event := range events {
		metrics.Apply(wire.Message{Event: event})
	}
}

// paid is a Record of a run that cost something.
func paid(run string, cost quantity.Money) predictor.Record {
	one := record("train-1", 1)
	one.Run, one.Cost, one.At = run, cost, noon
	return one
}

func TestARunCountsWhatItTookAndWhetherItMetItsGoal(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	goal := predictor.Goal{Deadline: time.Minute, Budget: quantity.USD}
	started := func(run string, goal predictor.Goal) predictor.RunStarted {
		return predictor.RunStarted{Run: run, Pipeline: "train", Goal: goal, At: noon}
	}
	ended := func(run string, after time.Duration) predictor.RunEnded {
		return predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: noon.Add(after)}
	}
	apply(metrics,
		started("good", goal), paid("good", quantity.USD), started("good", goal), ended("good", time.Minute),
		started("late", goal), ended("late", 61*time.Second),
		started("dear", goal), paid("dear", quantity.USD), paid("dear", 1), ended("dear", time.Second),
		started("free", predictor.Goal{}), paid("free", 9*quantity.USD), ended("free", time.Hour),
		started("eased", goal), predictor.GoalChanged{Run: "eased", Goal: predictor.Goal{Deadline: time.Hour}},
		ended("eased", 10*time.Minute),
		ended("eased", 10*time.Minute), ended("unknown", time.Minute),
	)
	check(t, metrics, map[string]string{
		`spillway_runs_total{state="running"}`:                                            "5",
		`spillway_run_deadlines_total{pipeline="train"}`:                                  "4",
		`spillway_run_deadline_missed_total{pipeline="train"}`:                            "1",
		`spillway_run_budgets_total{pipeline="train"}`:                                    "3",
		`spillway_run_budget_missed_total{pipeline="train"}`:                              "1",
		`spillway_run_seconds_count{pipeline="train",state="succeeded"}`:                  "5",
		`spillway_run_seconds_sum{pipeline="train",state="succeeded"}`:                    "4322",
		`spillway_run_cost_dollars_bucket{pipeline="train",state="succeeded",le="1e-05"}`: "2",
		`spillway_run_cost_dollars_bucket{pipeline="train",state="succeeded",le="10"}`:    "5",
	})
}

func TestReuseAndAlertsAreCounted(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	apply(metrics,
		predictor.Reused{Run: "run-1", Stage: stage, Tasks: 3, Saved: quantity.USD / 2, At: noon},
		predictor.Reused{Run: "run-1", Stage: stage, Tasks: -3, Saved: -1, At: noon},
	)
	metrics.CountAlert(alerting.Alert{Kind: alerting.KindRecovered})
	metrics.CountAlert(alerting.Alert{Kind: "invented"})
	check(t, metrics, map[string]string{
		`spillway_reused_tasks_total{app="digits",stage="train"}`:  "3",
		`spillway_saved_dollars_total{app="digits",stage="train"}`: "0.5",
		`spillway_alerts_total{kind="recovered"}`:                  "1",
		`spillway_alerts_total{kind="budget_at_risk"}`:             "0",
		`spillway_alerts_total{kind="other"}`:                      "1",
	})
}

func TestMemoryIsMeasuredAgainstItsGrant(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	half := record("train-1", 1)
	half.Grant.Memory, half.Usage = 128, quantity.Usage{Wall: time.Second, Fetch: 250 * time.Millisecond, PeakMemory: 64}
	without := record("train-2", 1)
	without.Usage.PeakMemory = 64
	apply(metrics, half, without)
	const labels = `{app="digits",stage="train",venue="pool"}`
	check(t, metrics, map[string]string{
		"spillway_memory_granted_ratio_sum" + labels: "0.5", "spillway_memory_granted_ratio_count" + labels: "1",
		"spillway_attempt_fetch_seconds_sum" + labels: "0.25", "spillway_attempt_fetch_seconds_count" + labels: "1",
		"spillway_attempt_publish_seconds_count" + labels: "1",
	})
}

func TestAHostThatIsGoneHasNoSeries(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	held := func(host string, at time.Time) predictor.HostHeld {
		return predictor.HostHeld{
			Host: host, Capacity: quantity.Size{CPU: 1500, Memory: 1024, GPU: 2000},
			PricePerHour: quantity.USD / 4, From: at, At: at,
		}
	}
	apply(metrics, held("a", noon), held("b", noon))
	check(t, metrics, map[string]string{
		`spillway_host_capacity_cpu_cores{host="a"}`: "1.5", `spillway_host_capacity_memory_bytes{host="b"}`: "1024",
		`spillway_host_capacity_gpus{host="a"}`: "2", `spillway_host_price_dollars_per_hour{host="b"}`: "0.25",
	})
	apply(metrics, held("b", noon.Add(4*time.Minute)), predictor.RunStarted{Run: "run-1", At: noon.Add(6 * time.Minute)})
	check(t, metrics, map[string]string{
		`spillway_host_capacity_cpu_cores{host="a"}`: "", `spillway_host_price_dollars_per_hour{host="a"}`: "",
		`spillway_host_capacity_cpu_cores{host="b"}`: "1.5",
	})
}

func BenchmarkApplyRecord(b *testing.B) {
	one := record("train-1", 1)
	one.Queue, one.Cost, one.Grant.Memory, one.At = time.Second, quantity.USD, 128, noon
	one.Usage = quantity.Usage{Wall: time.Second, PeakMemory: 64}
	for name, now := range map[string]time.Time{"new": noon, "read again": noon.Add(time.Hour)} {
		b.Run(name, func(b *testing.B) {
			metrics := everything()
			metrics.SetNow(now)
			b.ReportAllocs()
			for b.Loop() {
				metrics.Apply(wire.Message{Event: one})
			}
		})
	}
}

func TestWhatWasThereBeforeIsShownAndNotCounted(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	goal, stage := predictor.Goal{Deadline: time.Minute, Budget: quantity.USD}, record("train-1", 1).Stage
	started := predictor.RunStarted{Run: "over", Pipeline: "train", Goal: goal, At: noon}
	for _, message := range []wire.Message{
		{Event: started},
		{Event: paid("over", quantity.USD)},
		{Event: predictor.RunEnded{Run: "over", State: predictor.RunFailed, At: noon}},
		{Event: predictor.RunStarted{Run: "on", Pipeline: "train", Goal: goal, At: noon}},
		{Event: paid("on", quantity.USD)},
		{Event: predictor.BacklogObserved{Stage: stage, Tasks: 7, At: noon}},
		{Event: predictor.Reused{Run: "on", Stage: stage, Tasks: 3, At: noon}},
		{Event: predictor.HostHeld{Host: "h", PricePerHour: quantity.USD, From: noon, At: noon}},
		{Decision: &predictor.Decision{Stage: stage, Venue: predictor.Pool, What: "slots"}},
		{},
	} {
		metrics.Replay(message)
	}
	check(t, metrics, map[string]string{
		`spillway_runs_total{state="running"}`:                                                 "0",
		`spillway_runs_total{state="failed"}`:                                                  "0",
		`spillway_attempts_total{app="digits",outcome="succeeded",stage="train",venue="pool"}`: "0",
		`spillway_cost_dollars_total{app="digits",stage="train",venue="pool"}`:                 "0",
		`spillway_run_deadlines_total{pipeline="train"}`:                                       "0",
		`spillway_unreadable_messages_total`:                                                   "0",
		`spillway_backlog_tasks{app="digits",stage="train"}`:                                   "7",
		`spillway_host_price_dollars_per_hour{host="h"}`:                                       "1",
	})
	// A run that goes on is counted at its end, with all that it has cost.
	apply(metrics, paid("on", quantity.USD), predictor.RunEnded{
		Run: "on", State: predictor.RunSucceeded,
		At: noon.Add(2 * time.Minute),
	})
	check(t, metrics, map[string]string{
		`spillway_runs_total{state="succeeded"}`:                            "1",
		`spillway_run_deadline_missed_total{pipeline="train"}`:              "1",
		`spillway_run_budget_missed_total{pipeline="train"}`:                "1",
		`spillway_run_seconds_sum{pipeline="train",state="succeeded"}`:      "120",
		`spillway_run_cost_dollars_sum{pipeline="train",state="succeeded"}`: "2",
	})
}
