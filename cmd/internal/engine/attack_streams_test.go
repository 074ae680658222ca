package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/predictor/alerting"
)

// deleteStreams deletes everything that NATS keeps.
func (e *testEngine) deleteStreams(js jetstream.JetStream) {
	e.t.Helper()
	names := js.StreamNames(e.t.Context())
	var all []string
	for name := range names.Name() {
		all = append(all, name)
	}
	if names.Err() != nil || len(all) == 0 {
		e.t.Fatalf("streams %v: %v", all, names.Err())
	}
	for _, name := range all {
		if err := js.DeleteStream(e.t.Context(), name); err != nil {
			e.t.Errorf("delete %s: %v", name, err)
		}
	}
}

func TestAttackDeletedStreamsDoNotKeepTheEngineFromEnding(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0))
	succeed[map[string]int](e, e.publish("echo", "before", map[string]int{"index": 1}), time.Minute)
	e.publish("echo", "going-on", map[string]int{"index": 2})
	e.deleteStreams(e.stream())
	e.stop()
}

func TestAttackDeletedStreamsAreMadeAnewAndRunsGoOn(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--no-burst")
	succeed[map[string]int](e, e.publish("echo", "before", map[string]int{"index": 1}), patience)
	e.deleteStreams(e.stream())
	e.until("the streams are there again", func() bool { return e.client.Healthy(t.Context()) == nil })
	for _, id := range []string{"after", "later"} {
		succeed[map[string]int](e, e.publish("echo", id, map[string]int{"index": 2}), patience)
	}
	var told string
	e.until("the loss of all of them is told", func() bool {
		alerts, err := e.client.Alerts(t.Context(), 10)
		var messages []string
		for _, alert := range alerts {
			if alert.Kind == alerting.KindStreamsLost {
				messages = append(messages, alert.Message)
			}
		}
		told = strings.Join(messages, "\n")
		return err == nil && strings.Contains(told, "SPILLWAY_LOOP") && strings.Contains(told, "SPILLWAY_EVENTS")
	})
	if strings.Contains(told, "KV_spillway_hosts") {
		t.Errorf("told %q: what is in memory is nothing to look after", told)
	}
	if n := e.series()[`spillway_alerts_total{kind="streams_lost"}`]; n < 1 {
		t.Errorf("%v alerts are counted", n)
	}
	e.stop()
}
