package alerting_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestAScarceDiskIsToldOnceAndEndsByItsOwnAlert(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	scarce := alerting.DiskScarce(512*quantity.MiB, at)
	if scarce.Kind != alerting.KindDiskScarce || !strings.Contains(scarce.Message, "512 MiB left") || scarce.Run != "" {
		t.Errorf("got %+v, want an alert about no run with what is left", scarce)
	}
	again, eased := alerting.DiskScarce(quantity.MiB, at.Add(time.Hour)), alerting.DiskEased(scarce, at.Add(time.Minute))
	if scarce.ID == again.ID || eased.ID == scarce.ID || eased.Kind != alerting.KindRecovered ||
		eased.Recovers != alerting.KindDiskScarce {
		t.Errorf("got %+v and %+v after %+v, want three IDs, and the second to recover the first", again, eased, scarce)
	}
	if watches := alerting.Resume([]alerting.Alert{scarce, eased}); len(watches) > 1 {
		t.Errorf("watches of runs that there are not: %v", watches)
	}
}
