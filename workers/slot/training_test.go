package slot_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
)

func TestEachWordOfATrainingIsNewsOnceAndWhyItWasPlannedIsToldOnce(t *testing.T) {
	t.Parallel()
	attempt := &slot.Attempt{Task: task("fit-1"), Number: 1}
	if news := attempt.News(); news != nil {
		t.Errorf("before anything was told: %+v, want none", news)
	}
	told := predictor.Training{
		Steps: 1, Reason: "the fastest",
		Alternatives: []predictor.TrainingAlternative{{Partitions: 2}},
	}
	later, replanned := told, told
	later.Steps, replanned.Reason = 3, "a device is gone"
	attempt.Trained(told)
	if diff := cmp.Diff(&told, attempt.News()); diff != "" {
		t.Errorf("at first (-want +got):\n%s", diff)
	}
	if news := attempt.News(); news != nil {
		t.Errorf("asked again: %+v, want none", news)
	}
	attempt.Trained(predictor.Training{Steps: 2})
	attempt.Trained(later)
	if diff := cmp.Diff(&predictor.Training{Steps: 3}, attempt.News()); diff != "" {
		t.Errorf("two words later (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&later, attempt.Record(predictor.Pool, "h", slot.Ending{}).Training); diff != "" {
		t.Errorf("in the Record (-want +got):\n%s", diff)
	}
	attempt.Trained(replanned)
	if diff := cmp.Diff(&replanned, attempt.News()); diff != "" {
		t.Errorf("after another plan (-want +got):\n%s", diff)
	}
}
