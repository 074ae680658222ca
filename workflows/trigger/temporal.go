package trigger

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// temporalStarter is the Starter of production.
type temporalStarter struct {
	client  client.Client
	options StarterOptions
}

// StarterOptions say how a Starter starts runs.
type StarterOptions struct {
	// Window is how many tasks of one stage are in flight at first; 0 leaves that to the process that runs the workflow.
	Window int
	// Prices are those that runs reckon with before they know better; nil when they are not known.
	Prices *wire.Prices
	// TeamOf is whose a pipeline is, of which a run is started for nobody: empty is the default team. Nil knows no other.
	TeamOf func(pipeline string) string
	// Attributes says that the namespace has the search attributes of runs.
	Attributes bool
}

// NewTemporalStarter returns the Starter that starts runs as Temporal workflows. It does not close the client.
func NewTemporalStarter(c client.Client, options StarterOptions) Starter {
	return temporalStarter{client: c, options: options}
}

// Start implements Starter. A workflow ID that exists, running or closed, is refused by Temporal itself, which is what
// makes a run start exactly once; the refusal is asked for as an error, since only so does the client tell a new run
// from one that existed.
func (s temporalStarter) Start(ctx context.Context, start Start) (bool, error) {
	start.Options.Version, start.Options.Window, start.Options.Prices = min(start.Version, wire.WorkflowVersion),
		s.options.Window, s.options.Prices
	if start.Options.Team == "" && s.options.TeamOf != nil {
		start.Options.Team = s.options.TeamOf(start.Pipeline)
	}
	if team := start.Options.Team; team != "" && start.Options.Version < wire.TeamsVersion {
		if exists, _, err := s.Find(ctx, start.Run); err != nil || exists { // an engine of before has started it
			return false, err
		}
		return false, Refuse("run %s would be one of team %s, and build %s of %s is by a version of spillway that knows no "+
			"teams: its tasks would be the default team's; build it with this version", start.Run, team, start.Build, start.App)
	}
	started, err := s.start(ctx, start, s.options.Attributes)
	if invalid := (*serviceerror.InvalidArgument)(nil); s.options.Attributes && errors.As(err, &invalid) {
		// Of attributes that were just made, or were removed, a frontend may know nothing.
		return s.start(ctx, start, false)
	}
	return started, err
}

// start starts a run, with its search attributes where it is to bear any.
func (s temporalStarter) start(ctx context.Context, start Start, attributes bool) (bool, error) {
	var search temporal.SearchAttributes
	if start.Options.Attributes = attributes; attributes {
		search = runs.Attributes(start.Pipeline, start.Goal)
	}
	_, err := s.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID:                                       start.Run,
		TaskQueue:                                start.TaskQueue,
		WorkflowIDReusePolicy:                    enums.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
		WorkflowIDConflictPolicy:                 enums.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		Memo: map[string]any{
			runs.GoalMemo:     start.Goal,
			runs.EventMemo:    start.Event,
			runs.PipelineMemo: start.Pipeline,
			runs.BindingMemo:  start.Binding,
			runs.OptionsMemo:  start.Options,
			runs.InputMemo:    inputDigest(start.Input),
		},
		TypedSearchAttributes: search,
		StaticSummary:         summary(start),
		Priority:              temporal.Priority{FairnessKey: start.Pipeline},
	}, start.Pipeline, start.Input)
	var exists *serviceerror.WorkflowExecutionAlreadyStarted
	var invalid *serviceerror.InvalidArgument
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &exists):
		return false, nil
	case errors.As(err, &invalid):
		return false, fmt.Errorf("start run %s: %w: %w", start.Run, ErrRefused, err)
	default:
		return false, fmt.Errorf("start run %s: %w", start.Run, err)
	}
}

// summary is one line for Temporal's own page, at most 200 bytes of it the event.
func summary(start Start) string {
	event := start.Event
	if len(event) > maxID {
		event = strings.TrimPrefix(start.Run, start.Pipeline+"-")
	}
	return fmt.Sprintf("%s for event %s, build %s", start.Pipeline, event, start.Build)
}

// Running implements Starter with Temporal's visibility store, which trails by up to a few seconds.
func (s temporalStarter) Running(ctx context.Context, pipeline, binding string) ([]string, error) {
	query := fmt.Sprintf("WorkflowType = '%s' AND ExecutionStatus = 'Running'", strings.ReplaceAll(pipeline, "'", "''"))
	var going []string
	var page []byte
	for {
		answer, err := s.client.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			Query:         query,
			NextPageToken: page,
		})
		if err != nil {
			return nil, fmt.Errorf("list runs of pipeline %s: %w", pipeline, err)
		}
		for _, info := range answer.GetExecutions() {
			if bindingOf(info) == binding {
				going = append(going, info.GetExecution().GetWorkflowId())
			}
		}
		if page = answer.GetNextPageToken(); len(page) == 0 {
			return going, nil
		}
	}
}

// bindingOf is the key of the binding that started a run; empty when none did.
func bindingOf(info *workflow.WorkflowExecutionInfo) string { return memoOf(info, runs.BindingMemo) }

// memoOf is a text in the memo of a run; empty when there is none.
func memoOf(info *workflow.WorkflowExecutionInfo, key string) (text string) {
	payload, found := info.GetMemo().GetFields()[key]
	if !found {
		return ""
	}
	if err := converter.GetDefaultDataConverter().FromPayload(payload, &text); err != nil {
		return "" // another program's memo
	}
	return text
}

// Conflict implements Starter by the digest that the run was started with; runs of before there was one have none.
func (s temporalStarter) Conflict(ctx context.Context, start Start) error {
	answer, err := s.client.DescribeWorkflowExecution(ctx, start.Run, "")
	if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up run %s: %w", start.Run, err)
	}
	other := memoOf(answer.GetWorkflowExecutionInfo(), runs.InputMemo)
	if other != "" && other != inputDigest(start.Input) {
		return taken(start)
	}
	return nil
}

// Find implements Starter with the workflow's own record, which is never behind.
func (s temporalStarter) Find(ctx context.Context, run string) (exists, going bool, err error) {
	answer, err := s.client.DescribeWorkflowExecution(ctx, run, "")
	var missing *serviceerror.NotFound
	switch {
	case errors.As(err, &missing):
		return false, false, nil
	case err != nil:
		return false, false, fmt.Errorf("look up run %s: %w", run, err)
	default:
		return true, answer.GetWorkflowExecutionInfo().GetStatus() == enums.WORKFLOW_EXECUTION_STATUS_RUNNING, nil
	}
}
