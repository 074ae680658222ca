package alerting_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/alerting"
)

func TestALossOfMessagesSaysWhichAndWhatItMeans(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	one := alerting.MessagesLost("LOOP", "7", 183, at.Add(-time.Hour), at.Add(-time.Minute), "curves have holes", at)
	for _, want := range []string{"LOOP", "183", "2026-11-23 08:00:00 and 2026-11-23 08:59:00", "curves have holes"} {
		if !strings.Contains(one.Message, want) {
			t.Errorf("%q does not say %q", one.Message, want)
		}
	}
	other := alerting.MessagesLost("EVENTS", "7", 1, time.Time{}, at, "", at)
	bindings := alerting.BindingsRestored([]string{"a-1", "b-2"}, at)
	if strings.Contains(other.Message, "between") || !strings.Contains(bindings.Message, "a-1, b-2") {
		t.Errorf("got %q, %q", other.Message, bindings.Message)
	}
	ids := map[string]bool{}
	for _, alert := range []alerting.Alert{one, other, bindings} {
		ids[alert.ID] = true
		if alert.Kind != alerting.KindStreamsLost || alert.Run != "" {
			t.Errorf("got %+v, want that it is about no run", alert)
		}
	}
	if len(ids) != 3 {
		t.Errorf("%d alerts of three", len(ids))
	}
}
