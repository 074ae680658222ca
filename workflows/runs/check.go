package runs

import (
	"fmt"
	"regexp"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

var namePattern = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,39}$`)

// CheckName refuses what is no name of a stage or a pipeline.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("name %q: use a lower-case letter, then letters, digits, '-' or '_', at most 40", name)
	}
	return nil
}

// maxCacheVersion bounds a cache version, in bytes.
const maxCacheVersion = 100

// CheckCacheVersion returns an error when version is no CacheVersion of a stage.
func CheckCacheVersion(version string) error {
	if wire.CheckText(version, maxCacheVersion) != nil {
		return fmt.Errorf("the cache version %q is no text of at most %d printable characters", version, maxCacheVersion)
	}
	return nil
}

// CheckGoal refuses a goal that no run can have.
func CheckGoal(goal predictor.Goal) error {
	switch {
	case goal.Deadline < 0:
		return fmt.Errorf("deadline %s is negative: give the time that a run may take, such as 10m", goal.Deadline)
	case goal.Confidence != 0 &&
		!(goal.Confidence >= predictor.LeastConfidence && goal.Confidence <= predictor.MostConfidence):
		return fmt.Errorf("confidence %g is no probability of meeting a deadline: give %g to %g, such as 0.95",
			goal.Confidence, predictor.LeastConfidence, predictor.MostConfidence)
	case goal.Confidence != 0 && goal.Deadline == 0:
		return fmt.Errorf("confidence %g has no deadline to meet: give one, such as 10m", goal.Confidence)
	case goal.Budget < 0:
		return fmt.Errorf("budget %s is negative: give the dollars that a run may cost, such as 0.50", goal.Budget)
	case goal.Minimise != "" && goal.Minimise != predictor.Cost && goal.Minimise != predictor.Latency:
		return fmt.Errorf("objective %q is unknown: minimise %q or %q", goal.Minimise, predictor.Cost, predictor.Latency)
	}
	return nil
}
