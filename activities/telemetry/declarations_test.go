package telemetry_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"github.com/spillway-ml/spillway/activities/telemetry"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// everything is a Metrics in which every series was touched.
func everything() *telemetry.Metrics {
	metrics := telemetry.NewMetrics()
	metrics.SetNow(noon.Add(2 * time.Minute))
	full := record("train-1", 1)
	full.At = noon.Add(time.Minute)
	full.Queue, full.Start, full.Cost, full.Grant = time.Second, time.Second, quantity.USD,
		quantity.Size{CPU: 1000, Memory: 128}
	full.Usage = quantity.Usage{Wall: 4 * time.Second, Fetch: time.Second, Publish: time.Second, PeakMemory: 96}
	full.Predicted = predictor.Prediction{Wall: predictor.Interval{Mid: 3}, Memory: predictor.Interval{Mid: 150}}
	for _, event := range []predictor.Event{
		predictor.RunStarted{
			Run: "run-1", Pipeline: "train", Goal: predictor.Goal{Deadline: time.Second, Budget: 1},
			At: noon,
		},
		predictor.BacklogObserved{Stage: stage, Tasks: 5},
		full,
		predictor.Reused{Run: "run-1", Stage: stage, Tasks: 3, Saved: quantity.USD},
		predictor.HostHeld{
			Host: "host-1", Capacity: quantity.Size{CPU: 2000, Memory: quantity.GiB, GPU: 1000},
			PricePerHour: quantity.USD, At: noon,
		},
		predictor.RunEnded{Run: "run-1", State: predictor.RunSucceeded, At: noon.Add(time.Minute)},
	} {
		metrics.Apply(wire.Message{Event: event})
	}
	metrics.Apply(wire.Message{Decision: &predictor.Decision{Stage: stage, Venue: predictor.Pool, What: "slots"}})
	metrics.CountAlert(alerting.Alert{Kind: alerting.KindDeadlineAtRisk})
	metrics.SetDevice(telemetry.DeviceReading{
		GPU: "0", UUID: "GPU-1", Bus: "00000000:3B:00.0", Device: "nvidia0", Model: "NVIDIA H200", Host: "host-1",
		Busy: 0.5, EngineActive: 0.25,
		Used: 3 * quantity.GiB, Free: quantity.GiB,
	})
	metrics.ApplyPlan(predictor.Plan{Term: 1, Tick: 1, Teams: []predictor.TeamRow{{Held: 1}}})
	return metrics
}

func families(t *testing.T, metrics *telemetry.Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	list, err := metrics.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*dto.MetricFamily{}
	for _, family := range list {
		if name := family.GetName(); strings.HasPrefix(name, "spillway_") || strings.HasPrefix(name, "DCGM_") {
			all[name] = family
		}
	}
	return all
}

func TestWhatIsServedIsWhatIsDeclared(t *testing.T) {
	t.Parallel()
	served := families(t, everything())
	var declared []string
	for _, one := range telemetry.Series() {
		declared = append(declared, one.Name)
		family := served[one.Name]
		if family == nil {
			continue // told below
		}
		if got := strings.ToLower(family.GetType().String()); got != string(one.Kind) || family.GetHelp() != one.Help ||
			one.Unit == "" {
			t.Errorf("%s is served as a %s (%s), declared as a %s (%s) in %q", one.Name, got, family.GetHelp(), one.Kind,
				one.Help, one.Unit)
		}
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetName())
			}
			if want := slices.Sorted(slices.Values(one.Labels)); !slices.Equal(labels, want) {
				t.Errorf("%s is served with the labels %v, declared with %v", one.Name, labels, want)
			}
		}
	}
	var names []string
	for name := range served {
		names = append(names, name)
	}
	slices.Sort(names)
	slices.Sort(declared)
	if diff := cmp.Diff(declared, names); diff != "" {
		t.Errorf("series (-declared +served):\n%s", diff)
	}
}

func TestHistogramsAreClassicAndNativeWithTheRunTheyAreOf(t *testing.T) {
	t.Parallel()
	for _, one := range telemetry.Series() {
		if one.Kind != telemetry.Histogram {
			continue
		}
		for _, metric := range families(t, everything())[one.Name].GetMetric() {
			histogram := metric.GetHistogram()
			if histogram.GetSampleCount() == 0 {
				continue
			}
			if len(histogram.GetPositiveSpan())+int(histogram.GetZeroCount()) == 0 || histogram.GetSchema() < 3 {
				t.Errorf("%s has no native buckets of 10 percent: schema %d", one.Name, histogram.GetSchema())
			}
			if got := len(histogram.GetBucket()); got < len(one.Buckets) {
				t.Errorf("%s has %d classic buckets, want %d", one.Name, got, len(one.Buckets))
			}
			if len(histogram.GetExemplars()) == 0 {
				t.Errorf("%s has no exemplar", one.Name)
			}
		}
	}
}

// openMetrics serves the metrics as a scraper that asks for OpenMetrics gets them.
func openMetrics(t *testing.T, metrics *telemetry.Metrics) string {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
	request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	answer := httptest.NewRecorder()
	metrics.Handler().ServeHTTP(answer, request)
	if got := answer.Header().Get("Content-Type"); !strings.HasPrefix(got, "application/openmetrics-text") {
		t.Fatalf("served as %q", got)
	}
	return answer.Body.String()
}

func TestExemplarsPointToTheRunAndItsTrace(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	metrics.SetNow(noon)
	const brought = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	long := strings.Repeat("é", 80)
	metrics.Apply(wire.Message{Event: predictor.RunStarted{Run: long, Traceparent: brought}})
	slow := record("train-1", 1)
	slow.Run, slow.Queue, slow.At = long, 2*time.Second, noon
	metrics.Apply(wire.Message{Event: slow})
	other := record("train-1", 1)
	other.Run, other.Queue, other.At = "run-2", 20*time.Second, noon
	metrics.Apply(wire.Message{Event: other})
	other.Run, other.At = "run-0", noon.Add(-time.Hour) // read again when the engine starts
	metrics.Apply(wire.Message{Event: other})
	lines := strings.Split(openMetrics(t, metrics), "\n")
	for prefix, labels := range map[string][]string{ // the library writes the labels of an exemplar in any order
		`spillway_attempt_queue_seconds_bucket{app="digits",stage="train",venue="pool",le="3.0"} 1 # `: {
			`run="` + strings.Repeat("é", 64) + `"`, `trace_id="0af7651916cd43dd8448eb211c80319c"`, "} 2.0 ",
		},
		`spillway_attempt_queue_seconds_bucket{app="digits",stage="train",venue="pool",le="30.0"} 3 # `: {
			`run="run-2"`,
			`trace_id="`, "} 20.0 ",
		},
		`spillway_attempts_total{app="digits",outcome="succeeded",stage="train",venue="pool"} 3.0 # `: {
			`run="run-2"`,
			`trace_id="`, "} 1.0 ",
		},
	} {
		at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, prefix) })
		if at < 0 {
			t.Errorf("no line %q", prefix)
			continue
		}
		for _, label := range labels {
			if !strings.Contains(lines[at], label) {
				t.Errorf("%q has no %s", lines[at], label)
			}
		}
	}
}

func TestTheGPUsOfAHostAreShownWhileTheyWork(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	host := predictor.Host{ID: "host-1", GPUs: []predictor.GPU{
		{
			UUID: "GPU-1", Instance: -1, Bus: "00000000:3B:00.0", Name: "NVIDIA H200", Busy: .5, Watts: 61.5,
			Uncorrected: 3, Memory: 4 * quantity.GiB, Used: quantity.GiB,
		},
		{
			UUID: "GPU-2", Index: 1, Instance: -1, Name: "NVIDIA H200", Busy: -1, Watts: -1, Uncorrected: -1,
			Memory: 4 * quantity.GiB,
		},
		{
			UUID: "MIG-a", Index: 2, Instance: 0, GPUInstance: 9, Profile: "3g.20gb", Busy: -1, Watts: -1, Uncorrected: -1,
			Memory: 4 * quantity.GiB,
		},
	}}
	metrics.SetGPUs(host)
	if text := openMetrics(t, metrics); strings.Contains(text, "} -1") {
		t.Error("what a driver does not tell is shown as -1")
	}
	host.GPUs[1].Wrong = "has fallen off the bus"
	metrics.SetGPUs(host)
	text := openMetrics(t, metrics)
	const labels = `{GPU_I_ID="",GPU_I_PROFILE="",Hostname="host-1",UUID="GPU-1",device="nvidia0",gpu="0",` +
		`modelName="NVIDIA H200",pci_bus_id="00000000:3B:00.0"}`
	for name, value := range map[string]string{
		"DCGM_FI_DEV_GPU_UTIL": "50.0", "DCGM_FI_DEV_FB_USED": "1024.0", "DCGM_FI_DEV_FB_FREE": "3072.0",
		"DCGM_FI_DEV_POWER_USAGE": "61.5", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "3.0",
	} {
		if want := name + labels + " " + value + "\n"; !strings.Contains(text, want) {
			t.Errorf("no line %q", want)
		}
	}
	if strings.Contains(text, "GPU-2") {
		t.Error("a lost device is shown")
	}
	const instance = `GPU_I_ID="9",GPU_I_PROFILE="3g.20gb",Hostname="host-1",UUID="MIG-a",device="nvidia2",gpu="2"`
	if want := instance; !strings.Contains(text, want) {
		t.Errorf("an instance is not told from its GPU: no %s", want)
	}
	host.GPUs[0].Busy, host.GPUs[0].Watts = -1, -1
	host.GPUs = host.GPUs[:2] // another layout of instances
	metrics.SetGPUs(host)
	text = openMetrics(t, metrics)
	if strings.Contains(text, "MIG-a") {
		t.Error("an instance is shown that is not there any more")
	}
	for name, shown := range map[string]bool{
		"DCGM_FI_DEV_GPU_UTIL": false, "DCGM_FI_DEV_POWER_USAGE": false, "DCGM_FI_DEV_FB_USED": true,
	} {
		if strings.Contains(text, name+labels) != shown {
			t.Errorf("%s of a GPU that does not tell it any more: shown should be %t", name, shown)
		}
	}
}

func TestDevicesAreShownAsNVIDIAsExporterShowsThem(t *testing.T) {
	t.Parallel()
	metrics := everything()
	metrics.SetDevice(telemetry.DeviceReading{
		GPU: "1", UUID: "GPU-2", Device: "nvidia1", Model: "NVIDIA H200",
		Host: "host-1", Busy: -1, EngineActive: -1,
	})
	text := openMetrics(t, metrics)
	const labels = `{GPU_I_ID="",GPU_I_PROFILE="",Hostname="host-1",UUID="GPU-1",device="nvidia0",gpu="0",` +
		`modelName="NVIDIA H200",pci_bus_id="00000000:3B:00.0"}`
	for name, value := range map[string]string{
		"DCGM_FI_DEV_GPU_UTIL": "50.0", "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "0.25", "DCGM_FI_DEV_FB_USED": "3072.0",
		"DCGM_FI_DEV_FB_FREE": "1024.0",
	} {
		if want := name + labels + " " + value + "\n"; !strings.Contains(text, want) {
			t.Errorf("no line %q", want)
		}
	}
	if strings.Contains(text, `DCGM_FI_DEV_GPU_UTIL{GPU_I_ID="",GPU_I_PROFILE="",Hostname="host-1",UUID="GPU-2"`) {
		t.Error("a device of which nobody counts the use shows one")
	}
}
