package trigger

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities/wire"
)

// recorded is a Temporal that has the run "there" and starts whatever it is asked for.
type recorded struct {
	client.Client
	started []string
}

func (r *recorded) DescribeWorkflowExecution(
	_ context.Context, run, _ string,
) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	if run != "there" {
		return nil, serviceerror.NewNotFound("no such run")
	}
	return &workflowservice.DescribeWorkflowExecutionResponse{}, nil
}

func (r *recorded) ExecuteWorkflow(
	_ context.Context, options client.StartWorkflowOptions, _ any, _ ...any,
) (client.WorkflowRun, error) {
	r.started = append(r.started, options.ID)
	return nil, nil
}

// TestABuildThatKnowsNoTeamsRunsForNone starts runs of builds of this version and of the one before there were teams.
func TestABuildThatKnowsNoTeamsRunsForNone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, run, team string
		version         int
		started         bool
		refused         string
	}{
		{"a team's, of this version", "new", "vision", wire.WorkflowVersion, true, ""},
		{"nobody's, of the version before", "new", "", wire.TeamsVersion - 1, true, ""},
		{"a team's, of the version before", "new", "vision", wire.TeamsVersion - 1, false, "knows no teams"},
		{"one that was started before", "there", "vision", wire.TeamsVersion - 1, false, ""},
	} {
		temporal := &recorded{}
		started, err := NewTemporalStarter(temporal, StarterOptions{}).Start(t.Context(), Start{
			Run: c.run, Pipeline: "digits", App: "digits", Build: "b1", Version: c.version,
			Options: wire.RunOptions{Team: c.team},
		})
		if started != c.started || (len(temporal.started) > 0) != c.started {
			t.Errorf("%s: started %v %v, want %v", c.name, started, temporal.started, c.started)
		}
		if c.refused == "" && err != nil ||
			c.refused != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.refused)
		}
	}
}
