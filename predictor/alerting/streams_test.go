package alerting_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
)

func TestEachLossOfStreamsIsAnAlertOfItsOwn(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)
	one, other := alerting.StreamsLost([]string{"A", "B"}, at), alerting.StreamsLost([]string{"A"}, at.Add(time.Second))
	if one.ID == other.ID || one.ID == "" {
		t.Errorf("the IDs are %q and %q, want two", one.ID, other.ID)
	}
	if one.Kind != alerting.KindStreamsLost || !strings.Contains(one.Message, "A, B") || one.Run != "" {
		t.Errorf("got %+v, want the names of the streams and no run", one)
	}
	watches := alerting.Resume([]alerting.Alert{one, other})
	reading := alerting.Reading{Run: "r", At: at, Goal: predictor.Goal{Deadline: time.Second}, Elapsed: 2}
	if _, alert, due := alerting.Next(watches["r"], reading); !due || alert.ID != "r/deadline_at_risk/1" {
		t.Errorf("the first alert about a run is %+v, %v", alert, due)
	}
}
