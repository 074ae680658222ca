package runs

import (
	"fmt"
	"strings"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/predictor"
)

// The search attributes by which runs are found at Temporal, in the namespaces that have them.
var (
	PipelineAttribute = temporal.NewSearchAttributeKeyKeyword("SpillwayPipeline")
	GoalAttribute     = temporal.NewSearchAttributeKeyKeyword("SpillwayGoal")
	StateAttribute    = temporal.NewSearchAttributeKeyKeyword("SpillwayState")
	// CostAttribute is what an ended run has cost, in US dollars.
	CostAttribute = temporal.NewSearchAttributeKeyFloat64("SpillwayCostUSD")
)

// Attributes are those of a run that starts.
func Attributes(pipeline string, goal predictor.Goal) temporal.SearchAttributes {
	return temporal.NewSearchAttributes(PipelineAttribute.ValueSet(pipeline), GoalAttribute.ValueSet(goalText(goal)),
		StateAttribute.ValueSet(string(predictor.RunRunning)))
}

// goalText is a goal as it is searched for: "none", or its parts, such as "deadline 1h0m0s budget $2 minimise cost".
func goalText(goal predictor.Goal) string {
	var parts []string
	if goal.Deadline > 0 {
		parts = append(parts, "deadline "+goal.Deadline.String())
	}
	if goal.Budget > 0 {
		parts = append(parts, fmt.Sprintf("budget %s", goal.Budget))
	}
	if goal.Minimise != "" {
		parts = append(parts, "minimise "+string(goal.Minimise))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, " ")
}

// attribute changes the run's search attributes, in the runs that have any.
func (r *run) attribute(ctx workflow.Context, updates ...temporal.SearchAttributeUpdate) error {
	if !r.options.Attributes {
		return nil
	}
	if err := workflow.UpsertTypedSearchAttributes(ctx, updates...); err != nil {
		return fmt.Errorf("set the search attributes of run %s: %w", r.id, err)
	}
	return nil
}
