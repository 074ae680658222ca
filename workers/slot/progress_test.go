package slot_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
)

func TestTheRecordHasWhatWasReportedLastWithinItsBounds(t *testing.T) {
	t.Parallel()
	attempt := &slot.Attempt{Task: task("fit-1"), Number: 1}
	if record := attempt.Record(predictor.Pool, "h", slot.Ending{}); record.Step != 0 || record.Metrics != nil {
		t.Errorf("before anything was reported: step %d and %v, want none", record.Step, record.Metrics)
	}
	metrics := map[string]float64{strings.Repeat("x", 201): 1, strings.Repeat("a", 200): 2}
	for i := range 1000 {
		metrics[fmt.Sprintf("m%03d", i)] = float64(i)
	}
	attempt.Progress(wire.Progress{Step: 8, Metrics: metrics})
	record := attempt.Record(predictor.Pool, "h", slot.Ending{})
	if record.Step != 8 || len(record.Metrics) != 64 || record.Metrics[strings.Repeat("a", 200)] != 2 ||
		record.Metrics["m062"] != 62 {
		t.Errorf("step %d with %d metrics, want step 8 with the first 64 by name", record.Step, len(record.Metrics))
	}
	if len(attempt.State().Metrics) != 64 || len(metrics) != 1002 {
		t.Errorf("the heartbeat has %d metrics and the caller %d, want 64 and all that it had", len(attempt.State().Metrics),
			len(metrics))
	}
	attempt.Progress(wire.Progress{Step: 9})
	if record := attempt.Record(predictor.Pool, "h", slot.Ending{}); record.Step != 9 || record.Metrics != nil {
		t.Errorf("after a step without metrics: step %d with %v, want step 9 with none", record.Step, record.Metrics)
	}
}
