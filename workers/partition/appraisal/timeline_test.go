package appraisal_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/partition/appraisal"
	"github.com/spillway-ml/spillway/workers/schedule"
)

// TestATimelineIsWhatTheSimulatorAddsUp checks the walk against the simulator, which knows sums only.
func TestATimelineIsWhatTheSimulatorAddsUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		stages, micro := rapid.IntRange(1, 5).Draw(t, "stages"), rapid.IntRange(1, 9).Draw(t, "micro-batches")
		span := rapid.Float64Range(0.001, 3)
		costs := schedule.Costs{
			Forward:   rapid.SliceOfN(span, stages, stages).Draw(t, "forward"),
			Backward:  rapid.SliceOfN(span, stages, stages).Draw(t, "backward"),
			Send:      rapid.SliceOfN(span, stages-1, stages-1).Draw(t, "send"),
			AllReduce: rapid.SliceOfN(span, stages, stages).Draw(t, "all-reduce"),
		}
		kind := rapid.SampledFrom([]func(int, int, schedule.Options) (schedule.Schedule, error){
			schedule.GPipe, schedule.OneForwardOneBackward,
		}).Draw(t, "kind")
		s, err := kind(stages, micro, schedule.Options{AllReduce: true})
		if err != nil {
			t.Fatal(err)
		}
		want, err := schedule.Simulate(s, costs)
		if err != nil {
			t.Fatal(err)
		}
		spans := appraisal.Timeline(s, costs)
		end, busy, last := 0.0, make([]float64, stages), make([]float64, stages)
		for _, span := range spans {
			i := span.Stage - 1
			if span.StartSeconds < last[i]-1e-9 {
				t.Fatalf("stage %d does two things at %v", span.Stage, span.StartSeconds)
			}
			last[i] = span.EndSeconds
			end = max(end, span.EndSeconds)
			if span.Kind != "all-reduce" {
				busy[i] += span.EndSeconds - span.StartSeconds
			}
		}
		if len(spans) != stages*(2*micro+1) || math.Abs(end-want.Makespan) > 1e-9 {
			t.Fatalf("%d spans to %v, want %d to %v", len(spans), end, stages*(2*micro+1), want.Makespan)
		}
		for i := range busy {
			if math.Abs(busy[i]-want.Busy[i]) > 1e-9 {
				t.Fatalf("stage %d is busy for %v, want %v", i, busy[i], want.Busy[i])
			}
		}
	})
}

func TestAStreamLeavesOneBatchEachTimeOfTheBusiestStage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		loads := rapid.SliceOfN(rapid.Float64Range(0.01, 5), 1, 6).Draw(t, "loads")
		const batches = 12
		spans := appraisal.Stream(loads, batches)
		var ends []float64
		for _, span := range spans[len(spans)-batches:] {
			ends = append(ends, span.EndSeconds)
		}
		sum := 0.0
		for _, load := range loads {
			sum += load
		}
		if math.Abs(ends[0]-sum) > 1e-9 {
			t.Fatalf("the first batch leaves at %v, want %v", ends[0], sum)
		}
		for i := 1; i < batches; i++ {
			if got, want := ends[i]-ends[i-1], slices.Max(loads); math.Abs(got-want) > 1e-9 {
				t.Fatalf("batch %d leaves %v after the one before, want %v", i+1, got, want)
			}
		}
	})
}
