package stack

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
)

func TestDoctorTellsOfWhatWasLostOfLate(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	found := examineLosses([]alerting.Alert{
		{Kind: alerting.KindStreamsLost, At: now.Add(-time.Hour), Message: "a stream"},
		{Kind: alerting.KindLedgerFailing, At: now.Add(-time.Hour), Message: "the ledger"},
		{Kind: alerting.KindDeadlineAtRisk, At: now, Message: "a run"},
		{Kind: alerting.KindStreamsLost, At: now.Add(-8 * 24 * time.Hour), Message: "long ago"},
	}, now)
	text := strings.Join(findingLines(found), "\n")
	if len(found) != 2 || !strings.Contains(text, "a stream") || !strings.Contains(text, "the ledger") {
		t.Errorf("got\n%s", text)
	}
}

func TestDoctorTellsOfHostsWhoseGPUsAreUnknown(t *testing.T) {
	t.Parallel()
	found := examineHosts([]predictor.Host{{ID: "cpu"}, {ID: "gpu-1", GPUsUnknown: true}})
	text := strings.Join(findingLines(found), "\n")
	if len(found) != 1 || found[0].Severity != notice ||
		!strings.Contains(text, "the GPUs of host gpu-1 are unknown: their driver has not answered yet") {
		t.Errorf("got\n%s", text)
	}
}
