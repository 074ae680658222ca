package slot_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
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
	if record.Curve != nil {
		t.Errorf("a curve %+v, want none of metrics whose names say nothing", record.Curve)
	}
	attempt.Progress(wire.Progress{Step: 9})
	if record := attempt.Record(predictor.Pool, "h", slot.Ending{}); record.Step != 9 || record.Metrics != nil {
		t.Errorf("after a step without metrics: step %d with %v, want step 9 with none", record.Step, record.Metrics)
	}
}

func TestTheRecordHasTheCurveOfItsTraining(t *testing.T) {
	t.Parallel()
	attempt := &slot.Attempt{Task: task("fit-1"), Number: 1}
	const steps = 5000
	for step := 1; step < steps; step++ {
		attempt.Progress(wire.NewProgress(step, steps, map[string]float64{"loss": 1 / float64(step), "rate": 1}))
	}
	attempt.Progress(wire.NewProgress(steps, steps, map[string]float64{"loss": math.NaN(), "rate": 1}))
	record := attempt.Record(predictor.Pool, "h", slot.Ending{})
	told := record.Curve
	if told == nil || told.Metric != "loss" || len(told.Steps) < 30 || len(told.Steps) > 64 ||
		!slices.IsSorted(told.Steps) || told.Steps[0] > 2 || len(told.NotFinite) != 1 || told.NotFinite[0] != steps {
		t.Errorf("its curve is %+v, want up to 64 steps of its loss, the last of them not finite", told)
	}
	if _, has := record.Metrics["loss"]; has || !slices.Equal(record.NotFinite, []string{"loss"}) {
		t.Errorf("metrics %v and not finite %v, want the loss among the latter", record.Metrics, record.NotFinite)
	}
	if data, err := json.Marshal(record); err != nil || len(data) > 4<<10 {
		t.Errorf("encoded it has %d bytes, %v; want 4 KiB at most", len(data), err)
	}
}
