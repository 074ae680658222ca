package fact

import (
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Bounds of what is believed of a fact: what is beyond is cut to them.
const (
	MaxWall       = 30 * 24 * time.Hour
	MaxPeakMemory = quantity.Bytes(1) << 50
	MaxRate       = 1000 * quantity.Core
)

// MaxCost bounds what one run is thought to have spent, so that sums cannot overflow.
const MaxCost = quantity.Money(math.MaxInt64 / 4)

// SaneGoal cuts a goal to what it can be.
func SaneGoal(goal Goal) Goal {
	goal.Deadline = max(0, goal.Deadline)
	goal.Budget = max(0, goal.Budget)
	switch {
	case math.IsNaN(goal.Confidence):
		goal.Confidence = 0
	case goal.Confidence != 0:
		goal.Confidence = min(max(LeastConfidence, goal.Confidence), MostConfidence)
	}
	if goal.Minimise != Cost && goal.Minimise != Latency {
		goal.Minimise = ""
	}
	return goal
}

// SaneSize cuts a size to what it can be.
func SaneSize(size quantity.Size) quantity.Size {
	size.CPU = min(max(0, size.CPU), MaxRate)
	size.Memory = min(max(0, size.Memory), MaxPeakMemory)
	size.GPU = min(max(0, size.GPU), MaxRate)
	size.GPUMemory = min(max(0, size.GPUMemory), MaxPeakMemory)
	return size
}
