package engine

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"

	"github.com/spillway-ml/spillway/workflows/runs"
)

// searchable are the search attributes of runs.
var searchable = map[string]enums.IndexedValueType{
	runs.PipelineAttribute.GetName(): runs.PipelineAttribute.GetValueType(),
	runs.GoalAttribute.GetName():     runs.GoalAttribute.GetValueType(),
	runs.StateAttribute.GetName():    runs.StateAttribute.GetValueType(),
	runs.CostAttribute.GetName():     runs.CostAttribute.GetValueType(),
}

// attributesWait bounds what is asked about search attributes at the start.
const attributesWait = 5 * time.Second

// makeAttributes makes the search attributes of runs where they are missing, and reports whether the namespace has
// them. Without the right to that, runs go on without.
func makeAttributes(
	ctx context.Context, operator operatorservice.OperatorServiceClient, temporal temporalServer, logger *slog.Logger,
) bool {
	ctx, cancel := context.WithTimeout(ctx, attributesWait)
	defer cancel()
	without := func(why error) bool {
		var commands []string
		for _, name := range slices.Sorted(maps.Keys(searchable)) {
			commands = append(commands, fmt.Sprintf("--name %s --type %s", name, searchable[name]))
		}
		logger.InfoContext(ctx, "runs bear no search attributes at Temporal; whoever may makes them with `temporal operator "+
			"search-attribute create`, and the next start uses them", "namespace", temporal.Namespace(),
			"flags", strings.Join(commands, " "), "error", why)
		return false
	}
	listed, err := operator.ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{
		Namespace: temporal.Namespace(),
	})
	if err != nil {
		return without(err)
	}
	missing := map[string]enums.IndexedValueType{}
	for name, kind := range searchable {
		switch is, there := listed.GetCustomAttributes()[name]; {
		case !there:
			missing[name] = kind
		case is != kind:
			return without(fmt.Errorf("%s is there as %s, and needs to be %s", name, is, kind))
		}
	}
	if len(missing) == 0 {
		return true
	}
	if _, err = operator.AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
		Namespace: temporal.Namespace(), SearchAttributes: missing,
	}); err != nil {
		return without(err)
	}
	return true
}
