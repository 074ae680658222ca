package training

import (
	"math"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

// TestUtilizationIsThatOfTheDefinition has a model of 3 GFLOP a sample, both passes, on devices of 100 and 200 GFLOP/s.
func TestUtilizationIsThatOfTheDefinition(t *testing.T) {
	t.Parallel()
	made := predictor.Training{
		Batch: 8, FLOPs: 8 * 3e9, Parts: []predictor.TrainingPart{{PeakFLOPS: 100e9}, {PeakFLOPS: 200e9}},
	}
	if got := utilization(made, 40); math.Abs(got-0.4) > 1e-12 {
		t.Errorf("40 samples a second are %v; want 0.4", got)
	}
	made.Parts[1].PeakFLOPS = 0
	if got := utilization(made, 40); got != 0 {
		t.Errorf("without the peak of a device it is %v", got)
	}
	if got := utilization(predictor.Training{}, 40); got != 0 {
		t.Errorf("of nothing it is %v", got)
	}
}

func TestTheTimeThatIsLeftIsThatOfTheStepsSoFar(t *testing.T) {
	t.Parallel()
	now := time.Now()
	made := trainer{total: 100, losses: make([]float64, 11), began: now.Add(-20 * time.Second)}
	made.training.Steps = 61 // 50 were done before this run, and the first step of it is not counted
	if got := made.left(now); got != 78*time.Second {
		t.Errorf("39 steps of 2 s take %v", got)
	}
	made.total = math.MaxInt64
	if got := made.left(now); got != mostLeft {
		t.Errorf("steps without end take %v", got)
	}
	made.losses = made.losses[:1]
	if got := made.left(now); got != 0 {
		t.Errorf("after one step, it is known: %v", got)
	}
}
