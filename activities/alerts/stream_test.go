package alerts_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/alerts"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
)

func TestAlertsAreStoredOnceAndReachSubscribers(t *testing.T) {
	t.Parallel()
	js, connection := startNATS(t)
	live, err := connection.SubscribeSync(wire.AlertSubject("digits"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // two engines, or one that starts again
		s := sender(t, alerts.Options{JetStream: js})
		for n := range 3 {
			s.Send(alert("r", n))
			s.Send(alert("r", n))
		}
		drain(t, s)
	}
	stored, err := alerts.Stored(t.Context(), js, 10)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]alerting.Alert{alert("r", 2), alert("r", 1), alert("r", 0)}, stored); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	message, err := live.NextMsg(10 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var got alerting.Alert
	if err := json.Unmarshal(message.Data, &got); err != nil || got.ID != alert("r", 0).ID {
		t.Errorf("a subscriber got %s (%v)", message.Data, err)
	}
}

func TestStoredReadsTheLatestAndSkipsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	js, _ := startNATS(t)
	if none, err := alerts.Stored(t.Context(), js, 5); err != nil || len(none) > 0 {
		t.Errorf("of an empty stream: %v, %v", none, err)
	}
	s := sender(t, alerts.Options{JetStream: js})
	for n := range 5 {
		s.Send(alert("r", n))
	}
	drain(t, s)
	for _, data := range []string{"", "{", "[]", `{"run":"r"}`} {
		if _, err := js.Publish(t.Context(), wire.AlertSubject("digits"), []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := js.Stream(t.Context(), alerts.Stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	got, err := alerts.Stored(t.Context(), js, 3)
	if diff := cmp.Diff([]alerting.Alert{alert("r", 4), alert("r", 2), alert("r", 1)}, got); err != nil || diff != "" {
		t.Errorf("stored: %v (-want +got):\n%s", err, diff)
	}
}

func TestEnsureStreamMayRunAgain(t *testing.T) {
	t.Parallel()
	js, _ := startNATS(t)
	s := sender(t, alerts.Options{JetStream: js})
	s.Send(alert("r", 1))
	drain(t, s)
	if err := alerts.EnsureStream(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	if stored, err := alerts.Stored(t.Context(), js, 2); err != nil || len(stored) != 1 {
		t.Errorf("after the second time %d alerts are stored (%v), want 1", len(stored), err)
	}
}

// alert is the n-th of a run.
func alert(run string, n int) alerting.Alert {
	return alerting.Alert{
		ID: fmt.Sprintf("%s/%s/%d", run, alerting.KindDeadlineAtRisk, n), Run: run, Pipeline: "digits",
		Kind: alerting.KindDeadlineAtRisk,
		At:   time.Date(2026, 11, 20, 9, 0, n, 0, time.UTC), Goal: predictor.Goal{Deadline: time.Minute},
		FinishSeconds: predictor.Interval{Low: 60, Mid: 70, High: 80}, Message: "late",
	}
}
