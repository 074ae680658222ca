package stack

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

func TestDoctorTellsOfWhatWasLostOfLate(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	found := examineLosses([]predictor.Alert{
		{Kind: predictor.StreamsLost, At: now.Add(-time.Hour), Message: "a stream"},
		{Kind: predictor.LedgerFailing, At: now.Add(-time.Hour), Message: "the ledger"},
		{Kind: predictor.DeadlineAtRisk, At: now, Message: "a run"},
		{Kind: predictor.StreamsLost, At: now.Add(-8 * 24 * time.Hour), Message: "long ago"},
	}, now)
	text := strings.Join(findingLines(found), "\n")
	if len(found) != 2 || !strings.Contains(text, "a stream") || !strings.Contains(text, "the ledger") {
		t.Errorf("got\n%s", text)
	}
}
